"""Reductions, and the two statistics that are made of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from ...vendor import GraphBuilder, Value, register_lowering, require
from .centred import mean_of_rows
from .common import ints, require_float
from .nan import is_nan, keeps_nan, nan_where
from .pool import global_average

_ALGORITHMS = {
    "relax.sum": "sum",
    "relax.mean": "mean",
    "relax.max": "max",
    "relax.min": "min",
    "relax.prod": "mul",
}


_MANY_PIXELS = 1 << 14


@register_lowering("dnnl", list(_ALGORITHMS))
def reduction(g: GraphBuilder, call: Any) -> Value:
    """Sum, mean, max, min and product over any axes."""
    src, alg = g.value(call.args[0]), _ALGORITHMS[call.op.name]
    require_float(call.op.name, src)
    axes = _axes(call, src)
    out_shape = g.shape_of(call.ty)
    if alg == "mean" and _is_spatial(src, axes):
        return g.reshape(global_average(g, src), out_shape)
    result = reduced(g, src, axes, alg)
    # oneDNN's max and min lose a NaN or keep it, depending on its position
    if alg in ("max", "min") and result is not src and keeps_nan(g.graph):
        result = nan_where(g, result, reduced(g, is_nan(g, src), axes, "max"), result.shape)
    return g.reshape(result, out_shape)


@register_lowering("dnnl", ["relax.variance", "relax.std"])
def deviation(g: GraphBuilder, call: Any) -> Value:
    """Mean of the squared distances from the mean, over any axes, and its root."""
    src = g.value(call.args[0])
    require_float(call.op.name, src)
    axes = _axes(call, src)
    centred = g.binary("sub", src, mean_of_rows(g, src, axes), src.shape)
    out = mean_of_rows(g, g.eltwise(centred, "square"), axes)
    return g.reshape(g.eltwise(out, "sqrt") if call.op.name == "relax.std" else out, g.shape_of(call.ty))


def reduced(g: GraphBuilder, src: Value, axes: Collection[int], alg: str) -> Value:
    """``src`` reduced over ``axes``, which are kept with size 1; itself where they have that already."""
    kept = [1 if i in axes else d for i, d in enumerate(src.shape)]
    return src if tuple(kept) == src.shape else g.emit("reduction", [src], kept, alg=alg, p=0.0, epsilon=0.0)


def _axes(call: Any, src: Value) -> list[int]:
    axis = call.attrs.axis
    axes = sorted(range(src.ndim) if axis is None else (a % src.ndim for a in ints(axis)))
    require(bool(axes), "a reduction over no axis")
    return axes


def _is_spatial(src: Value, axes: list[int]) -> bool:
    """Whether it is a pooling with one window, which adds up its pixels in float32: not too many of them."""
    is_image = 3 <= src.ndim <= 5 and axes == list(range(2, src.ndim)) and src.is_static and 0 not in src.shape
    return is_image and math.prod(d for d in src.shape[2:] if isinstance(d, int)) <= _MANY_PIXELS
