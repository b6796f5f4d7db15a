"""ONNX Runtime's activations, products and convolutions, with the sums and activations that it has put into them."""

from __future__ import annotations

from typing import Any

from ..dim import Dim, product
from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .attention_parts import columns

__all__ = ["activated"]

_MS = "com.microsoft"


def _plus(x: Value, bias: Value | None) -> Value:
    return x if bias is None else x + bias


@operator("Gelu", "BiasGelu", domain=_MS)
def _gelu(e: Emit, node: Node, x: Value, bias: Value | None = None) -> Value:
    most = 1 if node.op == "Gelu" else 2
    if len(node.inputs) > most:
        raise node.wrong(f"has {len(node.inputs)} inputs; expected {most}")
    return e.gelu(_plus(x, bias))


def _gated(e: Emit, x: Value, *, alpha: float = 1.702) -> Value:
    return x * e.sigmoid(x if alpha == 1 else x * alpha)


def _scaled(e: Emit, x: Value, scale: Value | None = None, *, alpha: float = 1.0) -> Value:
    return _gated(e, x, alpha=alpha) if scale is None else _gated(e, x, alpha=alpha) * scale


operator("FastGelu", domain=_MS)(lambda e, x, bias=None: e.gelu_tanh(_plus(x, bias)))
operator("QuickGelu", domain=_MS)(_gated)
operator("ScaledSiLU", domain=_MS)(_scaled)
operator("BiasAdd", domain=_MS)(lambda _e, x, bias=None, skip=None: _plus(_plus(x, bias), skip))


@operator("BiasSplitGelu", domain=_MS)
def _split_gelu(e: Emit, node: Node, x: Value, bias: Value | None = None) -> Value:
    """The first half times gelu of the second."""
    x = _plus(x, bias)
    *_, width = dims = x.sizes
    if isinstance(width, Dim) or width % 2:
        raise node.wrong(f"has {width} columns; expected an even number")
    first, second = (columns(e, x, len(dims) - 1, begin, begin + width // 2) for begin in (0, width // 2))
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
    flat = e.reshape(total, [product(dims[:axis]), product(dims[axis:])])
    return e.reshape(e.softmax(flat, axis=-1), dims)


_PARAMETERS: dict[str, tuple[str, ...]] = {
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
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
    return e.gelu_tanh(_plus(e.onnx("MatMul", x, weights, opset=13), bias))


def _numbers(node: Node) -> list[float]:
    return list(_given(node, "activation_alpha", "activation_beta", "activation_gamma").values())


def _given(node: Node, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := node.attr(name)) is not None}


@operator("FusedConv", domain=_MS)
def _fused_conv(
    e: Emit, node: Node, x: Value, w: Value, bias: Value | None = None, other: Value | None = None
) -> Value:
    attrs = _given(node, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    out = e.onnx("Conv", x, w, *([] if bias is None else [bias]), opset=13, **attrs)
    return activated(e, node, _plus(out, other), node.attr("activation", ""), node.attr("activation_params", ()))


def _first(e: Emit, x: Value) -> Value:
    """Channels that come last as the second axis."""
    return e.transpose(x, [0, len(x.sizes) - 1, *range(1, len(x.sizes) - 1)])


def _last(e: Emit, x: Value) -> Value:
    return e.transpose(x, [0, *range(2, len(x.sizes)), 1])


@operator("NhwcConv", "NhwcFusedConv", domain=_MS)
def _conv_last(e: Emit, node: Node, x: Value, w: Value, bias: Any = None, other: Any = None) -> Value:
    return _last(e, _fused_conv(e, node, _first(e, x), w, bias, None if other is None else _first(e, other)))


@operator("NhwcMaxPool", domain=_MS)
def _pool_last(e: Emit, node: Node, x: Value) -> Value:
    attrs = _given(node, "auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
    return _last(e, e.onnx("MaxPool", _first(e, x), opset=12, **attrs))


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
