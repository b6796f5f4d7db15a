"""QuantizeLinear and its like, straight into Relax's ``quantize`` and ``dequantize``, which patterns know.

Dtypes that these do not have (2 and 4 bits, float8) are of their numbers in int8, uint8 or float32. What has blocks
along an axis is in `quantised_blocks`.

Operators on quantised tensors are dequantise, compute, quantise: the form that both TVM and backends know.

    QLinearConv(x, w)  ->  quantize(conv2d(dequantize(x), dequantize(w)))

The integer operators become the same with scales of 1, as long as float32 says all sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import defs, helper
from tvm import relax

from ....core.tensor_info import STORED
from ....ir.tvm_compat import quantised as of_tensor
from ..emit import Emit, common, elem_type
from ..table import operator
from ..value import Node, Value
from .attention import attention_of_product
from .convolutions import convolution
from .pools import averaged
from .products import multiplied
from .quantised_blocks import Block, block_of, spread, stored_weights
from .runtime_others import channels_first, channels_last, plus

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


_MS = "com.microsoft"


def _real(e: Emit, node: Node, first: int, axis: int = 0, data: Value | None = None) -> Value:
    """The real numbers of three inputs: data (or other ones), scale, zero point."""
    return real(e, data or node.needed(first), node.needed(first + 1), node.input(first + 2), axis)


def _stored(e: Emit, node: Node, result: Value, first: int, like: Value) -> Value:
    """A result quantised by two inputs; without a zero point it has the dtype of ``like``."""
    scale, zero = node.needed(first), node.input(first + 1)
    return quantised(e, result, scale, zero, like.dtype if zero is None else zero.dtype)


def _channels(e: Emit, node: Node, data: Value) -> tuple[Value, Callable[[Value], Value]]:
    """``data`` with its channels behind the first axis, and what puts them last again where they were."""
    if not node.attr("channels_last", 0):
        return data, lambda x: x
    return channels_first(e, data), lambda x: channels_last(e, x)


def _bias(e: Emit, bias: Value, x_scale: Value, w_scale: Value) -> Value:
    """An int32 bias, whose scale is the product of the operands'."""
    if all(v.is_constant for v in (bias, x_scale, w_scale)):
        whole, xs, ws = (v.known for v in (bias, x_scale, w_scale))
        return e.const((whole * (xs * ws).reshape(-1)).astype("float32"))  # type: ignore[operator]
    scale = x_scale * w_scale
    return e.cast(bias, "float32") * scale


@operator("QLinearConv", since=10)
@operator("QLinearConv", domain=_MS)
def _conv(e: Emit, node: Node, x: Value) -> Any:
    bias, (image, back) = node.input(8), _channels(e, node, x)
    biased = None if bias is None else _bias(e, bias, node.needed(1), node.needed(4))
    made = convolution(e, node, _real(e, node, 0, data=image), _real(e, node, 3), biased)
    return back(_stored(e, node, made, 6, x))


@operator("QLinearMatMul", since=10)
def _matmul(e: Emit, node: Node, x: Value) -> Any:
    """In float32: sums of products in float16 are off by more than a step of the result."""
    w, *given = (node.needed(i) for i in (3, 1, 4, 6))
    if wrong := [s for s in given[:2] if (s.rank or 0) > 1 and s.shape != (1,) * (s.rank or 0)]:
        raise node.refused(f"has scales of {wrong[0]}; expected one, or one per row or column")
    scales = [e.cast(s, "float32") if s.dtype in _NARROW else s for s in given]
    result = multiplied(e, real(e, x, scales[0], node.input(2), -2), real(e, w, scales[1], node.input(5), -1))
    zero = node.input(7)
    return quantised(e, result, scales[2], zero, x.dtype if zero is None else zero.dtype)


