"""Bounds on both sides to ``clip``, a lower bound of 0 to ``nn.relu``.

NaN: ONNX Runtime's Clip, Relu, Max and Min all hand a NaN on. TVM's importer and operators do not (its max and
min return the second operand when the first is NaN: relu gives 0, clip the upper bound), and Relax has no
operator that would. So a NaN may come out as another bound than before; for numbers nothing changes.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from .rewrite import Rules, Scope

_LOWER, _UPPER = "relax.maximum", "relax.minimum"


def _bounded(scope: Scope, call: Any) -> tuple[Any, float] | None:
    """The tensor and the number of a ``maximum`` or ``minimum``, or of a ``relu``."""
    if call.op.name == "relax.nn.relu":
        return call.args[0], 0.0
    a, b = call.args
    for data, constant in ((a, b), (b, a)):
        number = scope.scalar(constant)
        if number is not None and not math.isnan(number) and scope.same_shape(data, call):
            return data, number
    return None


def _clip(scope: Scope, call: Any) -> Any:
    outer = _bounded(scope, call)
    if outer is None:
        return None
    data, number = outer
    if math.isinf(number) and (number < 0) == (call.op.name == _LOWER):
        return data  # no bound
    other = (_UPPER,) if call.op.name == _LOWER else (_LOWER, "relax.nn.relu")
    inner = scope.call(data, *other)
    first = None if inner is None or scope.uses(data) != 1 else _bounded(scope, inner)
    if first is not None:
        low, high = (number, first[1]) if call.op.name == _LOWER else (first[1], number)
        return relax.op.clip(first[0], low, high) if low <= high else None
    return relax.op.nn.relu(data) if call.op.name == _LOWER and number == 0 else None


def _relu(scope: Scope, call: Any) -> Any:
    """``relu`` of something with an upper bound, or of a relu."""
    inner = scope.call(call.args[0], _UPPER, "relax.nn.relu")
    if inner is None:
        return None
    if inner.op.name == "relax.nn.relu":
        return call.args[0]
    first = _bounded(scope, inner) if scope.uses(call.args[0]) == 1 else None
    return relax.op.clip(first[0], 0.0, first[1]) if first is not None and first[1] >= 0 else None


RULES: Rules = {_LOWER: [_clip], _UPPER: [_clip], "relax.nn.relu": [_relu]}
