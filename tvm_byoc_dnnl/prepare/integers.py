"""Functions of which an integer is made: computed in float64 and rounded once.

    floor, ceil, round, trunc, a conversion to integers, or a quotient or remainder of integers
        ↑ elementwise operators and views
    exp, tanh, sigmoid …       a compiler's own, and TVM's, may be off by some units in the last place

Such an error is nothing beside the others of a network, but at a step it is a whole integer: of 2 · tanh(x), which
should be 1, the floor becomes 0. What else reads the functions still has the fast ones.

Products of bytes to which an integer is added, read as real numbers alone: computed in float32.

    astype(astype(product, int32) + astype(b, int32), float32)        b: a float32 that is a whole number
    product + b

A float32 that is a whole number is that integer, and the sum of two is rounded once, as the integer is when it becomes
a float32. Only a bias that an int32 cannot say is another number: here it stays what it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..core.tvm_fast import items
from ..ir.relax_utils import RESHAPES
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
        *("broadcast_to", "permute_dims", "strided_slice"),
    )
).union(RESHAPES)


def _rounded(scope: Scope, root: Any) -> Any:
    exact = _Exact(scope)
    args = [exact.of(arg) for arg in items(root.args)]
    return scope.with_args(root, *args) if exact.found else None


def _converted(scope: Scope, root: Any) -> Any:
    is_to_integer = "int" in scope.dtype(root)
    return _rounded(scope, root) if is_to_integer else None


class _Exact:
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


#: mathematically the same: what is rounded to an integer keeps its bits
EXACT: Rules = {
    **{f"relax.{name}": [_rounded] for name in ("ceil", "floor", "floor_divide", "floor_mod", "mod", "round", "trunc")},
    "relax.astype": [_converted],
}


_STEPS = ("relax.ceil", "relax.floor", "relax.round", "relax.trunc")
_SUMS = ("relax.add", "relax.subtract")
_VIEWS = (*RESHAPES, "relax.broadcast_to", "relax.permute_dims")
_PRODUCTS = ("relax.matmul", *(f"relax.nn.conv{d}d" for d in (1, 2, 3)))


def _real(scope: Scope, whole: Any) -> Any:
    """An int32 as the float32 that it was converted from, or ``None``; at the leaves of sums and views."""
    array = scope.const(whole)
    if array is not None:
        real = array.astype("float32")
        return scope.constant(real) if (real.astype("float64") == array).all() else None
    call = scope.call(whole, "relax.astype", *_VIEWS)
    if call is None or scope.dtype(whole) != "int32":
        return None
    source, *others = items(call.args)
    if call.op.name == "relax.astype":
        source = _unguarded(scope, source)
        return source if _is_whole(scope, source) else None
    inner = _real(scope, source)
    return None if inner is None else scope.emit(scope.with_args(call, inner, *others))


def _unguarded(scope: Scope, source: Any) -> Any:
    """``source``, or x of ``where(|x| < 2³¹, x, -2³¹)``: what C leaves open is the lowest integer for importers."""
    found = scope.match(source, ("where", ("less", ("abs", "x"), 2.0**31), "x", -(2.0**31)))
    return source if found is None else found["x"]


def _is_whole(scope: Scope, real: Any) -> bool:
    if scope.dtype(real) != "float32":
        return False
    if scope.call(real, *_STEPS) is not None:
        return True
    product = scope.call(real, *_PRODUCTS)
    return product is not None and all(_is_unscaled(scope, operand) for operand in items(product.args))


def _is_unscaled(scope: Scope, operand: Any) -> bool:
    """Whether an operand is integers less their zero point."""
    while (view := scope.call(operand, *_VIEWS)) is not None:
        operand = view.args[0]
    dequantize = scope.call(operand, "relax.dequantize")
    scale = None if dequantize is None else scope.const(dequantize.args[1])
    return scale is not None and bool((scale == 1).all())


def _sum(scope: Scope, astype: Any) -> Any:
    whole = astype.args[0]
    if scope.dtype(astype) != "float32" or scope.dtype(whole) != "int32":
        return None
    call = scope.call(whole, *_SUMS)
    if call is None or not scope.only_inside([whole], astype):
        return None
    made = [scope.call(operand, "relax.astype") for operand in items(call.args)]
    if not any(each is not None and scope.call(each.args[0], *_PRODUCTS) is not None for each in made):
        return None
    operands = []
    for operand in items(call.args):
        operands.append(real := _real(scope, operand))
        if real is None:
            return None
    return scope.with_args(call, *operands)


RULES: Rules = {"relax.astype": [_sum]}