@operator("QGemm", domain=_MS)
def _gemm(e: Emit, node: Node, x: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Any:
    bias = node.input(6)
    a, b = _real(e, node, 0), _real(e, node, 3, axis=0 if transB else 1)
    if alpha != 1.0:
        a = a * alpha
    made = multiplied(e, e.transpose(a, [1, 0]) if transA else a, e.transpose(b, [1, 0]) if transB else b)
    if bias is not None:
        shift = _bias(e, bias, node.needed(1), node.needed(4))
        made = made + (shift * alpha if alpha != 1.0 else shift)
    return made if node.input(7) is None else _stored(e, node, made, 7, x)


#: operator → the standard's, its version, where data, scale and zero point of its operands begin, and the result's
_CHAINS: dict[str, tuple[str, int, tuple[int, ...], int]] = {
    "QLinearAdd": ("Add", 16, (0, 3), 6),
    "QLinearAveragePool": ("AveragePool", 16, (0,), 3),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 16, (0,), 3),
    "QLinearLeakyRelu": ("LeakyRelu", 16, (0,), 3),
    "QLinearMul": ("Mul", 16, (0, 3), 6),
    "QLinearReduceMean": ("ReduceMean", 13, (0,), 3),
    "QLinearSigmoid": ("Sigmoid", 16, (0,), 3),
}


@operator(*_CHAINS, domain=_MS)
def _chain(e: Emit, node: Node, x: Value) -> Any:
    op, opset, (first, *others), result = _CHAINS[node.op]
    image, back = _channels(e, node, x)
    attrs = {name: node.attr(name) for name in defs.get_schema(op, opset).attributes if name in node.attrs}
    operands = [_real(e, node, first, data=image), *(_real(e, node, i) for i in others)]
    # with its own node, as which ONNX Runtime counts the windows of a pool in another way
    made = averaged(e, node, *operands) if op == "AveragePool" else e.onnx(op, *operands, opset=opset, **attrs)
    return back(_stored(e, node, made, result, x))


@operator("QLinearSoftmax", domain=_MS)
def _softmax(e: Emit, node: Node, x: Value, *, opset: int = 13, axis: int = -1) -> Any:
    """Before opset 13 of the standard, which an attribute names, all axes from ``axis`` on are one."""
    made = e.onnx("Softmax", _real(e, node, 0), opset=min(max(opset, 11), 13), axis=axis)
    return _stored(e, node, made, 3, x)


@operator("QLinearConcat", domain=_MS)
def _concat(e: Emit, node: Node, *, axis: int = 0) -> Any:
    parts = [_real(e, node, i) for i in range(2, len(node.inputs), 3)]
    made = e.onnx("Concat", *parts, opset=13, axis=axis)
    return _stored(e, node, made, 0, node.needed(2))


# ---- products of integers ---------------------------------------------------------------------------------

#: float32 says all integers up to here
_EXACT = 1 << 24


@operator("ConvInteger", since=10)
def _conv_integer(e: Emit, node: Node) -> Any:
    summed = tuple(range(1, node.needed(1).rank or 0))
    return _integer(e, node, summed, (0, 0), lambda x, w: convolution(e, node, x, w))


@operator("MatMulInteger", since=10)
def _matmul_integer(e: Emit, node: Node) -> Any:
    rank = node.needed(1).rank or 1
    return _integer(e, node, (max(rank - 2, 0),), (-2, -1), lambda x, w: multiplied(e, x, w))


def _largest_sum(node: Node, axes: tuple[int, ...], axis: int) -> float:
    """No sum of products is further from 0; ``axes`` of the weights are summed over."""
    x, weight, zero = node.needed(0), node.needed(1), node.input(3)
    largest, each = (int(np.iinfo(v.dtype).max) - int(np.iinfo(v.dtype).min) for v in (x, weight))
    dims = weight.dims or ()
    sizes = [d for a in axes if dims and isinstance(d := dims[a], int)]
    depth = math.prod(sizes) if sizes and len(sizes) == len(axes) else math.inf
    centre = np.zeros((), "int32") if zero is None else zero.known
    if depth * each * largest <= _EXACT or weight.known is None or centre is None or not weight.known.size:
        return depth * each * largest
    if centre.ndim == 1 and axis == 0:
        centre = centre.reshape(-1, *[1] * (len(dims) - 1))
    return float(np.abs(weight.known.astype("int32") - centre).sum(axes, dtype="int64").max()) * largest


