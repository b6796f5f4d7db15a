"""Reductions."""

from __future__ import annotations

from typing import Any

from ...lower.builder import GraphBuilder, Value
from ...registry import register_lowering
from ...verdict import require
from .common import ints, require_float
from .pool import global_average

__all__: list[str] = []

_ALGORITHMS = {
    "relax.sum": "sum",
    "relax.mean": "mean",
    "relax.max": "max",
    "relax.min": "min",
    "relax.prod": "mul",
}


@register_lowering("dnnl", list(_ALGORITHMS))
def reduction(g: GraphBuilder, call: Any) -> Value:
    """Sum, mean, max, min and product over any axes."""
    src, alg = g.value(call.args[0]), _ALGORITHMS[call.op.name]
    require_float(call.op.name, src)
    axis = call.attrs.axis
    axes = sorted(range(src.ndim) if axis is None else (a % src.ndim for a in ints(axis)))
    require(bool(axes), "a reduction over no axis")
    out_shape = g.shape_of(call.ty)
    if alg == "mean" and _is_spatial(src, axes):
        return g.reshape(global_average(g, src), out_shape)
    kept = [1 if i in axes else d for i, d in enumerate(src.shape)]
    return g.reshape(g.emit("reduction", [src], kept, alg=alg, p=0.0, epsilon=0.0), out_shape)


def _is_spatial(src: Value, axes: list[int]) -> bool:
    return 3 <= src.ndim <= 5 and axes == list(range(2, src.ndim)) and src.is_static and 0 not in src.shape
