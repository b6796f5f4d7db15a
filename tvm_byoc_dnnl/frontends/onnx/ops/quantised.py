"""QuantizeLinear and its like, straight into Relax's ``quantize`` and ``dequantize``, which patterns know.

Dtypes that these do not have (2 and 4 bits, float8) are of their numbers in int8, uint8 or float32. What has blocks
along an axis is in `quantised_blocks`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from ....core.tensor_info import STORED
from ....ir.tvm_compat import quantised as of_tensor
from ..emit import Emit, common, elem_type
from ..table import operator
from ..value import Node, Value
from .quantised_blocks import Block, block_of, spread, stored_weights

_NARROW = ("float16", "bfloat16")
#: what Relax's operators quantise to
_WHOLE = ("int8", "uint8", "int16", "uint16")
_LIMITS = {"int4": (-8, 7), "int2": (-2, 1), "uint4": (0, 15), "uint2": (0, 3)}


def tvm_dtype(kind: int) -> str:
    return str(helper.tensor_dtype_to_np_dtype(kind))


def scalar(e: Emit, value: Value) -> Value:
    """One number as a scalar: ONNX allows a vector of one for it."""
    if not value.rank or value.shape != (1,) * value.rank:
        return value
    return e.reshape(value, [])


def _axis(node: Node, data: Value, scale: Value) -> int:
    """The axis of which every slice has a scale of its own."""
    axis, rank = int(node.attr("axis", 1)), len(data.sizes)
    if not scale.rank or rank <= 1:
        return 0
    if not -rank <= axis < rank:
        raise node.wrong(f"has the axis {axis}; expected {-rank} to {rank - 1}")
    return axis % rank


def _agreed(e: Emit, axis: int, data: Value, scale: Value, zero: Value | None) -> tuple[Value, Value, Value | None]:
    """Data, scales and zero points, after a check in the call that the axis has as many elements as there are scales.

    TVM's operators refuse sizes that are not proved to be equal.
    """
    if scale.dims is None or len(scale.dims) != 1 or scale.dims == (1,) or not data.dims:
        return data, scale, zero
    size = common([scale.dims[0], data.dims[axis]])
    data = e.agree(data, [size if a == axis else d for a, d in enumerate(data.dims)], hidden=True)
    own = [v if v is None or v.dims in (None, (), (1,)) else e.agree(v, [size], hidden=True) for v in (scale, zero)]
    return data, *own  # type: ignore[return-value]


def _wide(e: Emit, x: Value) -> Value:
    """Numbers of few bits as integers that Relax's operators know, those of float8 as float32."""
    to = "float32" if x.dtype.startswith("float") else STORED.get(x.dtype, x.dtype)
    if to == x.dtype:
        return x
    if x.is_constant:
        return e.const(x.known.astype(to))  # type: ignore[union-attr]
    return e.onnx("Cast", x, opset=21, to=elem_type(to))


@operator("DequantizeLinear", since=10)
@operator("DequantizeLinear", domain="com.microsoft")
def _dequantize(e: Emit, node: Node, data: Value, scale: Value, zero: Value | None = None) -> Any:
    kind = node.attr("output_dtype", 0)
    dtype = tvm_dtype(kind) if kind else scale.dtype
    block = block_of(node, data, scale)
    if block is not None:
        centre = None if zero is None else _wide(e, zero)
        stored = stored_weights(e, node, block, dtype, _wide(e, data), scale, centre)
        return stored or dequantised(e, data, scale, zero, block.axis, dtype, block)
    axis = _axis(node, data, scale)
    return dequantised(e, *_agreed(e, axis, data, scale, zero), axis, dtype)


def dequantised(
    e: Emit, data: Value, scale: Value, zero: Value | None, axis: int = 0, dtype: str = "", block: Block | None = None
) -> Value:
    """The real numbers of a quantised tensor; ``axis`` matters where each of its slices has a scale."""
    dtype = dtype or scale.dtype
    data = _wide(e, data)
    if block is not None or "int" not in data.dtype or dtype not in ("float32", "float16"):
        wide = "float64" if dtype == "float64" else "float32"
        moved = e.cast(data, wide)
        if zero is not None:
            moved = moved - along(e, data, e.cast(_wide(e, zero), wide), axis, block)
        return e.cast(moved * along(e, data, e.cast(scale, wide), axis, block), dtype)
    scale = scalar(e, scale)
    zero = e.const(0, data.dtype) if zero is None else scalar(e, _wide(e, zero))

    def call(x: Any) -> Any:
        return relax.op.dequantize(x, e.tensor(scale), e.tensor(zero), axis=axis, out_dtype=dtype)

    return e.value(of_tensor(e.bb, e.tensor(data), call))


