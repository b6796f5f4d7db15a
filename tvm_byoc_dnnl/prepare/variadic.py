"""ONNX's Sum, Max, Min and Mean of several tensors, as chains of two-operand arithmetic again.

TVM's importer makes ``broadcast_to`` of each, ``stack``, then a reduction of the new axis: three copies of
everything, and nothing that a backend could fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax

from .rewrite import Rules, Scope

_CHAIN: dict[str, Callable[[Any, Any], Any]] = {
    "relax.sum": relax.op.add,
    "relax.mean": relax.op.add,
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
}


def _terms(scope: Scope, stacked: Any) -> list[Any]:
    terms = []
    for field in stacked.args[0].fields:
        spread = scope.call(field, "relax.broadcast_to")
        terms.append(field if spread is None else spread.args[0])
    return terms


def _spans(scope: Scope, terms: list[Any], result: Any) -> bool:
    """Whether broadcasting the terms against each other gives the shape of ``result``."""
    if any(scope.same_shape(term, result) for term in terms):
        return True
    shapes: list[Any] = [scope.shape(term) for term in terms]
    return None not in shapes and np.broadcast_shapes(*shapes) == scope.shape(result)


def _chain(scope: Scope, call: Any) -> Any:
    stacked = scope.call(call.args[0], "relax.stack")
    if stacked is None or not isinstance(stacked.args[0], relax.Tuple):
        return None
    stack_axis = 0 if stacked.attrs.axis is None else int(stacked.attrs.axis)
    axes = call.attrs.axis
    if axes is None or [int(a) for a in axes] != [0] or stack_axis != 0 or call.attrs.keepdims:
        return None
    terms = _terms(scope, stacked)
    if not _spans(scope, terms, call):
        return None
    op = _CHAIN[call.op.name]
    total = reduce(lambda a, b: scope.emit(op(a, b)), terms)
    if call.op.name != "relax.mean":
        return total
    return relax.op.divide(total, scope.constant(len(terms), scope.dtype(call)))


RULES: Rules = {op: [_chain] for op in _CHAIN}
