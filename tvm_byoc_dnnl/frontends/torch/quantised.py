"""PyTorch's operators on quantised tensors, which its pt2e flow writes, as quantize and dequantize of Relax.

They are PyTorch's namespace ``quantized_decomposed``; torch.export keeps them as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from ...core.errors import InputError
from ...ir.tvm_compat import quantised


def _quantize(node: Any, importer: Any) -> Any:
    """Of the whole tensor, scale and zero point are numbers or tensors of one element; else those of an axis."""
    data, scale, zero, *axis, low, high, dtype = _arguments(node, importer)
    emit, stored, along = importer.block_builder.emit, _name(dtype), axis[0] if axis else None
    data, bounds = _real(importer, data), np.iinfo(_name(dtype))
    if (low, high) != (bounds.min, bounds.max):  # a part of the integers: the real numbers are limited to its ends
        least, most = (_end(importer, limit, scale, zero, along, len(data.ty.shape)) for limit in (low, high))
        data = emit(op.minimum(emit(op.maximum(data, least)), most))
    scale, zero, along = _real(importer, scale), _whole(importer, zero, stored), -1 if along is None else along
    return _converted(importer, data, lambda x: op.quantize(x, scale, zero, axis=along, out_dtype=stored))


def _end(importer: Any, limit: Any, scale: Any, zero: Any, axis: int | None, rank: int) -> Any:
    """The real number of an integer, in a shape that broadcasts."""
    if not any(isinstance(value, relax.Expr) for value in (limit, scale, zero)):
        return relax.const(np.float32((limit - zero) * scale))
    emit = importer.block_builder.emit
    end = emit(op.subtract(_real(importer, limit), emit(op.astype(_whole(importer, zero, "int32"), "float32"))))
    end = emit(op.multiply(end, _real(importer, scale)))
    return end if axis is None else emit(op.reshape(end, [-1 if i == axis % rank else 1 for i in range(rank)]))


def _dequantize(node: Any, importer: Any) -> Any:
    data, scale, zero, *rest = _arguments(node, importer)
    axis = rest[0] if "per_channel" in str(node.target) else -1
    wanted = node.kwargs.get("out_dtype")
    scale, zero = _real(importer, scale), _whole(importer, 0 if zero is None else zero, "int32")
    real = _converted(importer, data, lambda x: op.dequantize(x, scale, zero, axis=axis, out_dtype="float32"))
    return _as(importer, real, "float32" if wanted is None else wanted)


def _choose(is_symmetric: bool) -> Callable[[Any, Any], Any]:
    def convert(node: Any, importer: Any) -> Any:
        emit, number = importer.block_builder.emit, relax.const
        data, low, high, least, dtype = _arguments(node, importer)
        if _element(data) != "float32":
            data = emit(op.astype(data, "float32"))
        zero = number(np.float32(0))
        bottom, top = emit(op.minimum(emit(op.min(data)), zero)), emit(op.maximum(emit(op.max(data)), zero))
        if is_symmetric:
            span = emit(op.multiply(emit(op.maximum(emit(op.negative(bottom)), top)), number(np.float32(2))))
        else:
            span = emit(op.subtract(top, bottom))
        scale = emit(op.divide(span, number(np.float32(high - low))))
        scale = emit(op.maximum(scale, number(np.float32(least))))
        if is_symmetric:
            point = number(np.float32(128 if _name(dtype) == "uint8" else 0))
        else:
            steps = emit(op.round(emit(op.divide(bottom, scale))))
            point = emit(op.clip(emit(op.subtract(number(np.float32(low)), steps)), low, high))
        stored = _name(dtype)
        one, origin = number(np.float32(1)), number(np.array(0, stored))
        point = _converted(importer, point, lambda x: op.quantize(x, one, origin, out_dtype=stored))
        return [emit(op.reshape(value, (1,))) for value in (scale, point)]

    return convert


def _choose_tokens(is_symmetric: bool) -> Callable[[Any, Any], Any]:
    """Scale and zero point of each row, as PyTorch computes them for int8."""

    def convert(node: Any, importer: Any) -> Any:
        emit, number = importer.block_builder.emit, partial(_real, importer)
        data, dtype = _arguments(node, importer)
        if _name(dtype) != "int8":
            raise InputError(f"{node.target} to {_name(dtype)}; PyTorch has it for int8 only")
        data = _real(importer, data)

        def of_rows(reduce: Any, values: Any) -> Any:
            return emit(reduce(values, axis=-1, keepdims=True))

        if is_symmetric:
            least = emit(op.maximum(of_rows(op.max, emit(op.abs(data))), number(1e-5)))
            scale = emit(op.divide(least, number(127)))
            return [scale, emit(op.zeros_like(scale))]
        bottom = emit(op.minimum(of_rows(op.min, data), number(0)))
        top = emit(op.maximum(of_rows(op.max, data), number(0)))
        scale = emit(op.divide(emit(op.subtract(top, bottom)), number(255)))
        scale = emit(op.maximum(scale, number(np.finfo(np.float32).eps)))
        low, high = (emit(op.divide(end, scale)) for end in (bottom, top))
        # of the two ends, the zero point keeps the one with the smaller error
        is_low = emit(op.greater(emit(op.add(emit(op.add(low, high)), number(-128 + 127))), number(0)))
        ends = emit(op.subtract(number(-128), low)), emit(op.subtract(number(127), high))
        point = emit(op.round(emit(op.clip(emit(op.where(is_low, *ends)), -128, 127))))
        return [scale, point]

    return convert


def _quantize_tokens(node: Any, importer: Any) -> Any:
    """One scale and zero point for each row: PyTorch's own steps, since Relax has them along one axis only."""
    emit = importer.block_builder.emit
    data, scale, zero, low, high, dtype = _arguments(node, importer)
    inverse = emit(op.divide(_real(importer, 1), _real(importer, scale)))
    moved = emit(op.add(emit(op.multiply(_real(importer, data), inverse)), _real(importer, zero)))
    return emit(op.astype(emit(op.clip(emit(op.round(moved)), low, high)), _name(dtype)))


