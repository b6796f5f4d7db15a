"""Normalisation: batch, layer, group, instance, RMS.

oneDNN 3.2 normalises over channels (with given statistics) and over the last axis. Every other form is rewritten to
the latter: the elements that are normalised together become the last axis of a view, and a scale per channel follows as
an operation of its own.

    group_norm    (N, C, H, W) ── reshape (N, G, C/G·H·W) ── layer_normalization ── reshape ── mul γ, add β
    rms_norm      x ── rms_normalization, over the last axes; over others
                  x ──┬── square ── mean ── (· + ε)^-½ ──┐
                      └─────────────────────────────── mul ── mul weight
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...vendor import Dim, GraphBuilder, Reject, Value, register_lowering, require
from .common import ints, product, require_float
from .reduce import reduced

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
    """Layer normalisation over any axes."""
    src, gamma, beta = _operands(g, call)
    axes = _axes(call, src)
    order = _last(axes, src.ndim)
    moved = g.permute(src, order)
    affine = [] if _is_all(gamma, 1) and _is_all(beta, 0) else [gamma, beta]
    return _back(g, _over_last(g, moved, len(axes), affine, float(call.attrs.epsilon)), order)


@register_lowering("dnnl", "relax.nn.group_norm")
def group_norm(g: GraphBuilder, call: Any) -> Value:
    """Group normalisation, the channels in any place."""
    return _grouped(g, call, int(call.attrs.num_groups))


@register_lowering("dnnl", "relax.nn.instance_norm")
def instance_norm(g: GraphBuilder, call: Any) -> Value:
    """Instance normalisation: each channel is a group."""
    return _grouped(g, call, None)


@register_lowering("dnnl", "relax.nn.rms_norm")
def rms_norm(g: GraphBuilder, call: Any) -> Value:
    """Root-mean-square normalisation over any axes, in float32 whatever the operands are."""
    src, weight = (g.value(a) for a in call.args[:2])
    require_float(call.op.name, src, weight)
    axes = _axes(call, src)
    wide = _as(g, src, "float32")
    epsilon = float(call.attrs.epsilon)
    scale = [] if _is_all(weight, 1) else [_as(g, weight, "float32")]
    if axes == list(range(src.ndim - len(axes), src.ndim)):
        flat = (product(src.shape[: -len(axes)]), product(src.shape[-len(axes) :]))
        operands = [g.reshape(wide, flat), *(g.reshape(s, flat[1:]) for s in scale)]
        return _as(g, g.reshape(g.emit("rms_normalization", operands, flat, epsilon=epsilon), src.shape), src.dtype)
    squares = reduced(g, g.eltwise(wide, "square"), axes, "mean")
    inverse = g.eltwise(g.eltwise(squares, "linear", 1, epsilon), "pow", 1, -0.5)
    out = g.binary("mul", wide, inverse, src.shape)
    for factor in scale:
        spread = [d if i in axes else 1 for i, d in enumerate(src.shape)]
        out = g.binary("mul", out, g.reshape(factor, spread), src.shape)
    return _as(g, out, src.dtype)


def _operands(g: GraphBuilder, call: Any) -> tuple[Value, Value, Value]:
    src, gamma, beta = (g.value(a) for a in call.args)
    require_float(call.op.name, src, gamma, beta)
    name = call.op.name.rpartition(".")[2]
    both = bool(call.attrs.scale) and bool(call.attrs.center)
    require(both, f"{name} without scale or without center: TVM computes with both, whatever the attributes say")
    return src, gamma, beta


def _axes(call: Any, src: Value) -> list[int]:
    """The axes that are normalised together."""
    given = [a % src.ndim for a in ints(call.attrs.axes)]
    require(bool(given) and given == sorted(set(given)), f"normalisation over axes {given}, which do not ascend")
    for axis in given:
        require(src.shape[axis] != 0, f"normalisation over the empty axis {axis}")
    return given


def _last(axes: Sequence[int], rank: int) -> list[int]:
    """The order of axes that has these ones last."""
    return [*(i for i in range(rank) if i not in axes), *axes]


def _back(g: GraphBuilder, value: Value, order: Sequence[int]) -> Value:
    """``value``, whose axes are permuted by ``order``, with its axes in the original order."""
    return g.permute(value, [order.index(i) for i in range(len(order))])


def _over_last(g: GraphBuilder, src: Value, count: int, affine: Sequence[Value], epsilon: float) -> Value:
    """Layer normalisation over the last ``count`` axes, with a scale and a shift of their shape or without."""
    lead, width = src.shape[: src.ndim - count], product(src.shape[src.ndim - count :])
    flat = g.reshape(src, (*lead, width) if lead else (1, width))
    operands = [flat, *(g.reshape(v, (width,)) for v in affine)]
    return g.reshape(g.emit("layer_normalization", operands, flat.shape, epsilon=epsilon), src.shape)


def _grouped(g: GraphBuilder, call: Any, groups: int | None) -> Value:
    """Normalisation of groups of channels (by default of each), then a scale and a shift per channel."""
    src, gamma, beta = _operands(g, call)
    axes, channel = _axes(call, src), int(call.attrs.channel_axis) % src.ndim
    channels = src.shape[channel]
    require(channel not in axes, f"normalisation over axes {axes}, of which {channel} is the channels")
    parts, each = _groups(channels, groups)
    order = _last([channel, *axes], src.ndim)
    moved = g.permute(src, order)
    at = order.index(channel)
    split = g.reshape(moved, (*moved.shape[:at], parts, each, *moved.shape[at + 1 :]))
    out = g.reshape(_over_last(g, split, len(axes) + 1, [], float(call.attrs.epsilon)), moved.shape)
    per_channel = [channels if i == at else 1 for i in range(src.ndim)]
    for alg, operand, neutral in (("mul", gamma, 1), ("add", beta, 0)):
        if not _is_all(operand, neutral):
            out = g.binary(alg, out, g.reshape(operand, per_channel), out.shape)
    return _back(g, out, order)


def _groups(channels: Dim, groups: int | None) -> tuple[Dim, Dim]:
    """The number of groups, and the channels in each."""
    if groups is None:
        return channels, 1
    if not isinstance(channels, int) or channels % groups:
        raise Reject(f"{groups} groups of {channels} channels")
    return groups, channels // groups


def _is_all(value: Value, number: float) -> bool:
    """Whether it is a constant that holds nothing else."""
    constant = value.constant
    return constant is not None and bool((constant == number).all())


def _as(g: GraphBuilder, value: Value, dtype: str) -> Value:
    return value if value.dtype == dtype else g.emit("reorder", [value], value.shape, dtype)
