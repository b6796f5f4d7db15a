"""Convolution and transposed convolution, 1-D to 3-D."""

from __future__ import annotations

from typing import Any

from ...vendor import GraphBuilder, PortableGraph, Value, dtype_of, register_lowering, require
from .common import algorithm, canonical_layout, from_layout, ints, option, require_float, size_of, to_layout


def _algorithm(graph: PortableGraph) -> dict[str, str]:
    """The attribute ``alg`` that says what the user's options say; none for the defaults."""
    tile = option(graph, "winograd_tile")
    if not option(graph, "fast_convolution"):
        return {"alg": "direct"}
    return {"alg": "winograd_2x2"} if tile == 2 else algorithm(graph)


def _split_groups(g: GraphBuilder, weights: Value, groups: int) -> Value:
    """``[G·A, B, k…]`` → ``[G, A, B, k…]``."""
    first, *rest = weights.shape
    channels = size_of(first, f"weights of symbolic shape {weights.shape}")
    return g.reshape(weights, (groups, channels // groups, *rest))


def _lower(g: GraphBuilder, call: Any, kind: str, weight_order: str) -> Value:
    op, attrs = call.op.name, call.attrs
    src, weights = g.operands(call)
    require_float(op, src, weights)
    require(all(isinstance(d, int) for d in weights.shape), f"weights of symbolic shape {weights.shape}")
    data_layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    out_layout = str(attrs.out_layout) or data_layout
    canonical = canonical_layout(data_layout, "NC")
    spatial = len(canonical) - 2
    src = to_layout(g, src, data_layout, canonical)
    require(isinstance(src.shape[1], int), f"a source of symbolic shape {src.shape}, whose channels are open")
    weights = to_layout(g, weights, kernel_layout, canonical_layout(kernel_layout, weight_order))
    groups = int(attrs.groups)
    if groups > 1:
        weights = _split_groups(g, weights, groups)
    if kind == "deconvolution":  # oneDNN wants [G,] O, I
        lead = weights.ndim - spatial - 2
        weights = g.permute(weights, [*range(lead), lead + 1, lead, *range(lead + 2, weights.ndim)])
    padding = ints(attrs.padding)
    pad_end = padding[spatial:]
    if kind == "deconvolution":  # output padding is less padding at the end
        pad_end = [p - more for p, more in zip(pad_end, ints(attrs.output_padding), strict=True)]
    shape = from_layout(g.shape_of(call.ty), out_layout, canonical)
    node: dict[str, Any] = {
        "strides": ints(attrs.strides),
        "dilations": ints(attrs.dilation),
        "pad_begin": padding[:spatial],
        "pad_end": pad_end,
    }
    if kind == "convolution":
        node.update(_algorithm(g.graph))
    out = g.emit(kind, [src, weights], shape, dtype_of(call.ty), **node)
    return to_layout(g, out, canonical, out_layout)


@register_lowering("dnnl", ["relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"])
def convolution(g: GraphBuilder, call: Any) -> Value:
    """Convolution with groups, dilation and asymmetric padding, in any unblocked layout."""
    return _lower(g, call, "convolution", "OI")


@register_lowering("dnnl", ["relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose", "relax.nn.conv3d_transpose"])
def deconvolution(g: GraphBuilder, call: Any) -> Value:
    """Transposed convolution; output padding is less padding at the end."""
    return _lower(g, call, "deconvolution", "IO")
