"""PyTorch's operators on quantised tensors, which its pt2e flow writes, as quantize and dequantize of Relax.

They are PyTorch's namespace ``quantized_decomposed``; torch.export keeps them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.errors import InputError
from ..onnx.emit import Emit
from ..onnx.ops.quantised import along, dequantised, quantised
from ..onnx.value import Value
from . import by_values, dtype_name


def _quantize(e: Emit, _node: Any, data: Value, scale: Any, zero: Any, *rest: Any) -> Value:
    """Of the whole tensor, scale and zero point are numbers or tensors of one element; else those of an axis."""
    *axes, low, high, dtype = rest
    stored, axis = dtype_name(dtype), axes[0] % len(data.sizes) if axes else 0
    data, scale, bounds = _real(e, data), _real(e, scale), np.iinfo(stored)
    if (low, high) != (bounds.min, bounds.max):  # a part of the integers: the real numbers are limited to its ends
        ends = [(_real(e, limit) - _real(e, zero)) * scale for limit in (low, high)]
        least, most = (along(e, data, end, axis) for end in ends) if axes else ends
        data = e.minimum(e.maximum(data, least), most)
    return quantised(e, data, scale, _whole(e, zero, stored), stored, axis)


def _dequantize(e: Emit, node: Any, data: Value, scale: Any, zero: Any, *rest: Any) -> Value:
    axis, wanted = rest[0] if "per_channel" in str(node.target) else 0, node.kwargs.get("out_dtype")
    real = dequantised(e, data, _real(e, scale), _whole(e, zero or 0, "int32"), axis)
    return real if wanted is None else e.cast(real, dtype_name(wanted))


def _choose(is_symmetric: bool) -> Callable[..., list[Value]]:
    def convert(e: Emit, _node: Any, data: Value, low: int, high: int, least: float, dtype: Any) -> list[Value]:
        data, stored = _real(e, data), dtype_name(dtype)
        bottom, top = e.minimum(e.min(data), 0.0), e.maximum(e.max(data), 0.0)
        span = e.maximum(-bottom, top) * 2.0 if is_symmetric else top - bottom
        scale = e.maximum(span / float(high - low), least)
        if is_symmetric:
            point = e.const(128 if stored == "uint8" else 0, stored)
        else:
            steps = e.clip(float(low) - e.round(bottom / scale), min=low, max=high)
            point = quantised(e, steps, e.const(np.float32(1)), None, stored)
        return [e.reshape(value, [1]) for value in (scale, point)]

    return convert


def _choose_tokens(is_symmetric: bool) -> Callable[..., list[Value]]:
    """Scale and zero point of each row, as PyTorch computes them for int8."""

    def convert(e: Emit, node: Any, data: Value, dtype: Any) -> list[Value]:
        if dtype_name(dtype) != "int8":
            raise InputError(f"{node.target} to {dtype_name(dtype)}; PyTorch has it for int8 only")
        data, rows = _real(e, data), {"axis": -1, "keepdims": True}
        if is_symmetric:
            scale = e.maximum(e.max(abs(data), **rows), 1e-5) / 127.0
            return [scale, e.zeros_like(scale)]
        bottom, top = e.minimum(e.min(data, **rows), 0.0), e.maximum(e.max(data, **rows), 0.0)
        scale = e.maximum((top - bottom) / 255.0, float(np.finfo("float32").eps))
        low, high = bottom / scale, top / scale
        # of the two ends, the zero point keeps the one with the smaller error
        end = e.where(low + high + (-128.0 + 127.0) > 0.0, -128.0 - low, 127.0 - high)
        return [scale, e.round(e.clip(end, min=-128, max=127))]

    return convert


def _quantize_tokens(
    e: Emit, _node: Any, data: Value, scale: Value, zero: Value, low: int, high: int, dtype: Any
) -> Value:
    """One scale and zero point for each row: PyTorch's own steps, since Relax has them along one axis only."""
    moved = _real(e, data) * (1.0 / _real(e, scale)) + _real(e, zero)
    return e.cast(e.clip(e.round(moved), min=low, max=high), dtype_name(dtype))


def _dequantize_tokens(e: Emit, _node: Any, data: Value, scale: Value, zero: Value, *rest: Any) -> Value:
    return e.cast((_real(e, data) - _real(e, zero)) * _real(e, scale), dtype_name(rest[-1]))


def _dequantize_groups(e: Emit, _node: Any, data: Value, scale: Value, zero: Value | None, *rest: Any) -> Value:
    """Groups along the rows of a matrix: the form that products with compressed weights are recognised by."""
    size, wanted = rest[-2:]
    columns, depth = (int(dim) for dim in data.sizes)  # type: ignore[arg-type]
    size = min(int(size), depth)
    flat = [columns * depth // size]
    scales = e.reshape(_real(e, scale), flat)
    zeros = e.const(np.zeros(flat, data.dtype)) if zero is None else e.cast(e.reshape(zero, flat), data.dtype)
    real = e.dequantize(e.reshape(data, [*flat, size]), scales, zeros, axis=0, out_dtype="float32")
    return e.cast(e.reshape(real, [columns, depth]), dtype_name(wanted))


def _real(e: Emit, value: Any) -> Value:
    """A number or a tensor in float32; PyTorch also stores scales in float64."""
    return e.cast(value, "float32") if isinstance(value, Value) else e.const(np.float32(value))


def _whole(e: Emit, value: Any, dtype: str) -> Value:
    """A zero point, which PyTorch stores in int64."""
    if not isinstance(value, Value):
        return e.const(value, dtype)
    return value if value.dtype in ("int8", "uint8") else e.cast(value, dtype)


_BY_NAME: dict[str, Callable[..., Any]] = {
    **dict.fromkeys([f"quantize_per_tensor.{form}" for form in ("default", "tensor", "tensor2")], _quantize),
    **dict.fromkeys([f"dequantize_per_tensor.{form}" for form in ("default", "tensor", "tensor2")], _dequantize),
    "quantize_per_channel.default": _quantize,
    "dequantize_per_channel.default": _dequantize,
    "quantize_per_token.default": _quantize_tokens,
    "dequantize_per_token.default": _dequantize_tokens,
    "choose_qparams_per_token.default": _choose_tokens(is_symmetric=True),
    "choose_qparams_per_token_asymmetric.default": _choose_tokens(is_symmetric=False),
    "dequantize_per_channel_group.default": _dequantize_groups,
    "choose_qparams.tensor": _choose(is_symmetric=False),
    "choose_qparams_symmetric.tensor": _choose(is_symmetric=True),
}
#: in place of the importer's own, by the name of the overload
CONVERTERS = {name: by_values(convert) for name, convert in _BY_NAME.items()}
