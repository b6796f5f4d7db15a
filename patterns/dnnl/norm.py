"""Normalisation: batch, layer, group, instance, RMS; over neighbouring channels; softmax and log-softmax, over any
axis.

oneDNN 3.2 normalises over channels (with given statistics) and over the last axis. Every other form is rewritten to
the latter: the elements that are normalised together become the last axis of a view, and a scale per channel follows as
an operation of its own.

    group_norm    (N, C, H, W) ── reshape (N, G, C/G·H·W) ── layer_normalization ── reshape ── mul γ, add β
    rms_norm      x ── rms_normalization, over the last axes; over others
                  x ──┬── square ── mean ── (· + ε)^-½ ──┐
                      └─────────────────────────────── mul ── mul weight

    x ──┬── multiply(x, x) ── expand_dims ── avg_pool3d ── squeeze ── multiply(α) ── add(k) ── power(β) ──┐
        └──────────────────────────────────────────────────────────────────────────────────────────── divide

The window of the pooling is n channels and nothing else; each count includes the padding, as oneDNN's sum does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, wildcard

from ...vendor import Dim, GraphBuilder, Reject, Value, register_lowering, require
from .common import Match, floats, ints, number, pattern, product, require_float, require_shape
from .reduce import reduced


@register_lowering("dnnl", "relax.nn.batch_norm")
def batch_norm(g: GraphBuilder, call: Any) -> tuple[Value, Value, Value]:
    """Inference with given statistics, over any axis."""
    attrs = call.attrs
    src, gamma, beta, mean, variance = floats(g, call)
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
    src, weight = floats(g, call, 2)
    axes = _axes(call, src)
    wide = g.cast(src, "float32")
    epsilon = float(call.attrs.epsilon)
    scale = [] if _is_all(weight, 1) else [g.cast(weight, "float32")]
    if axes == list(range(src.ndim - len(axes), src.ndim)):
        flat = (product(src.shape[: -len(axes)]), product(src.shape[-len(axes) :]))
        operands = [g.reshape(wide, flat), *(g.reshape(s, flat[1:]) for s in scale)]
        out = g.emit("rms_normalization", operands, flat, epsilon=epsilon)
        return g.cast(g.reshape(out, src.shape), src.dtype)
    squares = reduced(g, g.eltwise(wide, "square"), axes, "mean")
    inverse = g.eltwise(g.eltwise(squares, "linear", 1, epsilon), "pow", 1, -0.5)
    out = g.binary("mul", wide, inverse, src.shape)
    for factor in scale:
        spread = [d if i in axes else 1 for i, d in enumerate(src.shape)]
        out = g.binary("mul", out, g.reshape(factor, spread), src.shape)
    return g.cast(out, src.dtype)


def _operands(g: GraphBuilder, call: Any) -> tuple[Value, Value, Value]:
    src, gamma, beta = floats(g, call)
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


def _window(match: Match) -> int:
    """The number of channels that the pooling averages."""
    attrs = match["pool"].attrs
    expand, squeeze = match["expand"].attrs, match["squeeze"].attrs
    require(
        ints(expand.axis) == [1] and squeeze.axis is not None and ints(squeeze.axis) == [1],
        "the channels are not brought to an axis of their own in front of them",
    )
    require(str(attrs.layout) == str(attrs.out_layout) == "NCDHW", f"pooling in layout {attrs.layout}")
    size, *others = ints(attrs.pool_size)
    require(others == [1, 1], f"pooling over a window of {size} channels and {others} positions")
    require(size % 2 == 1, f"a window of {size} channels; oneDNN's has a middle")
    around = size // 2
    wanted = [around, 0, 0, around, 0, 0]
    require(ints(attrs.padding) == wanted, f"pooling with padding {ints(attrs.padding)}, expected {wanted}")
    plain = ints(attrs.strides) == ints(attrs.dilation) == [1, 1, 1] and not attrs.ceil_mode
    require(plain, "pooling with strides or dilation")
    require(bool(attrs.count_include_pad), "an average that leaves out the padding")
    return size


def _lrn(g: GraphBuilder, match: Match) -> Value:
    """``x / (k + α·average(x²))^β`` over neighbouring channels."""
    require_shape(match)
    alpha, beta, k = (number(match, name) for name in ("alpha", "beta", "k"))
    attrs: dict[str, Any] = {"alg": "across_channels", "local_size": _window(match)}
    src = g.value(match["x"])
    require_float("lrn", src)
    return g.emit("lrn", [src], src.shape, **attrs, alpha=alpha, beta=beta, k=k)


def _register() -> None:
    x, alpha, k, beta = wildcard(), is_const(), is_const(), is_const()
    expand = is_op("relax.expand_dims")(is_op("relax.multiply")(x, x))
    pool = is_op("relax.nn.avg_pool3d")(expand)
    squeeze = is_op("relax.squeeze")(pool)
    scale = is_op("relax.add")(is_op("relax.multiply")(squeeze, alpha), k)
    root = is_op("relax.divide")(x, is_op("relax.power")(scale, beta))
    parts = {"x": x, "expand": expand, "pool": pool, "squeeze": squeeze, "alpha": alpha, "k": k, "beta": beta}
    # without AVX-512 oneDNN has it for whole blocks of channels only
    pattern("lrn", root, parts, _lrn, _lrn_example, (2, 16, 7, 5))


def _lrn_example(x: Any) -> Any:
    pool = R.nn.avg_pool3d(R.expand_dims(R.multiply(x, x), 1), (5, 1, 1), padding=(2, 0, 0) * 2, count_include_pad=True)
    alpha, k, beta = (relax.const(value, "float32") for value in (0.01, 1.5, 0.75))
    return R.divide(x, R.power(R.add(R.multiply(R.squeeze(pool, [1]), alpha), k), beta))


_register()

_ALGORITHMS = {"relax.nn.softmax": "accurate", "relax.nn.log_softmax": "log"}


@register_lowering("dnnl", list(_ALGORITHMS))
def softmax(g: GraphBuilder, call: Any) -> Value:
    """Softmax along one axis."""
    (src,) = floats(g, call, 1)
    axis = int(call.attrs.axis) % src.ndim
    return g.emit("softmax", [src], src.shape, alg=_ALGORITHMS[call.op.name], axis=axis)
