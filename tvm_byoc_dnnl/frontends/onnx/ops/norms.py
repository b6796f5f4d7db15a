"""Normalisations, softmax and dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim, product
from ..emit import Emit
from ..table import operator
from ..value import Node, Value

_NARROW = ("float16", "bfloat16")


def _per_channel(e: Emit, x: Value, rank: int) -> Value:
    """A vector along axis 1."""
    return e.call(relax.op.reshape, x, shape=[-1, *[1] * (rank - 2)])


def _in(e: Emit, dtype: str, *values: Value) -> list[Value]:
    return [e.cast(v, dtype) for v in values]


# ---- batch ------------------------------------------------------------------------------------------------


@operator("BatchNormalization")
def _batch_norm(e: Emit, node: Node) -> Any:
    """Before opset 14 the other results say that the model is trained."""
    data, scale, bias, mean, variance = (node.needed(i) for i in range(5))
    epsilon, momentum = node.attr("epsilon", 1e-5), node.attr("momentum", 0.9)
    spatial = node.attr("spatial", 1)
    for name in ("is_test", "consumed_inputs"):
        node.attr(name)
    training = bool(node.attr("training_mode", 0)) if node.opset >= 14 else any(node.wanted[1:])
    dtypes = {v.dtype for v in (data, scale, bias, mean, variance)}
    own = data.dtype
    wide = own if len(dtypes) == 1 and not (training and own in _NARROW) else "float32"
    x, scale, bias, old_mean, old_variance = _in(e, wide, data, scale, bias, mean, variance)
    if not training and spatial:
        made = e.bb.emit(
            relax.op.nn.batch_norm(
                *(e.tensor(v) for v in (x, scale, bias, old_mean, old_variance)),
                axis=1,
                epsilon=epsilon,
                momentum=momentum,
                training=False,
            )
        )
        return e.cast(e.value(relax.TupleGetItem(made, 0)), own)
    rank = len(node.needed(0).sizes)
    axes = [0, *(range(2, rank) if spatial else ())]
    if training:
        new_mean, new_variance = (e.call(f, x, axis=axes) for f in (relax.op.mean, relax.op.variance))
    else:
        new_mean, new_variance = old_mean, old_variance
    if spatial:
        used = [_per_channel(e, v, rank) for v in (new_mean, new_variance, scale, bias)]
    else:
        used = [new_mean, new_variance, scale, bias]
    y = e.cast(_normalised(e, x, epsilon, *used), own)
    if not training:
        return y
    running = [
        old * momentum + new * (1.0 - momentum) for old, new in ((old_mean, new_mean), (old_variance, new_variance))
    ]
    results = [*(e.cast(r, like.dtype) for r, like in zip(running, (mean, variance), strict=True))]
    saved = [e.cast(v, mean.dtype) for v in (new_mean, new_variance)] if node.opset < 14 else []
    return [y, *results, *saved][: len(node.wanted)]


def _normalised(e: Emit, x: Value, epsilon: float, mean: Value, variance: Value, scale: Value, bias: Value) -> Value:
    root = e.sqrt(variance + epsilon)
    core = (x - mean) / root
    return core * scale + bias


# ---- instance, group --------------------------------------------------------------------------------------


@operator("InstanceNormalization")
def _instance_norm(e: Emit, node: Node, data: Value, scale: Value, bias: Value, *, epsilon: float = 1e-05) -> Any:
    rank = len(data.sizes)
    node.attr("consumed_inputs")
    axes = list(range(2, rank))
    mean, variance = (e.call(f, data, axis=axes, keepdims=True) for f in (relax.op.mean, relax.op.variance))
    return _normalised(e, data, epsilon, mean, variance, *(_per_channel(e, v, rank) for v in (scale, bias)))


@operator("GroupNormalization", since=18)
def _group_norm(e: Emit, node: Node) -> Any:
    """Scale and shift are those of groups in opset 18, and of channels since 21."""
    data, scale, bias = (node.needed(i) for i in range(3))
    groups, rank, own = node.attr("num_groups"), len(node.needed(0).sizes), data.dtype
    stash = node.attr("stash_type", 1)
    channels = data.sizes[1]
    if isinstance(channels, Dim):
        raise node.refused("has an open number of channels")
    if node.opset < 21:
        each = channels // groups
        scale, bias = (
            e.reshape(e.expand(e.reshape(v, [groups, 1]), [groups, each]), [channels]) for v in (scale, bias)
        )
    wide = "float32" if stash == 1 and own in _NARROW else own
    how = {"num_groups": groups, "channel_axis": 1, "axes": list(range(2, rank)), "epsilon": node.attr("epsilon", 1e-5)}
    if wide == own:
        return e.group_norm(data, scale, bias, **how)
    plain = [e.const(np.full(channels, v, wide)) for v in (1, 0)]
    core = e.cast(e.group_norm(e.cast(data, wide), *plain, **how), own)
    scale, bias = (_per_channel(e, v, rank) for v in (scale, bias))
    return core * scale + bias


# ---- layer ------------------------------------------------------------------------------------------------


@operator("LayerNormalization", since=17)
def _layer_norm(e: Emit, node: Node) -> Any:
    data, scale, bias = node.needed(0), node.needed(1), node.input(2)
    rank, epsilon = len(node.needed(0).sizes), node.attr("epsilon", 1e-5)
    axis = node.attr("axis", -1) % rank
    axes = list(range(axis, rank))
    wide = "float32" if node.attr("stash_type", 1) == 1 else data.dtype
    sizes = list(data.sizes[axis:])
    own = _parameters(e, sizes, [scale, e.const(0, scale.dtype) if bias is None else bias])
    if own is not None:
        y = e.layer_norm(data, *own, axes=[a - rank for a in axes], epsilon=epsilon)
    x = e.cast(data, wide) if own is None or any(node.wanted[1:]) else data
    if own is None or any(node.wanted[1:]):
        mean, variance = (e.call(f, x, axis=axes, keepdims=True) for f in (relax.op.mean, relax.op.variance))
        inverse = e.rsqrt(variance + epsilon)
    if own is None:
        core = e.cast((x - mean) * inverse, data.dtype)
        y = core * scale
        y = y if bias is None else y + bias
    return [y, mean, inverse][: len(node.wanted)] if any(node.wanted[1:]) else [y]


def _parameters(e: Emit, sizes: list[Any], given: list[Value]) -> list[Value] | None:
    """Parameters of a normalisation over axes of these sizes; ``None`` if they have more axes, or sizes are open."""
    if any(isinstance(s, Dim) for s in sizes) or any(v.rank is None or v.rank > len(sizes) for v in given):
        return None
    return [_repeated(e, v, sizes) for v in given]


def _repeated(e: Emit, given: Value, sizes: list[int]) -> Value:
    if given.shape == tuple(sizes) or not given.is_constant:
        return e.expand(given, sizes)
    return e.const(np.ascontiguousarray(np.broadcast_to(given.known, sizes)))  # type: ignore[arg-type]


@operator("RMSNormalization", since=23, types=lambda node: [node.needed(0).type], whole=True)
def _rms_norm(e: Emit, node: Node, x: Value, *, stash_type: int = 1, axis: int = -1, epsilon: float = 1e-05) -> Value:
    is_wide = stash_type == 1
    return rms_norm(e, x, node.needed(1), axis, epsilon, is_wide)


def rms_norm(e: Emit, data: Value, scale: Value, axis: int, epsilon: float, is_wide: bool = True) -> Value:
    """Divided by the root of the mean square of the last axes, and scaled; ``is_wide``: at least in float32.

    TVM cannot compile one over all axes: an axis of 1 is put in front.
    """
    own, dims = data.dtype, data.dims
    if dims is None:
        raise e.refused("needs data of a known rank")
    rank = len(dims)
    axis %= rank
    sizes = list(dims[axis:])
    wide = "float32" if is_wide and own in _NARROW else own
    x = e.cast(data, wide)
    if axis == 0:
        x = e.reshape(x, [1, *dims])
    axes = [a - rank for a in range(axis, rank)]
    parameters = _parameters(e, sizes, [e.cast(scale, wide)])
    if parameters is not None:
        made = e.cast(e.rms_norm(x, *parameters, axes=axes, epsilon=epsilon), own)
    else:
        square = e.mean(x * x, axis=axes, keepdims=True)
        core = x / e.sqrt(square + epsilon)
        made = e.cast(core, own) * scale
    return e.reshape(made, dims)


# ---- others -----------------------------------------------------------------------------------------------


@operator("MeanVarianceNormalization", since=9)
def _mean_variance(e: Emit, node: Node, data: Value) -> Any:
    axes = list(node.attr("axes") or (0, 2, 3))
    mean, variance = (e.call(f, data, axis=axes, keepdims=True) for f in (relax.op.mean, relax.op.variance))
    deviation = e.sqrt(variance) + 1e-9
    return (data - mean) / deviation


@operator("LRN")
def _lrn(e: Emit, node: Node) -> Any:
    data, size, rank = node.needed(0), node.attr("size"), len(node.needed(0).sizes)
    before, after = (size - 1) // 2, size // 2
    squares = data * data
    pool: Any = relax.op.nn.avg_pool3d if rank == 4 else relax.op.nn.avg_pool2d
    flat = 1 if rank == 3 else 2
    if rank in (3, 4):
        wide = e.expand_dims(squares, axis=1)
    else:
        flat = 1
        wide = e.reshape(squares, [data.sizes[0], 1, data.sizes[1], product(data.sizes[2:])])
    window = {
        "pool_size": [size, *[1] * flat],
        "strides": [1] * (flat + 1),
        "padding": [before, *[0] * flat, after, *[0] * flat],
        "ceil_mode": False,
        "count_include_pad": True,
    }
    mean = e.call(lambda x: pool(x, layout="NCDHW" if flat == 2 else "NCHW", **window), wide)
    mean = e.squeeze(mean, axis=1) if rank in (3, 4) else e.reshape(mean, data.sizes)
    scaled = mean * node.attr("alpha", 1e-4)
    below = e.power(scaled + node.attr("bias", 1.0), node.attr("beta", 0.75))
    return data / below


@operator("LpNormalization")
def _lp_normalization(e: Emit, data: Value, *, axis: int = -1, p: int = 2) -> Any:
    """``x / ‖x‖`` along one axis; 0 where the norm is 0."""
    rank = len(data.sizes)
    if p == 1:
        norm = e.sum(abs(data), axis=[axis % rank], keepdims=True)
    else:
        squares = data * data
        norm = e.sqrt(e.sum(squares, axis=[axis % rank], keepdims=True))
    zero = e.const(0, data.dtype)
    is_zero = e.equal(norm, zero)
    return e.where(is_zero, zero, data / norm)


@operator("Dropout")
def _dropout(e: Emit, node: Node, data: Value, ratio: Value | None = None, training: Value | None = None) -> Any:
    for name in ("ratio", "is_test", "seed", "consumed_inputs"):
        node.attr(name)
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


# ---- softmax ----------------------------------------------------------------------------------------------

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
    flat = e.reshape(data, [product(data.sizes[:axis]), product(data.sizes[axis:])])
    return e.reshape(_along(e, node, flat, 1), data.sizes)


def _along(e: Emit, node: Node, data: Value, axis: int) -> Value:
    if node.op in _SOFTMAX:
        return e.call(_SOFTMAX[node.op], data, axis=axis)
    size, rank = data.sizes[axis], len(data.sizes)
    first = e.argmax(data, axis=axis, keepdims=True)
    places = e.value(relax.op.arange(0, e.shape([size]).values[0], 1, "int64"))
    places = e.reshape(places, [size if i == axis else 1 for i in range(rank)])
    is_first = e.equal(first, places)
    return e.cast(is_first, data.dtype)
