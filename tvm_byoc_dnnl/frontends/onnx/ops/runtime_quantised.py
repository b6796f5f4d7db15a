"""Quantised operators of ONNX Runtime that are no chain of one operator between two casts."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import Node, Type, Value
from .attention import attention_of_product

__all__: list[str] = []

R = relax.op
_MS = "com.microsoft"


def _real(e: Emit, x: Value, scale: Value, zero: Value | None, axis: int) -> Value:
    """The numbers of a quantised tensor; ``axis`` matters where each of its slices has a scale."""
    operands = [x, _single(e, scale)]
    if zero is not None:
        operands.append(_single(e, zero))
    if len(operands) == 3 and operands[1].rank == 1 and operands[2].rank == 0:
        operands[2] = e.expand(e.reshape(operands[2], [1]), operands[1].sizes)
    rank = len(x.sizes)
    attrs: dict[str, Any] = {"axis": axis % rank} if operands[1].rank else {}
    return e.onnx("DequantizeLinear", *operands, opset=13, **attrs)


def _single(e: Emit, x: Value) -> Value:
    return e.reshape(x, []) if x.dims == (1,) else x


@operator("MatMulIntegerToFloat", domain=_MS)
def _integer_to_float(e: Emit, node: Node, a: Value, b: Value, a_scale: Value, b_scale: Value) -> Value:
    return _product(e, _real(e, a, a_scale, node.input(4), -2), b, b_scale, node.input(5), node.input(6))


@operator("DynamicQuantizeMatMul", domain=_MS)
def _dynamic(e: Emit, node: Node, x: Value) -> Value:
    quantised, scale, zero = e.onnx("DynamicQuantizeLinear", x, opset=13, outputs=3)
    left = _real(e, quantised, scale, zero, -2)
    return _product(e, left, node.needed(1), node.needed(2), node.input(3), node.input(4))


def _product(e: Emit, left: Value, b: Value, scale: Value, zero: Value | None, bias: Value | None) -> Value:
    out = e.onnx("MatMul", left, _real(e, b, scale, zero, -1), opset=13)
    return out if bias is None else out + bias


def _attention_types(node: Node) -> list[Type]:
    x, weights, past = node.needed(0), node.needed(1), node.input(8)
    heads, width = int(node.attr("num_heads", 1)), weights.sizes[1] // 3
    batch, rows, _ = x.sizes
    length = rows if past is None else past.sizes[3] + rows
    dtype = node.needed(3).dtype
    return [Type(dtype, (batch, rows, width)), Type(dtype, (2, batch, heads, length, width // heads))]


@operator("QAttention", domain=_MS, types=_attention_types, whole=True)
def _attention(e: Emit, node: Node) -> list[Value | None]:
    x, weights, bias, scale, weight_scale = (node.needed(i) for i in range(5))
    left = _real(e, x, scale, node.input(6), -1)
    product = _product(e, left, weights, weight_scale, node.input(7), bias)
    return attention_of_product(e, node, product, mask=node.input(5), past=node.input(8))


@operator("QLinearWhere", domain=_MS)
def _where(e: Emit, node: Node, condition: Value) -> Value:
    """The condition, then data, scale and zero point of both operands, and those of the result."""
    parts = [_real(e, node.needed(i), node.needed(i + 1), node.input(i + 2), 0) for i in (1, 4)]
    return _quantised(e, e.onnx("Where", condition, *parts, opset=13), node, 7, node.needed(1))


@operator("QLinearReduceMean", domain=_MS)
def _mean(e: Emit, node: Node, x: Value, *, axes: Any = None, keepdims: int = 1) -> Value:
    real = _real(e, x, node.needed(1), node.input(2), 0)
    out = e.onnx("ReduceMean", real, opset=13, axes=axes, keepdims=keepdims)
    return _quantised(e, out, node, 3, x)


def _quantised(e: Emit, x: Value, node: Node, at: int, like: Value) -> Value:
    zero = node.input(at + 1) or e.const(0, like.dtype)
    return e.onnx("QuantizeLinear", x, _single(e, node.needed(at)), _single(e, zero), opset=13)


# ---------------------------------------------------------------- recurrent
_LAYER = ("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget")


@operator("DynamicQuantizeLSTM", domain=_MS)
def _recurrent(e: Emit, node: Node) -> list[Value | None]:
    """The layer with its weights as numbers; what it reads is never rounded here."""
    given = node.inputs[:8] + [None] * (8 - len(node.inputs[:8]))
    given[1], given[2] = (_gates(e, node, i, scale) for i, scale in ((1, 8), (2, 10)))
    attrs = {name: value for name in _LAYER if (value := node.attr(name)) is not None}
    return list(e.onnx("LSTM", *given, opset=14, outputs=3, **attrs))


def _gates(e: Emit, node: Node, position: int, scale_at: int) -> Value:
    """Weights [directions, inputs, gates] as [directions, gates, inputs]; as rows of int8 where they are such."""
    stored, scale, zero = node.needed(position), node.needed(scale_at), node.input(scale_at + 1)
    directions, _, width = stored.sizes
    if stored.known is not None and scale.known is not None and (zero is None or zero.known is not None):
        points = np.zeros(1, "int16") if zero is None or zero.known is None else zero.known.astype("int16")
        centred = stored.known.astype("int16") - points.reshape(-1, 1, points.shape[-1] if points.ndim == 2 else 1)
        if centred.size and centred.min() >= -128 and centred.max() <= 127:
            count, inputs, gates = centred.shape
            rows = centred.astype("int8").transpose(0, 2, 1).reshape(-1, inputs)
            scales = np.broadcast_to(scale.known.reshape(count, -1), (count, gates)).reshape(-1)
            zeros = e.const(np.zeros(len(rows), "int8"))
            real = e.dequantize(e.const(rows), e.const(scales), zeros, axis=0, out_dtype="float32")
            return e.reshape(real, [count, gates, inputs])
    each = [directions, 1, width if _is_wide(scale) else 1]
    real = e.cast(stored, "float32")
    if zero is not None:
        flat = e.cast(zero, "float32")
        real = real - e.reshape(flat, [directions, 1, width if _is_wide(zero) else 1])
    real = real * e.reshape(scale, each)
    return e.transpose(real, [0, 2, 1])


def _is_wide(x: Value) -> bool:
    return x.rank == 2 and x.sizes[1] != 1
