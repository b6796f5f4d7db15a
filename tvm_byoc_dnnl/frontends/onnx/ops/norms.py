"""Normalisations, softmax and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim, product
from ..emit import Emit, common
from ..table import operator
from ..value import Node, Value
from .moving import places_along
from .runtime_others import channels_first, channels_last, plus
from .shapes import flat_sizes

_NARROW = ("float16", "bfloat16")


def _per_channel(e: Emit, x: Value, rank: int) -> Value:
    return e.call(relax.op.reshape, x, shape=[-1, *[1] * (rank - 2)])


def _of_channels(e: Emit, data: Value, *vectors: Value) -> list[Value]:
    """Data, and vectors with one number for each channel: an open number of them is that of the others."""
    channels = common([data.sizes[1], *(v.sizes[0] for v in vectors)])
    return [e.agree(data, [data.sizes[0], channels, *data.sizes[2:]]), *(e.agree(v, [channels]) for v in vectors)]


@operator("BatchNormalization")
def _batch_norm(e: Emit, node: Node) -> Any:
    """Before opset 14 the other results say that the model is trained."""
    data, *vectors = (node.needed(i) for i in range(5))
    epsilon, momentum, spatial = (node.attr(*a) for a in (("epsilon", 1e-5), ("momentum", 0.9), ("spatial", 1)))
    if spatial:
        data, *vectors = _of_channels(e, data, *vectors)
    node.unused("is_test")
    training = bool(node.attr("training_mode", 0)) if node.opset >= 14 else any(node.wanted[1:])
    own, given = data.dtype, [data, *vectors]
    wide = own if len({v.dtype for v in given}) == 1 and not (training and own in _NARROW) else "float32"
    x, scale, bias, old_mean, old_variance = given = [e.cast(v, wide) for v in given]
    if not training and spatial:
        made = e.batch_norm(*given, axis=1, epsilon=epsilon, momentum=momentum, training=False)
        return e.cast(e.value(relax.TupleGetItem(made.expr, 0)), own)
    rank, old = len(node.needed(0).sizes), [old_mean, old_variance]
    axes = [0, *(range(2, rank) if spatial else ())]
    new = [e.mean(x, axis=axes), e.variance(x, axis=axes)] if training else old
    used = [_per_channel(e, v, rank) if spatial else v for v in (*new, scale, bias)]
    y = e.cast(_normalised(e, x, epsilon, *used), own)
    if not training:
        return y
    running = [a * momentum + b * (1.0 - momentum) for a, b in zip(old, new, strict=True)]
    results = [e.cast(r, like.dtype) for r, like in zip(running, vectors[2:], strict=True)]
    saved = [e.cast(v, vectors[2].dtype) for v in new] if node.opset < 14 else []
    return [y, *results, *saved][: len(node.wanted)]


def _moments(e: Emit, x: Value, axes: list[int]) -> tuple[Value, Value]:
    return e.mean(x, axis=axes, keepdims=True), e.variance(x, axis=axes, keepdims=True)


def _normalised(e: Emit, x: Value, epsilon: float, mean: Value, variance: Value, scale: Value, bias: Value) -> Value:
    return (x - mean) / e.sqrt(variance + epsilon) * scale + bias


@operator("InstanceNormalization")
def _instance_norm(e: Emit, node: Node, data: Value, scale: Value, bias: Value, *, epsilon: float = 1e-05) -> Any:
    rank = len(data.sizes)
    data, scale, bias = _of_channels(e, data, scale, bias)
    mean, variance = _moments(e, data, list(range(2, rank)))
    return _normalised(e, data, epsilon, mean, variance, *(_per_channel(e, v, rank) for v in (scale, bias)))


@operator("GroupNormalization", since=18)
def _group_norm(e: Emit, node: Node, x: Value, scale: Value, bias: Value, *, num_groups: int = 1) -> Any:
    """Scale and shift are those of groups in opset 18, and of channels since 21."""
    if node.opset >= 21:
        x, scale, bias = _of_channels(e, x, scale, bias)
    rank, own, channels = len(x.sizes), x.dtype, x.sizes[1]
    epsilon, is_open = node.attr("epsilon", 1e-5), isinstance(channels, Dim)
    of_groups = node.opset < 21 and is_open
    if node.opset < 21 and not is_open:
        wide = [num_groups, channels // num_groups]
        scale, bias = (e.reshape(e.expand(e.reshape(v, [num_groups, 1]), wide), [channels]) for v in (scale, bias))
    if (node.attr("stash_type", 1) != 1 or own not in _NARROW) and not is_open:
        how: dict[str, Any] = {"channel_axis": 1, "axes": list(range(2, rank)), "epsilon": epsilon}
        return e.group_norm(x, scale, bias, num_groups=num_groups, **how)
    real = "float64" if own == "float64" else "float32"
    rows = e.reshape(e.cast(x, real), [x.sizes[0], num_groups, product(x.sizes[1:]) // num_groups])
    affine = [
        e.cast(v, real) if of_groups else e.const(np.full(num_groups, n, real)) for v, n in ((scale, 1), (bias, 0))
    ]
    core = e.cast(e.reshape(e.onnx("InstanceNormalization", rows, *affine, opset=6, epsilon=epsilon), x.sizes), own)
    if of_groups:
        return core
    scale, bias = (_per_channel(e, v, rank) for v in (scale, bias))
    return core * scale + bias


@operator("LayerNormalization", since=17)
def _layer_norm(e: Emit, node: Node, data: Value, scale: Value, bias: Value | None = None) -> Any:
    rank, epsilon = len(data.sizes), node.attr("epsilon", 1e-5)
    axes = list(range(node.attr("axis", -1) % rank, rank))
    wide = "float32" if node.attr("stash_type", 1) == 1 else data.dtype
    if 0 in data.sizes and not any(node.wanted[1:]):  # TVM divides by the sizes
        return data
    given = [data, scale, *([] if bias is None else [bias])]
    data, scale, *rest = e.equalised(given, lambda axis: axis >= axes[0] - rank)
    bias = rest[0] if rest else None
    own = _parameters(e, list(data.sizes[axes[0] :]), [scale, e.const(0, scale.dtype) if bias is None else bias])
    if own is not None:
        y = e.layer_norm(data, *own, axes=[a - rank for a in axes], epsilon=epsilon)
        if not any(node.wanted[1:]):
            return y
    x = e.cast(data, wide)
    mean, variance = _moments(e, x, axes)
    inverse = e.rsqrt(variance + epsilon)
    if own is None:
        y = e.cast((x - mean) * inverse, data.dtype) * scale
        y = y if bias is None else y + bias
    return [y, mean, inverse][: len(node.wanted)]


def _parameters(e: Emit, sizes: list[Any], given: list[Value]) -> list[Value] | None:
    """Parameters of a normalisation over axes of these sizes; ``None`` if they have more axes, or sizes are open."""
    if any(isinstance(s, Dim) for s in sizes) or any(v.rank is None or v.rank > len(sizes) for v in given):
        return None
    return [
        e.expand(v, sizes)
        if v.shape == tuple(sizes) or not v.is_constant
        else e.const(np.ascontiguousarray(np.broadcast_to(v.known, sizes)))  # type: ignore[arg-type]
        for v in given
    ]


@operator("RMSNormalization", since=23, whole=True)
def _rms_norm(e: Emit, x: Value, scale: Value, *, stash_type: int = 1, axis: int = -1, epsilon: float = 1e-5) -> Value:
    """The result has the type of the scale."""
    if x.dtype != scale.dtype:
        ones = e.const(np.ones(()), x.dtype)
        return e.cast(rms_norm(e, x, ones, axis, epsilon, stash_type == 1), scale.dtype) * scale
    return rms_norm(e, x, scale, axis, epsilon, stash_type == 1)


def rms_norm(e: Emit, data: Value, scale: Value, axis: int, epsilon: float, is_wide: bool = True) -> Value:
    """Divided by the root of the mean square of the last axes, and scaled; ``is_wide``: at least in float32.

    TVM cannot compile one over all axes: an axis of 1 is put in front.
    """
    own, dims, rank = data.dtype, data.sizes, len(data.sizes)
    axis %= rank
    wide = "float32" if is_wide and own in _NARROW else own
    x = e.cast(data, wide)
    if axis == 0:
        x = e.reshape(x, [1, *dims])
    axes = [a - rank for a in range(axis, rank)]
    parameters = _parameters(e, list(dims[axis:]), [e.cast(scale, wide)])
    if parameters is not None:
        made = e.cast(e.rms_norm(x, *parameters, axes=axes, epsilon=epsilon), own)
    else:
        made = e.cast(x / e.sqrt(e.mean(x * x, axis=axes, keepdims=True) + epsilon), own) * scale
    return e.reshape(made, dims)


@operator("MeanVarianceNormalization", since=9)
def _mean_variance(e: Emit, data: Value, *, axes: Any = (0, 2, 3)) -> Any:
    mean, variance = _moments(e, data, list(axes))
    return (data - mean) / (e.sqrt(variance) + 1e-9)


@operator("LRN")
def _lrn(e: Emit, x: Value, *, size: int = 1, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    rank, squares = len(x.sizes), x * x
    flat = 2 if rank == 4 else 1  # axes behind the channels
    is_plain = rank in (3, 4)
    wide = e.expand_dims(squares, axis=1) if is_plain else [x.sizes[0], 1, x.sizes[1], product(x.sizes[2:])]
    mean = e.call(
        relax.op.nn.avg_pool3d if flat == 2 else relax.op.nn.avg_pool2d,
        wide if isinstance(wide, Value) else e.reshape(squares, wide),
        pool_size=[size, *[1] * flat],
        strides=[1] * (flat + 1),
        padding=[(size - 1) // 2, *[0] * flat, size // 2, *[0] * flat],
        ceil_mode=False,
        count_include_pad=True,
        layout="NCDHW" if flat == 2 else "NCHW",
    )
    mean = e.squeeze(mean, axis=1) if is_plain else e.reshape(mean, x.sizes)
    return x / e.power(mean * alpha + bias, beta)


@operator("LpNormalization")
def _lp_normalization(e: Emit, x: Value, *, axis: int = -1, p: int = 2) -> Any:
    """``x / ‖x‖`` along one axis; 0 where the norm is 0."""
    total = e.sum(abs(x) if p == 1 else x * x, axis=[axis % len(x.sizes)], keepdims=True)
    norm = total if p == 1 else e.sqrt(total)
    return e.where(e.equal(norm, 0), 0, x / norm)


@operator("Dropout")
def _dropout(e: Emit, node: Node, data: Value, ratio: Value | None = None, training: Value | None = None) -> Any:
    node.unused("ratio", "is_test", "seed")
    if training is not None and node.opset >= 12:
        is_off = training.known is not None and not training.known.any()
        keeps_all = ratio is not None and ratio.known is not None and not ratio.known.any()
        if not is_off and not keeps_all:
            how = "in training mode" if training.known is not None else "whose training_mode only a call knows"
            raise node.refused(f"is {how}, and drops elements at random")
    if not any(node.wanted[1:]):
        return data
    dtype = "bool" if node.opset >= 10 else data.dtype
    return [data, e.full(e.shape(data.sizes), e.const(1, dtype), dtype=dtype)]


_SOFTMAX = {"Softmax": relax.op.nn.softmax, "LogSoftmax": relax.op.nn.log_softmax}


@operator("Softmax", "LogSoftmax", "Hardmax", since=13)
def _softmax(e: Emit, node: Node, x: Value, *, axis: int = -1) -> Any:
    return _along(e, node, x, axis % max(len(x.sizes), 1))


@operator("Softmax", "LogSoftmax", "Hardmax", since=1)
def _flattened_softmax(e: Emit, node: Node, data: Value, *, axis: int = 1) -> Any:
    """Over all axes from one on."""
    rank = len(data.sizes)
    axis = axis % rank if axis != rank else axis
    behind = [d for d in data.sizes[axis + 1 :] if d != 1]
    if not behind and axis < rank:
        return _along(e, node, data, axis)
    return e.reshape(_along(e, node, e.reshape(data, flat_sizes(data, axis)), 1), data.sizes)


def _along(e: Emit, node: Node, data: Value, axis: int) -> Value:
    if node.op in _SOFTMAX:
        return e.call(_SOFTMAX[node.op], data, axis=axis)
    first = e.onnx("ArgMax", data, opset=13, axis=axis, keepdims=1)
    return e.cast(e.equal(first, places_along(e, data.sizes[axis], axis, len(data.sizes))), data.dtype)


# ---- norms of ONNX Runtime: with statistics, or of a sum --------------------------------------------------
_MS = "com.microsoft"


def _inverse(e: Emit, x: Value, axes: Sequence[int], epsilon: float, *, centred: bool) -> tuple[Value, Value]:
    """The mean, and 1 over the root of the mean square of what is left of it (or of all), float32."""
    wide = e.cast(x, "float32")
    mean = e.mean(wide, axis=list(axes), keepdims=True)
    rest = wide - mean if centred else wide
    square = e.mean(rest * rest, axis=list(axes), keepdims=True)
    return mean, e.const(1.0, "float32") / e.sqrt(square + epsilon)


@operator("SimplifiedLayerNormalization", whole=True)
def _root_mean_square(
    e: Emit, node: Node, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5
) -> list[Value | None]:
    node.unused("stash_type")
    rank, inverse = len(x.sizes), None
    if any(node.wanted[1:]):
        _, inverse = _inverse(e, x, range(axis % rank, rank), epsilon, centred=False)
    return [rms_norm(e, x, scale, axis, epsilon), inverse]


@operator("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=_MS, whole=True)
def _skip_norm(e: Emit, node: Node, x: Value, *, epsilon: float = 1e-12) -> list[Value | None]:
    is_centred, scale = node.op == "SkipLayerNormalization", node.needed(2)
    total = plus(x + node.needed(1), node.input(4 if is_centred else 3))
    if is_centred:
        out = _normalised_layer(e, total, scale, node.input(3), epsilon)
    else:
        out = rms_norm(e, total, scale, -1, epsilon)
    statistics = _inverse(e, total, [-1], epsilon, centred=is_centred) if any(node.wanted[1:3]) else (None, None)
    return [out, *statistics, total]


def _normalised_layer(e: Emit, x: Value, gamma: Value, beta: Value | None, epsilon: float) -> Value:
    parameters = [gamma] if beta is None else [gamma, beta]
    width = common([x.sizes[-1], *(v.sizes[0] for v in parameters)])
    x, gamma, *rest = (e.agree(v, [*v.sizes[:-1], width]) for v in (x, *parameters))
    beta = rest[0] if rest else e.expand(e.const(np.zeros(1), gamma.dtype), [width])
    return e.layer_norm(x, gamma, beta, axes=[-1], epsilon=epsilon)


@operator("EmbedLayerNormalization", domain=_MS, whole=True)
def _embed_norm(e: Emit, node: Node) -> list[Value | None]:
    ids, words, places = (node.needed(i) for i in (0, 2, 3))
    segments, parts, mask, positions = (node.input(i) for i in (1, 4, 7, 8))
    node.unused("mask_index_type")
    batch, length = ids.sizes
    total = e.take(words, e.cast(ids, "int64"), axis=0)
    if positions is None:
        rows = e.reshape(e.take(places, e.places(length), axis=0), [1, length, places.sizes[1]])
    else:
        rows = e.take(places, e.cast(positions, "int64"), axis=0)
    total = total + rows
    if parts is not None and segments is not None:
        total = total + e.take(parts, e.cast(segments, "int64"), axis=0)
    out = _normalised_layer(e, total, node.needed(5), node.needed(6), float(node.attr("epsilon", 1e-12)))
    ends = None
    if len(node.wanted) > 1 and node.wanted[1]:
        nothing = e.expand(e.const(np.zeros(1, "int32")), [batch])
        ends = nothing if mask is None else e.sum(e.cast(e.equal(mask, 1), "int32"), axis=[1])
    return [out, ends, total]


@operator("SkipGroupNorm", domain=_MS, whole=True)
def _skip_group_norm(e: Emit, node: Node, x: Value) -> list[Value | None]:
    skip, bias = node.needed(3), node.input(4)
    dims = x.sizes
    if skip.rank == 2:
        skip = e.reshape(skip, [dims[0], 1, 1, dims[3]])
    total = plus(x + skip, bias)
    return [_grouped(e, node, total), total]


@operator("GroupNorm", domain=_MS, whole=True)
def _grouped(e: Emit, node: Node, x: Value) -> Value:
    is_last = node.attr("channels_last", 1)
    moved = channels_first(e, x) if is_last else x
    gamma, beta = (e.cast(node.needed(i), x.dtype) for i in (1, 2))
    groups, epsilon = int(node.attr("groups")), float(node.attr("epsilon", 1e-5))
    out = e.group_norm(moved, gamma, beta, num_groups=groups, channel_axis=1, axes=[2, 3], epsilon=epsilon)
    if node.attr("activation", 0):
        out = e.silu(out)
    return channels_last(e, out) if is_last else out