def _dequantize_tokens(node: Any, importer: Any) -> Any:
    emit = importer.block_builder.emit
    data, scale, zero, *_, wanted = _arguments(node, importer)
    moved = emit(op.subtract(_real(importer, data), _real(importer, zero)))
    real = emit(op.multiply(moved, _real(importer, scale)))
    return _as(importer, real, wanted)


def _dequantize_groups(node: Any, importer: Any) -> Any:
    """Groups along the rows of a matrix: the form that products with compressed weights are recognised by."""
    emit = importer.block_builder.emit
    data, scale, zero, _, _, _, size, wanted = _arguments(node, importer)
    columns, depth = (int(dim) for dim in data.ty.shape)
    size = min(int(size), depth)
    flat = (columns * depth // size,)
    scales = emit(op.reshape(_real(importer, scale), flat))
    stored = _element(data)
    zeros = relax.const(np.zeros(flat, stored)) if zero is None else emit(op.reshape(zero, flat))
    zeros = _as(importer, zeros, stored)
    groups = emit(op.reshape(data, (*flat, size)))
    real = emit(op.reshape(emit(op.dequantize(groups, scales, zeros, axis=0, out_dtype="float32")), (columns, depth)))
    return _as(importer, real, wanted)


def _converted(importer: Any, data: Any, convert: Callable[[Any], Any]) -> Any:
    return importer.block_builder.emit(quantised(importer.block_builder, data, convert))


def _arguments(node: Any, importer: Any) -> tuple[Any, ...]:
    """All arguments in the order of the operator's schema."""
    given = dict(zip((a.name for a in node.target._schema.arguments), importer.retrieve_args(node), strict=False))
    for name, value in node.kwargs.items():
        given[name] = importer._retrieve_args(value)
    given.pop("out_dtype", None)
    return tuple(given[a.name] for a in node.target._schema.arguments if a.name in given)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _element(tensor: Any) -> str:
    return str(tensor.ty.dtype)


def _real(importer: Any, value: Any) -> Any:
    """A number or a tensor in float32; PyTorch also stores scales in float64."""
    if not isinstance(value, relax.Expr):
        return relax.const(np.float32(value))
    return _as(importer, value, "float32")


def _as(importer: Any, tensor: Any, dtype: Any) -> Any:
    own = _name(dtype)
    return tensor if _element(tensor) == own else importer.block_builder.emit(op.astype(tensor, own))


def _whole(importer: Any, value: Any, dtype: str) -> Any:
    """A zero point, which PyTorch stores in int64."""
    if not isinstance(value, relax.Expr):
        return relax.const(np.array(value, dtype))
    return value if _element(value) in ("int8", "uint8") else _as(importer, value, dtype)


#: by the name of the overload
CONVERTERS = {
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
