"""Normalisation: batch, layer, LRN."""

from __future__ import annotations

from typing import Any

from ...lower.builder import GraphBuilder, Value
from ...registry import register_lowering
from ...verdict import require
from .common import ints, product, require_float

__all__: list[str] = []


@register_lowering("dnnl", "relax.nn.batch_norm")
def batch_norm(g: GraphBuilder, call: Any) -> tuple[Value, Value, Value]:
    """Inference with given statistics, over any axis."""
    attrs = call.attrs
    src, gamma, beta, mean, variance = (g.value(a) for a in call.args)
    require_float(call.op.name, src, gamma, beta, mean, variance)
    require(not attrs.training, "batch_norm in training mode computes its statistics")
    require(bool(attrs.scale) and bool(attrs.center), "batch_norm without scale or without center")
    require(src.ndim >= 2, f"batch_norm of rank {src.ndim}")
    axis = int(attrs.axis) % src.ndim
    order = [0, axis, *(i for i in range(1, src.ndim) if i != axis)] if axis else [1, 0, *range(2, src.ndim)]
    moved = g.permute(src, order)
    out = g.emit("batch_normalization", [moved, gamma, beta, mean, variance], moved.shape, epsilon=float(attrs.epsilon))
    return g.permute(out, [order.index(i) for i in range(src.ndim)]), mean, variance


@register_lowering("dnnl", "relax.nn.layer_norm")
def layer_norm(g: GraphBuilder, call: Any) -> Value:
    """Layer normalisation over one axis or several that are the last ones."""
    attrs = call.attrs
    src, gamma, beta = (g.value(a) for a in call.args)
    require_float(call.op.name, src, gamma, beta)
    require(bool(attrs.scale) and bool(attrs.center), "layer_norm without scale or without center")
    axes = sorted(a % src.ndim for a in ints(attrs.axes))
    require(axes == list(range(src.ndim - len(axes), src.ndim)), f"layer_norm over axes {axes} of rank {src.ndim}")
    width = product([src.shape[a] for a in axes])
    rows = src.shape[: src.ndim - len(axes)]
    flat = g.reshape(src, (*rows, width) if rows else (1, width))
    gamma, beta = g.reshape(gamma, (width,)), g.reshape(beta, (width,))
    out = g.emit("layer_normalization", [flat, gamma, beta], flat.shape, epsilon=float(attrs.epsilon))
    return g.reshape(out, src.shape)
