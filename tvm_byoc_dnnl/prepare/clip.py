"""Bounds: one ``clip``, ``nn.relu``, ``maximum`` or ``minimum`` for any chain of them.

NaN: ONNX Runtime's Clip, Relu, Max and Min all pass a NaN on. TVM's importer and operators do not (its max and
min return the second operand when the first is NaN: relu gives 0, clip the upper bound), and Relax has no
operator that would. So a NaN may come out as another bound than before; for numbers nothing changes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tvm import relax

from ..core.tvm_fast import items
from .rewrite import Rules, Scope

_OPS = ("relax.maximum", "relax.minimum", "relax.nn.relu", "relax.clip")


class _Bounded(NamedTuple):
    """``min(max(data, low), high)``, low not above high."""

    data: Any
    low: float
    high: float

    @property
    def op(self) -> str:
        """The operator for these bounds; empty if there is none."""
        if math.isinf(self.high):
            return {-math.inf: "", 0: "relax.nn.relu"}.get(self.low, "relax.maximum")
        return "relax.minimum" if math.isinf(self.low) else "relax.clip"


def _read(scope: Scope, call: Any) -> _Bounded | None:
    name = call.op.name
    args = items(call.args)
    if name == "relax.nn.relu":
        return _Bounded(args[0], 0.0, math.inf)
    if name == "relax.clip":
        low, high = (getattr(arg, "value", math.nan) for arg in args[1:])
        return _Bounded(args[0], low, high) if low <= high else None
    a, b = args
    for data, constant in ((a, b), (b, a)):
        number = scope.scalar(constant)
        if number is None or math.isnan(number) or not scope.same_shape(data, call):
            continue
        return _Bounded(data, number, math.inf) if name == "relax.maximum" else _Bounded(data, -math.inf, number)
    return None


def _written(scope: Scope, bounds: _Bounded) -> Any:
    data, low, high = bounds
    if bounds.op == "":
        return data
    if bounds.op == "relax.nn.relu":
        return relax.op.nn.relu(data)
    if bounds.op == "relax.clip":
        return relax.op.clip(data, low, high)
    op, number = (relax.op.maximum, low) if bounds.op == "relax.maximum" else (relax.op.minimum, high)
    return op(data, scope.constant(number, scope.dtype(data)))


def _bounds(scope: Scope, call: Any) -> Any:
    outer = _read(scope, call)
    if outer is None:
        return None
    inner_call = scope.call(outer.data, *_OPS)
    inner = None if inner_call is None or scope.uses(outer.data) != 1 else _read(scope, inner_call)
    if inner is None:
        return None if outer.op == call.op.name else _written(scope, outer)
    low, high = (min(max(bound, outer.low), outer.high) for bound in (inner.low, inner.high))
    return _written(scope, _Bounded(inner.data, low, high))


RULES: Rules = {op: [_bounds] for op in _OPS}
