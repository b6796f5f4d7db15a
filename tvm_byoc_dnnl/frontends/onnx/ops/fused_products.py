"""Products and convolutions of ONNX Runtime: transposed operands, activations, channels that come last."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .fused_activations import activated

__all__: list[str] = []

R = relax.op
_MS = "com.microsoft"


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
    left, right = (
        _turned(e, node.needed(i), node.attr(f"trans{n}", 0), node.attr(f"transBatch{n}", 0))
        for i, n in enumerate("AB")
    )
    out: Value = e.onnx("MatMul", left, right, opset=13)
    alpha = float(node.attr("alpha", 1.0))
    if alpha != 1:
        out = out * alpha
    if node.op != "FusedMatMulActivation":
        return out
    kind = node.attr("activation")
    if kind == "Softmax":
        return e.softmax(out, axis=int(node.attr("activation_axis", -1)))
    numbers = [float(v) for n in ("alpha", "beta", "gamma") if (v := node.attr(f"activation_{n}")) is not None]
    return activated(e, node, out, kind, numbers)


@operator("FusedGemm", domain=_MS)
def _fused_gemm(e: Emit, node: Node, *, activation: str = "") -> Value:
    given = {n: v for n in ("alpha", "beta", "transA", "transB") if (v := node.attr(n)) is not None}
    out = e.onnx("Gemm", *node.inputs, opset=13, **given)
    numbers = [float(v) for n in ("alpha", "beta", "gamma") if (v := node.attr(f"activation_{n}")) is not None]
    return activated(e, node, out, activation, numbers)


@operator("GemmFastGelu", domain=_MS)
def _gemm_gelu(e: Emit, node: Node, x: Value) -> Value:
    out = e.onnx("MatMul", x, node.needed(1), opset=13)
    if node.input(2) is not None:
        out = out + node.needed(2)
    return e.gelu_tanh(out)


# ---------------------------------------------------------------- convolutions
_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")


def _attributes(node: Node, names: tuple[str, ...]) -> dict[str, Any]:
    return {n: v for n in names if (v := node.attr(n)) is not None}


def _convolved(e: Emit, node: Node, x: Value, other: Value | None) -> Value:
    given = [x, node.needed(1), *([node.needed(2)] if node.input(2) is not None else [])]
    out = e.onnx("Conv", *given, opset=13, **_attributes(node, _WINDOW))
    if other is not None:
        out = out + other
    return activated(e, node, out, node.attr("activation", ""), node.attr("activation_params", ()))


@operator("FusedConv", domain=_MS)
def _fused_conv(e: Emit, node: Node, x: Value) -> Value:
    return _convolved(e, node, x, node.input(3))


def _first(e: Emit, x: Value | None) -> Value | None:
    """Channels that come last as the second axis."""
    rank = 0 if x is None else len(x.sizes)
    return None if x is None else e.transpose(x, [0, rank - 1, *range(1, rank - 1)])


def _last(e: Emit, x: Value) -> Value:
    rank = len(x.sizes)
    return e.transpose(x, [0, *range(2, rank), 1])


@operator("NhwcConv", "NhwcFusedConv", domain=_MS)
def _conv_last(e: Emit, node: Node, data: Value) -> Value:
    x = _first(e, data)
    assert x is not None
    return _last(e, _convolved(e, node, x, _first(e, node.input(3))))


@operator("NhwcMaxPool", domain=_MS)
def _pool_last(e: Emit, node: Node, data: Value) -> Value:
    x = _first(e, data)
    return _last(e, e.onnx("MaxPool", x, opset=12, **_attributes(node, _POOL)))


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
