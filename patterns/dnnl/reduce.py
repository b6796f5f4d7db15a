"""Pooling, max and average, adaptive and global; reductions, and the two statistics that are made of them."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from tvm.relax import op as R
from tvm.relax.dpl import is_op, wildcard

from ...vendor import GraphBuilder, Value, register_lowering, require
from .common import (
    BYTES,
    Match,
    canonical_layout,
    floats,
    from_layout,
    ints,
    pattern,
    require_float,
    size_of,
    to_layout,
)
from .numerics import is_nan, keeps_nan, mean_of_rows, nan_where

#: the least float32; padding of this value never wins a maximum
_LOWEST = -3.4028234663852886e38

_MAX = [f"relax.nn.max_pool{d}d" for d in (1, 2, 3)]
_AVG = [f"relax.nn.avg_pool{d}d" for d in (1, 2, 3)]
_ADAPTIVE = [f"relax.nn.adaptive_avg_pool{d}d" for d in (1, 2, 3)]


def _emit(g: GraphBuilder, src: Value, shape: Any, alg: str, kernel: list[int], **attrs: Any) -> Value:
    n = len(kernel)
    defaults = {"strides": kernel, "dilations": [1] * n, "pad_begin": [0] * n, "pad_end": [0] * n}
    return g.emit("pooling", [src], shape, alg=alg, kernel=kernel, **{**defaults, **attrs})


@register_lowering("dnnl", _MAX + _AVG)
def pooling(g: GraphBuilder, call: Any) -> Value:
    """Max and average pooling; ``ceil_mode`` becomes padding at the end."""
    spatial = len(call.attrs.pool_size)
    return _pool(g, call, g.value(call.args[0]), [0] * spatial, [0] * spatial)


def _pool(g: GraphBuilder, call: Any, src: Value, before: list[int], after: list[int]) -> Value:
    """The pooling ``call`` of ``src``, with further padding that never wins a maximum."""
    attrs, op = call.attrs, call.op.name
    if op not in _MAX or src.dtype not in BYTES:  # the largest of some integers is one of them
        require_float(op, src)
    layout, out_layout = str(attrs.layout), str(attrs.out_layout) or str(attrs.layout)
    canonical = canonical_layout(layout, "NC")
    src = to_layout(g, src, layout, canonical)
    shape = from_layout(g.shape_of(call.ty), out_layout, canonical)
    kernel, strides, dilations = ints(attrs.pool_size), ints(attrs.strides), ints(attrs.dilation)
    padding, spatial = ints(attrs.padding), len(canonical) - 2
    pad_begin = [own + more for own, more in zip(padding[:spatial], before, strict=True)]
    pad_end = [own + more for own, more in zip(padding[spatial:], after, strict=True)]
    include = bool(attrs.count_include_pad)
    if attrs.ceil_mode:
        pad_end = _ceil_padding(src, shape, kernel, strides, dilations, pad_begin, pad_end, include and op in _AVG)
    for k, d, b, e, size in zip(kernel, dilations, pad_begin, pad_end, src.shape[2:], strict=True):
        extent = (k - 1) * d + 1
        require(
            b < extent and e < extent,
            f"padding {b},{e} reaches past the window of {extent}: it would be empty",
        )
        require(
            not isinstance(size, int) or extent <= size + b + e,
            f"a window of {extent} does not fit into {size} elements with padding {b},{e}",
        )
    alg = "max" if op in _MAX else "avg_include_padding" if include else "avg_exclude_padding"
    out = _emit(g, src, shape, alg, kernel, strides=strides, dilations=dilations, pad_begin=pad_begin, pad_end=pad_end)
    return to_layout(g, out, canonical, out_layout)


def _ceil_padding(
    src: Value,
    shape: list[Any],
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    begin: list[int],
    end: list[int],
    counts_padding: bool,
) -> list[int]:
    """Padding at the end with which floor mode gives the shape of ceil mode."""
    result = []
    for axis, (k, s, d, b, e) in enumerate(zip(kernel, strides, dilations, begin, end, strict=True)):
        size, out = src.shape[2 + axis], shape[2 + axis]
        needed = e + s - 1  # enough for every size
        if isinstance(size, int) and isinstance(out, int):
            needed = max(e, (out - 1) * s + (k - 1) * d + 1 - size - b)
        require(
            needed == e or not counts_padding,
            f"ceil_mode with count_include_pad: oneDNN would count {needed - e} padding elements that Relax does not",
        )
        result.append(needed)
    return result


@register_lowering("dnnl", _ADAPTIVE)
def adaptive_average(g: GraphBuilder, call: Any) -> Value:
    """Adaptive average pooling where every window has one size."""
    (src,) = floats(g, call, 1)
    layout = str(call.attrs.layout)
    out_layout = str(call.attrs.out_layout) or layout
    canonical = canonical_layout(layout, "NC")
    src = to_layout(g, src, layout, canonical)
    shape = from_layout(g.shape_of(call.ty), out_layout, canonical)
    kernel = []
    for size, out in zip(src.shape[2:], shape[2:], strict=True):
        size, out = (size_of(dim, "adaptive pooling with a symbolic shape") for dim in (size, out))
        require(out > 0 and size % out == 0, f"adaptive pooling of {size} to {out}: the windows differ in size")
        kernel.append(size // out)
    return to_layout(g, _emit(g, src, shape, "avg_exclude_padding", kernel), canonical, out_layout)


def global_average(g: GraphBuilder, src: Value) -> Value:
    """Mean over the spatial axes of ``N C …``, axes kept; pooling, unlike reduction, reads blocked layouts."""
    kernel = [d for d in src.shape[2:] if isinstance(d, int)]
    return _emit(g, src, (*src.shape[:2], *(1 for _ in kernel)), "avg_exclude_padding", kernel)


# ---------------------------------------------------------------- pad ── max_pool  ──>  max_pool with padding
def _padding(match: Match) -> tuple[list[int], list[int]]:
    """The padding before and after each spatial axis that a pad before a max_pool adds."""
    pad, pool = match["pad"].attrs, match["root"].attrs
    require(str(pad.pad_mode) == "constant", f"pad_mode {pad.pad_mode}; a max_pool's own padding is constant")
    value = float(pad.pad_value)
    require(value <= _LOWEST, f"padding with {value:g}, which can be the maximum")
    widths, layout = ints(pad.pad_width), str(pool.layout)
    pairs = dict(zip(layout, zip(widths[::2], widths[1::2], strict=True), strict=True))
    require(pairs["N"] == pairs["C"] == (0, 0), f"padding {widths} of the batch or the channels")
    require(min(widths) >= 0, f"negative padding {widths}")
    axes = canonical_layout(layout, "NC")[2:]
    return [pairs[a][0] for a in axes], [pairs[a][1] for a in axes]


def _padded_max_pool(g: GraphBuilder, match: Match) -> Value:
    """``max_pool(pad(x))`` where the padding never wins."""
    return _pool(g, match["root"], g.value(match["x"]), *_padding(match))


def _register(rank: int) -> None:
    def example(x: Any) -> Any:
        padded = R.nn.pad(x, [0, 0, 0, 0] + [1, 0] * rank, "constant", float("-inf"))
        return getattr(R.nn, f"max_pool{rank}d")(padded, (3,) * rank)

    x = wildcard()
    pad = is_op("relax.nn.pad")(x)
    root, shape = is_op(f"relax.nn.max_pool{rank}d")(pad), (2, 3, 7, 5, 6)[: 2 + rank]
    pattern(f"padded_max_pool{rank}d", root, {"x": x, "pad": pad}, _padded_max_pool, example, shape)


for _rank in (1, 2, 3):
    _register(_rank)

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
    (src,), alg = floats(g, call, 1), _ALGORITHMS[call.op.name]
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
    (src,) = floats(g, call, 1)
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