def real(e: Emit, data: Value, scale: Value, zero: Value | None, axis: int = 0) -> Value:
    """The same for operands as operators have them: vectors of one number, and open sizes that must be equal."""
    scale, zero = scalar(e, scale), None if zero is None else scalar(e, zero)
    if zero is not None and scale.rank == 1 and zero.rank == 0:
        zero = e.expand(e.reshape(zero, [1]), scale.sizes)
    axis %= max(data.rank or 0, 1)
    return dequantised(e, *_agreed(e, axis, data, scale, zero), axis)


def along(e: Emit, data: Value, x: Value, axis: int, block: Block | None = None) -> Value:
    """One number, a vector along one axis of data, or what each block has one of, for the elements of data."""
    if block is not None and x.rank:
        return spread(e, block, x)
    x = scalar(e, x)
    return e.call(relax.op.reshape, x, shape=[-1, *[1] * ((data.rank or 0) - axis - 1)]) if x.rank else x


@operator("QuantizeLinear", since=10)
@operator("QuantizeLinear", domain="com.microsoft")
def _quantize(e: Emit, node: Node, data: Value, scale: Value, zero: Value | None = None) -> Any:
    kind, precision, saturates = node.attr("output_dtype", 0), node.attr("precision", 0), node.attr("saturate", 1)
    dtype = tvm_dtype(kind) if kind else "uint8" if zero is None else zero.dtype
    if kind and zero is not None and zero.dtype != dtype:
        raise node.wrong(f"has output_dtype {dtype} and a zero point of {zero.dtype}")
    if precision:
        data, scale = (e.cast(v, tvm_dtype(precision)) for v in (data, scale))
    elif "int" in data.dtype:
        data = e.cast(data, scale.dtype)
    block = block_of(node, data, scale)
    if block is not None:
        return quantised(e, data, scale, zero, dtype, block.axis, saturates, block)
    axis = _axis(node, data, scale)
    return quantised(e, *_agreed(e, axis, data, scale, zero), dtype, axis, saturates)


def quantised(
    e: Emit,
    data: Value,
    scale: Value,
    zero: Value | None,
    dtype: str,
    axis: int = 0,
    saturates: int = 1,
    block: Block | None = None,
) -> Value:
    """Real numbers divided by their scale, rounded half to even, moved by the zero point and cut to a dtype."""
    if dtype in _WHOLE and block is None:
        scale, zero = scalar(e, scale), e.const(0, dtype) if zero is None else scalar(e, zero)
        # TVM quantises no bfloat16, and neither of these says all integers of 16 bits.
        if data.dtype == "bfloat16" or ("16" in dtype and data.dtype in _NARROW):
            quotient = data / along(e, data, e.cast(scale, data.dtype), axis)
            data, scale = e.cast(e.round(quotient), "float32"), e.const(np.float32(1))

        def call(x: Any) -> Any:
            return relax.op.quantize(x, e.tensor(scale), e.tensor(zero), axis=axis, out_dtype=dtype)

        return e.value(of_tensor(e.bb, e.tensor(data), call))
    whole = e.cast(data / along(e, data, e.cast(scale, data.dtype), axis, block), "float32")
    if "int" in dtype:
        whole = e.round(whole)
    if zero is not None:
        whole = whole + along(e, data, e.cast(_wide(e, zero), "float32"), axis, block)
    return _narrow(e, whole, dtype, saturates)


def _narrow(e: Emit, whole: Value, dtype: str, saturates: int = 1) -> Value:
    """Numbers in float32, of a dtype whose limits they may pass."""
    if "int" in dtype:
        low, high = _LIMITS.get(dtype) or (np.iinfo(dtype).min, np.iinfo(dtype).max)
        whole = e.minimum(e.maximum(whole, float(low)), float(high))
        whole = e.cast(whole, STORED.get(dtype, dtype))
        return whole if dtype not in STORED else Value(e.tensor(whole), dtype=dtype)
    how: dict[str, Any] = {} if "float4" in dtype else {"saturate": saturates}
    return e.onnx("Cast", whole, opset=23, to=elem_type(dtype), **how)


@operator("DynamicQuantizeLinear", since=11)
def _dynamic(e: Emit, x: Value) -> Any:
    """Scale and zero point are those of the range of the source; the scale is 1 where all elements are zero."""
    low, high = e.minimum(e.min(x), 0.0), e.maximum(e.max(x), 0.0)
    span = high - low
    is_range = e.minimum(span * float(np.finfo("float32").max), 1.0)  # 0 or 1
    scale = span / 255.0 + (1.0 - is_range)
    zero = quantised(e, -(low / scale), e.const(1, x.dtype), e.const(0, "uint8"), "uint8")
    return [quantised(e, x, scale, zero, "uint8"), scale, zero]
