"""Functions of which an integer is made: computed in float64 and rounded once.

    floor, ceil, round, trunc, a conversion to integers, or a quotient or remainder of integers
        ↑ elementwise operators and views
    exp, tanh, sigmoid …       a compiler's own, and TVM's, may be off by some units in the last place

Such an error is nothing beside the others of a network, but at a step it is a whole integer: of 2 · tanh(x), which
should be 1, the floor becomes 0. What else reads the functions still has the fast ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..core.tvm_fast import items
from .rewrite import Rules, Scope

#: those with an error above one unit in the last place somewhere (docs/numerics.md)
_FUNCTIONS = frozenset(
    f"relax.{name}"
    for name in (
        *("acosh", "asinh", "atanh", "cosh", "exp", "sigmoid", "sinh", "tan", "tanh"),
        *("nn.gelu", "nn.gelu_tanh", "nn.selu", "nn.silu", "nn.softplus"),
    )
)
#: those that the walk from an integer passes
_PASSED = frozenset(
    f"relax.{name}"
    for name in (
        *("abs", "add", "clip", "divide", "erf", "log", "maximum", "minimum", "multiply", "negative", "power"),
        *("rsqrt", "sqrt", "square", "subtract", "where", "nn.leakyrelu", "nn.prelu", "nn.relu"),
        *("broadcast_to", "expand_dims", "flatten", "permute_dims", "reshape", "squeeze", "strided_slice"),
    )
)


def _rounded(scope: Scope, root: Any) -> Any:
    exact = _Exact(scope)
    args = [exact.of(arg) for arg in items(root.args)]
    return scope.with_args(root, *args) if exact.found else None


def _converted(scope: Scope, root: Any) -> Any:
    is_to_integer = "int" in scope.dtype(root)
    return _rounded(scope, root) if is_to_integer else None


class _Exact:
    """Finds the functions behind one integer, and computes them in float64."""

    def __init__(self, scope: Scope) -> None:
        self.found = False
        self._scope = scope
        self._known: dict[Any, Any] = {}

    def of(self, expr: Any) -> Any:
        if self._scope.dtype(expr) != "float32":
            return expr
        call = self._scope.call(expr, *_FUNCTIONS, *_PASSED)
        if call is None:
            return expr
        if expr not in self._known:
            self._known[expr] = self._call(expr, call)
        return self._known[expr]

    def _call(self, expr: Any, call: Any) -> Any:
        scope, old = self._scope, items(call.args)
        args = [self.of(arg) for arg in old]
        if call.op.name in _FUNCTIONS:
            self.found = True
            wide = [self._wide(arg) for arg in args]
            return scope.emit(relax.op.astype(scope.emit(relax.Call(call.op, wide, call.attrs)), "float32"))
        if all(a is b for a, b in zip(args, old, strict=True)):
            return expr
        return scope.emit(scope.with_args(call, *args))

    def _wide(self, arg: Any) -> Any:
        array = self._scope.const(arg)
        if array is not None:
            return self._scope.constant(array.astype(np.float64))
        return self._scope.emit(relax.op.astype(arg, "float64"))


RULES: Rules = {
    **{f"relax.{name}": [_rounded] for name in ("ceil", "floor", "floor_divide", "floor_mod", "mod", "round", "trunc")},
    "relax.astype": [_converted],
}