def _integer(
    e: Emit, node: Node, summed: tuple[int, ...], axes: tuple[int, int], product: Callable[[Value, Value], Value]
) -> Value:
    """The product of integers minus their zero points, as int32, or as float32 where only that is read."""
    given = [(node.needed(i), node.input(i + 2), axes[i]) for i in range(2)]
    is_exact = _largest_sum(node, summed, axes[1]) <= _EXACT
    by_matrix = any(zero is not None and (zero.rank or 0) - zero.sizes.count(1) > 1 for _, zero, _ in given)
    if by_matrix or not (is_exact or _is_read_as_float(node)):
        return product(*(_moved(e, node, *operand) for operand in given))
    operands = []
    for x, zero, axis in given:
        if zero is not None and zero.rank is not None and zero.rank > 1:
            zero = e.reshape(zero, [d for d in zero.sizes if d != 1])
        count = 1 if zero is None or not zero.rank else (zero.dims or (1,))[0]
        if zero is not None and not isinstance(count, int):
            raise node.refused("has zero points of an open number")
        one = e.const(np.ones(() if count == 1 else (count,), "float32"))
        operands.append(dequantised(e, x, one, zero, axis % max(x.rank or 0, 1)))
    made = product(*operands)
    return made if _is_read_as_float(node) else e.cast(made, "int32")


def _moved(e: Emit, node: Node, x: Value, zero: Value | None, axis: int) -> Value:
    """Integers minus their zero points, as int32."""
    whole = e.cast(x, "int32")
    if zero is None:
        return whole
    centre = e.cast(zero, "int32")
    return whole - (along(e, x, centre, axis % x.rank) if zero.rank == 1 and x.rank else centre)


def _is_read_as_float(node: Node) -> bool:
    """Whether each reader converts the integers to float32, so that no integers are needed."""
    readers, is_result = node.readers(0)
    return not is_result and all(n.op_type == "Cast" and n.attribute[0].i == onnx.TensorProto.FLOAT for n in readers)


# ---- operators that are no chain of one operator between two casts ----------------------------------------


@operator("MatMulIntegerToFloat", domain=_MS)
def _integer_to_float(e: Emit, node: Node, a: Value, b: Value, a_scale: Value, b_scale: Value) -> Value:
    return _real_product(e, real(e, a, a_scale, node.input(4), -2), b, b_scale, node.input(5), node.input(6))


@operator("DynamicQuantizeMatMul", domain=_MS)
def _dynamic_product(
    e: Emit, x: Value, b: Value, scale: Value, zero: Value | None = None, bias: Value | None = None
) -> Value:
    quantised, own_scale, own_zero = e.onnx("DynamicQuantizeLinear", x, opset=13, outputs=3)
    return _real_product(e, real(e, quantised, own_scale, own_zero, -2), b, scale, zero, bias)


def _real_product(e: Emit, left: Value, b: Value, scale: Value, zero: Value | None, bias: Value | None) -> Value:
    return plus(e.onnx("MatMul", left, real(e, b, scale, zero, -1), opset=13), bias)


@operator("QAttention", domain=_MS, whole=True)
def _quantised_attention(e: Emit, node: Node) -> list[Value | None]:
    x, weights, bias, scale, weight_scale = (node.needed(i) for i in range(5))
    left = real(e, x, scale, node.input(6), -1)
    product = _real_product(e, left, weights, weight_scale, node.input(7), bias)
    return attention_of_product(e, node, product, mask=node.input(5), past=node.input(8))


@operator("QLinearWhere", domain=_MS)
def _quantised_where(e: Emit, node: Node, condition: Value) -> Value:
    """The condition, then data, scale and zero point of both operands, and those of the result."""
    return _stored(e, node, e.where(condition, _real(e, node, 1), _real(e, node, 4)), 7, node.needed(1))


@operator("DynamicQuantizeLSTM", domain=_MS)
def _recurrent(e: Emit, node: Node) -> list[Value | None]:
    """The layer with its weights as numbers; what it reads is never rounded here."""
    given = [node.input(i) for i in range(8)]
    given[1], given[2] = (_gates(e, node, i, scale) for i, scale in ((1, 8), (2, 10)))
    return list(e.onnx("LSTM", *given, opset=14, outputs=3, **{name: node.attr(name) for name in node.attrs}))


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
    real = e.cast(stored, "float32")
    if zero is not None:
        real = real - e.reshape(e.cast(zero, "float32"), [directions, 1, width if _is_wide(zero) else 1])
    return e.transpose(real * e.reshape(scale, [directions, 1, width if _is_wide(scale) else 1]), [0, 2, 1])


def _is_wide(x: Value) -> bool:
    return x.rank == 2 and x.sizes[1] != 1
