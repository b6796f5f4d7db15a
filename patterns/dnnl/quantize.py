"""Quantising and dequantising, to the last bit as TVM computes them.

    quantize      clip(round(x / scale) + zero)      one division, which stores rounded to even and saturated
    dequantize    (x - zero) · scale                 conversion to float32, then both steps in one primitive

A product with ``1 / scale`` would be as quick, and off by one where the quotient is next to a half.
"""

from __future__ import annotations

from typing import Any

from ...lower.builder import GraphBuilder, Value
from ...lower.graph import PostOp
from ...registry import register_lowering
from ...verdict import Reject, require

__all__: list[str] = []

_STORED = ("int8", "uint8")
_ZEROS = (*_STORED, "int32")


@register_lowering("dnnl", "relax.quantize")
def quantize(g: GraphBuilder, call: Any) -> Value:
    """Float32 to int8 and uint8, with one scale or one per channel."""
    src, scale, zero = (g.value(a) for a in call.args)
    dtype = str(call.ty.dtype)
    require(src.dtype == "float32", f"quantize of dtype {src.dtype}")
    require(dtype in _STORED, f"quantize to {dtype}; oneDNN stores {', '.join(_STORED)}")
    scale, zero_point = _parameters(g, call, src, scale, zero)
    if zero.scalar is not None:
        # Rounded before the zero point is added, which could make of a tie one to the other side.
        steps = [PostOp("eltwise", "round"), PostOp("eltwise", "linear", 1.0, zero.scalar)] if zero.scalar else []
        return g.emit("binary", [src, scale], src.shape, dtype, steps, alg="div")
    steps_of_zero = g.eltwise(g.binary("div", src, scale, src.shape), "round")
    return g.binary("add", steps_of_zero, zero_point, src.shape, dtype)


@register_lowering("dnnl", "relax.dequantize")
def dequantize(g: GraphBuilder, call: Any) -> Value:
    """Int8, uint8 and int32 to float32, with one scale or one per channel."""
    src, scale, zero = (g.value(a) for a in call.args)
    dtype = str(call.ty.dtype)
    require(src.dtype in _ZEROS, f"dequantize of dtype {src.dtype}")
    require(dtype == "float32", f"dequantize to {dtype}")
    # In float32 the difference of two bytes is exact; that of two int32 need not be.
    require(src.dtype != "int32" or _is_zero(zero), "dequantize of int32 with a zero point")
    scale, zero_point = _parameters(g, call, src, scale, zero)
    number = g.emit("reorder", [src], src.shape, "float32")
    if not _is_zero(zero):
        number = g.binary("sub", number, zero_point, src.shape)
    return g.binary("mul", number, scale, src.shape)


def _parameters(g: GraphBuilder, call: Any, src: Value, scale: Value, zero: Value) -> tuple[Value, Value]:
    """Scale and zero point in float32, in a shape that broadcasts."""
    name = call.op.name.rpartition(".")[2]
    require(scale.dtype == "float32", f"{name} with a scale of dtype {scale.dtype}")
    require(zero.dtype in _ZEROS, f"{name} with a zero point of dtype {zero.dtype}")
    require(src.ndim > 0, f"{name} of a tensor of rank 0")
    axis = int(call.attrs.axis) % src.ndim
    zero_point = g.emit("reorder", [zero], zero.shape, "float32")
    return _spread(g, scale, src, axis, name), _spread(g, zero_point, src, axis, name)


def _spread(g: GraphBuilder, value: Value, src: Value, axis: int, name: str) -> Value:
    if all(d == 1 for d in value.shape):
        return g.reshape(value, (1,) * src.ndim)
    if value.ndim != 1 or value.shape[0] != src.shape[axis]:
        raise Reject(f"{name} along axis {axis} of {src.shape} with parameters of shape {value.shape}")
    return g.reshape(value, [value.shape[0] if i == axis else 1 for i in range(src.ndim)])


def _is_zero(zero: Value) -> bool:
    constant = zero.constant
    return constant is not None and not constant.any()
