"""Operators of ONNX Runtime: older forms of the standard's, sums of others, and others with activations in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dim import Dim, max_of
from ..emit import Emit, common, split_last
from ..table import operator
from ..value import Node, Value, listed
from .elementwise import softplus
from .quantised_blocks import product_types, shaped
from .shapes import flat_sizes

_MS = "com.microsoft"


_BECAME = {"GatherND": 12, "GridSample": 16, "LinearAttention": 27, "Pad": 13, "Range": 11, "Trilu": 14}


@operator(*_BECAME, domain=_MS)
def _standard(e: Emit, node: Node, x: Value) -> Value:
    step = [e.const(1, x.dtype)] if node.op == "Range" and len(node.inputs) < 3 else []
    attrs = _given(node, *node.attrs)
    if attrs.pop("state_window", 0):
        raise node.refused("has a `state_window`")
    return e.onnx(node.op, *node.inputs, *step, opset=_BECAME[node.op], outputs=len(node.wanted), **attrs)


# ---- of ONNX before version 7, and copies ------------------------------------------------------------------
operator("SampleOp", domain=_MS)(lambda _e, x: x)
operator("Affine")(lambda _e, x, *, alpha=1.0, beta=0.0: x * alpha + beta)
operator("ParametricSoftplus")(lambda e, x, *, alpha=0.3, beta=1.0: softplus(e, x * beta) * alpha)
operator("Scale")(lambda _e, x, *, scale=1.0: x * scale)
operator("ScaledTanh")(lambda e, x, *, alpha=1.0, beta=1.0: e.tanh(x * beta) * alpha)


@operator("ImageScaler")
def _image(e: Emit, x: Value, *, scale: float = 1.0, bias: Any = ()) -> Value:
    return x * scale + e.const(np.array(bias, "float32").reshape(-1, 1, 1), x.dtype)


@operator("ExpandDims", domain=_MS)
def _expand_dims(e: Emit, node: Node, x: Value) -> Value:
    return e.expand_dims(x, axis=node.ints(1, "its axis"))


@operator("ConvTransposeWithDynamicPads", domain=_MS)
def _conv_transpose(e: Emit, node: Node, x: Value) -> Value:
    attrs = _given(node, *node.attrs)
    if (pads := node.ints(2, "its pads")) is not None:
        attrs["pads"] = pads
    return e.onnx("ConvTranspose", x, node.needed(1), node.input(3), opset=11, **attrs)


@operator("ReduceSumInteger", domain=_MS)
def _sum(e: Emit, x: Value, *, axes: Any = (), keepdims: int = 1) -> Value:
    return e.sum(e.cast(x, "int32"), axis=list(axes), keepdims=bool(keepdims))


@operator("MulInteger", domain=_MS)
def _product(e: Emit, node: Node) -> Value:
    factors = [e.cast(node.needed(i), "int32") for i in (0, 2)]
    zeros = [node.input(i) for i in (1, 3)]
    a, b = (x if zero is None else x - e.cast(zero, "int32") for x, zero in zip(factors, zeros, strict=True))
    return a * b


@operator("CDist", domain=_MS)
def _distances(e: Emit, node: Node, a: Value, b: Value, *, metric: str = "sqeuclidean") -> Value:
    """Of each row of A and each of B."""
    (m, k), (n, other) = a.sizes, b.sizes
    apart = e.reshape(a, [m, 1, k]) - e.reshape(b, [1, n, other])
    square = e.sum(apart * apart, axis=[2])
    if metric not in ("euclidean", "sqeuclidean"):
        raise node.wrong(f"has the metric `{metric}`; expected euclidean or sqeuclidean")
    return e.sqrt(square) if metric == "euclidean" else square


@operator("ComplexMul", "ComplexMulConj", domain=_MS)
def _complex(e: Emit, node: Node, data: Value) -> Value:
    """Products of pairs along the last axis, the second perhaps conjugated."""
    (a, b), (c, d) = (split_last(e, x, [1, 1]) for x in (data, node.needed(1)))
    d = -d if node.op == "ComplexMulConj" else d
    return e.concat([a * c - b * d, a * d + b * c], -1)


@operator("NGramRepeatBlock", domain=_MS)
def _without_repeats(e: Emit, ids: Value, scores: Value, *, ngram_size: int) -> Value:
    """-∞ for the words behind which the last ``ngram_size`` words of a text were in it before."""
    length = ids.sizes[1]
    count = max_of(length - (ngram_size - 1), 0)
    if count == 0:
        return scores
    is_same = e.const(True, "bool")
    for i in range(ngram_size - 1):
        last = e.take(ids, listed(max_of(length - (ngram_size - 1), 0) + i), axis=1, mode="clip")
        is_same = is_same & e.equal(e.cut(ids, 1, i, count + i), last)
    words = e.cut(ids, 1, ngram_size - 1, count + ngram_size - 1)
    lowered = e.where(e.expand(is_same, words.sizes), e.const(-np.inf, scores.dtype), np.inf)
    return e.scatter_elements(scores, words, lowered, axis=1, reduction="min")


@operator("UnfoldTensor", domain=_MS)
def _unfolded(e: Emit, x: Value, *, size: int, dim: int = -1, step: int = 1) -> Value:
    """The parts of an axis, of which each begins ``step`` behind the one before, along a new last axis."""
    rank = len(x.sizes)
    axis = dim % rank
    count = (x.sizes[axis] - size) // step + 1
    places = e.reshape(e.places(count), [count, 1]) * e.const(step) + e.const(np.arange(size))
    return e.transpose(e.take(x, places, axis=axis), [a for a in range(rank + 1) if a != axis + 1] + [axis + 1])


@operator("Unique", domain=_MS)
def _unique(e: Emit, node: Node, x: Value) -> Any:
    if x.known is None or not x.is_constant:
        raise node.refused("has a result whose size depends on the numbers of a call")
    found, first, inverse, counts = np.unique(x.known, True, True, True)
    order = np.argsort(first, kind="stable")
    return [e.const(v) for v in (found[order], np.argsort(order)[inverse], counts[order])]


@operator("CausalConvWithState", domain=_MS, whole=True)
def _causal(e: Emit, node: Node) -> list[Value | None]:
    """Each channel with a filter of its own, on the last columns of before and the new ones."""
    for name, usual in (("ndim", 1), ("dilation", 1), ("channels_last", 0), ("state_window", 0), ("input_channels", 0)):
        if node.attr(name, usual) != usual:
            raise node.refused(f"has {name}={node.attr(name)}; expected {usual}")
    x, weights, bias, past = node.needed(0), node.needed(1), node.input(2), node.input(3)
    batch, channels, length = x.sizes
    channels, width = common([channels, weights.sizes[0]]), weights.sizes[2]
    if isinstance(width, Dim) or isinstance(channels, Dim):
        raise node.refused("has a filter, or channels, of an open number; fix it")
    x = e.agree(x, [batch, channels, length])
    if past is None:
        past = e.expand(e.const(np.zeros((1, 1, 1)), x.dtype), [batch, channels, width - 1])
    whole = e.concat([e.agree(past, [batch, channels, width - 1]), x], 2)
    out = e.conv1d(whole, weights, groups=channels)
    if bias is not None:
        out = out + e.reshape(bias, [1, channels, 1])
    if (kind := node.attr("activation", "none")) not in ("none", "silu", "swish"):
        raise node.refused(f"has the activation `{kind}`")
    out = out if kind == "none" else e.silu(out)
    last = listed(length) + e.const(np.arange(width - 1))
    state = e.take(whole, last, axis=2)
    return [e.agree(out, x.sizes), e.agree(state, [batch, channels, width - 1])]


# ---------------------------------------------------------------- weights of bitsandbytes
_NORMAL = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_HALVES = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
#: the numbers that four bits stand for, by `quant_type`
_TABLES = ((*_HALVES, *(-v for v in _HALVES)), _NORMAL)


@operator("MatMulBnb4", domain=_MS, types=product_types, whole=True)
def _bits_and_bytes(e: Emit, node: Node, x: Value, *, transB: int = 1) -> Value:
    k, n, block, kind = (int(node.attr(name)) for name in ("K", "N", "block_size", "quant_type"))
    if kind not in (0, 1):
        raise node.refused(f"has quant_type {kind}; expected 0 or 1")
    node.unused("training_mode")
    if not transB:
        raise node.refused("has weights that are not transposed (`transB` 0)")
    stored = node.known(1, "its weights").reshape(-1)
    scales = shaped(node, "scales", node.known(2, "its scales"), (-(-n * k // block),))
    pairs = np.stack([stored >> 4, stored & 15], -1).reshape(-1)[: n * k]
    real = np.array(_TABLES[kind], "float32")[pairs] * np.repeat(scales, block)[: n * k]
    weights = e.const(np.ascontiguousarray(real.reshape(n, k).T.astype(x.dtype)))
    return e.matmul(x, weights)


def plus(x: Value, bias: Value | None) -> Value:
    return x if bias is None else x + bias


@operator("Gelu", "BiasGelu", domain=_MS)
def _gelu(e: Emit, node: Node, x: Value, bias: Value | None = None) -> Value:
    most = 1 if node.op == "Gelu" else 2
    if len(node.inputs) > most:
        raise node.wrong(f"has {len(node.inputs)} inputs; expected {most}")
    return e.gelu(plus(x, bias))


def _gated(e: Emit, x: Value, *, alpha: float = 1.702) -> Value:
    return x * e.sigmoid(x if alpha == 1 else x * alpha)


def _scaled(e: Emit, x: Value, scale: Value | None = None, *, alpha: float = 1.0) -> Value:
    return _gated(e, x * (alpha if scale is None else e.reshape(scale, [])), alpha=1.0)


operator("FastGelu", domain=_MS)(lambda e, x, bias=None: e.gelu_tanh(plus(x, bias)))
operator("QuickGelu", domain=_MS)(_gated)
operator("ScaledSiLU", domain=_MS)(_scaled)
operator("BiasAdd", domain=_MS)(lambda _e, x, bias=None, skip=None: plus(plus(x, bias), skip))


@operator("BiasSplitGelu", domain=_MS)
def _split_gelu(e: Emit, node: Node, x: Value, bias: Value | None = None) -> Value:
    """The first half times gelu of the second."""
    x = plus(x, bias)
    width = x.sizes[-1]
    if isinstance(width, Dim) or width % 2:
        raise node.wrong(f"has {width} columns; expected an even number")
    first, second = split_last(e, x, [width // 2] * 2)
    return first * e.gelu(second)


@operator("BiasSoftmax", domain=_MS)
def _bias_softmax(e: Emit, node: Node, x: Value, bias: Value, *, is_inner_broadcast: int = 1) -> Value:
    """All axes from ``axis`` on are one; the bias repeats for the rows of a block, or for the blocks."""
    dims, own = x.sizes, bias.sizes
    axis = node.attr("axis", 1) % len(dims)
    if not is_inner_broadcast and len(own) < len(dims):
        bias = e.reshape(bias, [*[1] * (len(dims) - len(own)), *own])
    total = x + bias
    if axis == len(dims) - 1:
        return e.softmax(total, axis=-1)
    return e.reshape(e.softmax(e.reshape(total, flat_sizes(total, axis)), axis=-1), dims)


_PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Celu", "Elu", "LeakyRelu", "ThresholdedRelu"), ("alpha",)),
    **dict.fromkeys(("HardSigmoid", "ParametricSoftplus", "ScaledTanh"), ("alpha", "beta")),
    "Selu": ("alpha", "gamma"),
}


def activated(e: Emit, node: Node, x: Value, kind: str, numbers: Any) -> Value:
    """The activation that an operator ends with, with its parameters."""
    if not kind:
        return x
    if kind == "Clip":
        least, most = numbers
        result: Value = e.onnx("Clip", x, e.const(least, x.dtype), e.const(most, x.dtype), opset=13)
        return result
    names = _PARAMETERS.get(kind, ())
    return e.onnx(kind, x, opset=20, **dict(zip(names, numbers, strict=False)))


# ---- products and convolutions: transposed operands, channels that come last ------------------------------


def _turned(e: Emit, x: Value, swap: int, batch: int) -> Value:
    """An operand, whose first axis is the rows (or the columns, where it is swapped), and behind it the batch."""
    rank = len(x.sizes)
    axes = list(range(rank))
    if batch and rank > 2:
        axes = [*axes[1:-1], 0, rank - 1]
    if swap and rank > 1:
        axes[-2:] = [axes[-1], axes[-2]]
    return e.transpose(x, axes)


@operator("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=_MS)
def _fused_matmul(e: Emit, node: Node) -> Value:
    sides = [(node.needed(i), node.attr(f"trans{n}", 0), node.attr(f"transBatch{n}", 0)) for i, n in enumerate("AB")]
    out: Value = e.onnx("MatMul", *(_turned(e, *side) for side in sides), opset=13)
    alpha = float(node.attr("alpha", 1.0))
    if alpha != 1:
        out = out * alpha
    if node.op != "FusedMatMulActivation":
        return out
    kind = node.attr("activation")
    if kind == "Softmax":
        return e.softmax(out, axis=int(node.attr("activation_axis", -1)))
    return activated(e, node, out, kind, _numbers(node))


@operator("FusedGemm", domain=_MS)
def _fused_gemm(e: Emit, node: Node, *, activation: str = "") -> Value:
    out = e.onnx("Gemm", *node.inputs, opset=13, **_given(node, "alpha", "beta", "transA", "transB"))
    return activated(e, node, out, activation, _numbers(node))


@operator("GemmFastGelu", domain=_MS)
def _gemm_gelu(e: Emit, x: Value, weights: Value, bias: Value | None = None) -> Value:
    return e.gelu_tanh(plus(e.onnx("MatMul", x, weights, opset=13), bias))


def _numbers(node: Node) -> list[float]:
    return list(_given(node, "activation_alpha", "activation_beta", "activation_gamma").values())


def _given(node: Node, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := node.attr(name)) is not None}


@operator("FusedConv", domain=_MS)
def _fused_conv(
    e: Emit, node: Node, x: Value, w: Value, bias: Value | None = None, other: Value | None = None
) -> Value:
    attrs = _given(node, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    out = e.onnx("Conv", x, w, bias, opset=13, **attrs)
    return activated(e, node, plus(out, other), node.attr("activation", ""), node.attr("activation_params", ()))


def channels_first(e: Emit, x: Value) -> Value:
    """Channels that come last as the second axis."""
    return e.transpose(x, [0, len(x.sizes) - 1, *range(1, len(x.sizes) - 1)])


def channels_last(e: Emit, x: Value) -> Value:
    return e.transpose(x, [0, *range(2, len(x.sizes)), 1])


@operator("NhwcConv", "NhwcFusedConv", domain=_MS)
def _conv_last(e: Emit, node: Node, x: Value, w: Value, bias: Any = None, other: Any = None) -> Value:
    return channels_last(
        e, _fused_conv(e, node, channels_first(e, x), w, bias, None if other is None else channels_first(e, other))
    )


@operator("NhwcMaxPool", domain=_MS)
def _pool_last(e: Emit, node: Node, x: Value) -> Value:
    return channels_last(e, e.onnx("MaxPool", channels_first(e, x), opset=12, **_given(node, *node.attrs)))


# ---------------------------------------------------------------- layouts of one machine
@operator(
    *("AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReorderInput", "ReorderOutput"),
    "Upsample",
    domain="com.microsoft.nchwc",
)
def _of_one_machine(_e: Emit, node: Node) -> Value:
    raise node.refused(
        "has a layout that ONNX Runtime chose for the machine that saved the file; save the optimised model with "
        "`graph_optimization_level = ORT_ENABLE_EXTENDED`, or take the model before it was optimised"
    )
