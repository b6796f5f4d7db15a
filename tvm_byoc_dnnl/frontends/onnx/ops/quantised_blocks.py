"""Tensors that are quantised in blocks, each with a scale: ``MatMulNBits``, ``QuantizeLinear``, ``DequantizeLinear``.

    q [N · K / block, block] ── dequantize (axis 0) ── reshape (N, K) ── permute_dims ── weights [K, N]

A backend that knows this form reads constant weights as they are stored (`tvm_byoc_dnnl.prepare.compression`). Of
``DequantizeLinear``, blocks that do not divide the axis are cut into smaller ones that do, which share scales; of
``MatMulNBits``, they are filled, and the source with zeros. What the form cannot say (blocks of no multiple of 8, zero
points that are no whole numbers) becomes float32 here, to the same values. Tensors that are no constant weights have
the arithmetic written out, with a scale for each element along the axis.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ....whole.table import rounded
from ..emit import Emit
from ..table import operator
from ..value import Node, Type, Value, whole

_BITS = (2, 4, 8)
#: `accuracy_level` of sources that are rounded to 8 bits; lower ones let the products be as exact as they like
INTEGER_LEVEL = 4
#: what `tvm_byoc_dnnl.prepare.compression` takes blocks of multiples of
_UNIT = 8


class Block(NamedTuple):
    """Blocks of ``length`` elements along an axis of ``size``; the last one may be shorter."""

    axis: int
    size: int
    length: int


def block_of(node: Node, data: Value, scale: Value) -> Block | None:
    """The blocks of a node; nothing for one scale, or one per slice."""
    length = int(node.attr("block_size", 0))
    if not length:
        return None
    axis, dims = int(node.attr("axis", 1)), data.sizes
    if not -len(dims) <= axis < len(dims) or not isinstance(dims[axis], int) or length < 0:
        raise node.refused(f"has blocks of {length} along axis {axis} of {data}; expected an axis of a known size")
    axis, size = axis % len(dims), int(dims[axis])  # type: ignore[arg-type]
    count = -(-size // length)
    if scale.dims is not None and (len(scale.sizes) != len(dims) or scale.sizes[axis] != count):
        raise node.wrong(
            f"has scales of {scale} for blocks of {length} along axis {axis} of {data}; expected {count} along it"
        )
    return Block(axis, size, length)


def real_weights(e: Emit, numbers: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, length: int) -> Value:
    """Weights [N, K] of ``numbers`` int8 [N, K]; the others are [N, K / length], the last block perhaps shorter."""
    n, k = numbers.shape
    is_whole = _is_whole(zeros)
    part = math.gcd(min(length, k), k)
    if not is_whole or part % _UNIT or scales.dtype != np.float32:
        scale, zero = (0 if a is None else a[:, np.arange(k) // length] for a in (scales, zeros))
        return e.const(((numbers - zero) * scale).astype(scales.dtype))
    parts = np.arange(0, k, part) // length
    zeros = np.zeros(scales.shape, "int8") if zeros is None else zeros.astype("int8")
    rows = [numbers.reshape(-1, part), scales[:, parts].reshape(-1), zeros[:, parts].reshape(-1)]
    values = [e.const(np.ascontiguousarray(r)) for r in rows]
    return e.reshape(e.dequantize(*values, axis=0, out_dtype="float32"), [n, k])


def _is_whole(zeros: np.ndarray | None) -> bool:
    return zeros is None or np.array_equal(zeros, zeros.astype("int8"))


def product_types(node: Node) -> list[Type]:
    x = node.needed(0)
    return [Type(x.dtype, (*x.sizes[:-1], int(node.attr("N", 0))))]


@operator("MatMulNBits", domain="com.microsoft", types=product_types, whole=True)
def _matmul(e: Emit, node: Node, x: Value, *, accuracy_level: int = 0, weight_prepacked: int = 0) -> Any:
    """ONNX Runtime's product with weights of 2, 4 or 8 bits."""
    k, n, length, bits = (int(node.attr(a, d)) for a, d in (("K", 0), ("N", 0), ("block_size", 0), ("bits", 4)))
    if bits not in _BITS or weight_prepacked:
        how = "weights that are packed for one device" if bits in _BITS else f"{bits} bits; expected 2, 4 or 8"
        raise node.refused(f"has {how}")
    if min(k, n, length) < 1 or length * bits % 8:
        raise node.wrong(f"has K {k}, N {n} and block_size {length}; expected blocks of whole bytes")
    blocks, offset = -(-k // length), 1 << (bits - 1)
    stored, scales, zeros, order = (
        None if node.input(i) is None else node.known(i, f"its weights, input {i},") for i in (1, 2, 3, 4)
    )
    if stored is None or scales is None:
        raise node.wrong("has no weights or no scales")
    stored = shaped(node, "weights", stored, (n, blocks * length * bits // 8))
    numbers = (unpacked(stored, bits, blocks * length).astype("int16") - offset).astype("int8")
    scales = shaped(node, "scales", scales, (n, blocks))
    is_packed = zeros is None or zeros.dtype == np.uint8
    if zeros is not None and is_packed:
        zeros = unpacked(shaped(node, "zero points", zeros, (n, -(-blocks * bits // 8))), bits, blocks)
    if zeros is not None:
        zeros = shaped(node, "zero points", zeros, (n, blocks)).astype("float32") - offset
    if order is None or np.array_equal(order[:k], np.arange(k) // length):
        if x.dims and x.dtype == scales.dtype == "float32" and _is_whole(zeros) and length % _UNIT == 0:
            x = e.agree(x, [*x.sizes[:-1], k])
            if rest := blocks * length - k:  # the numbers that the last block lacks
                x = e.pad(x, pad_width=[0, 0] * (len(x.sizes) - 1) + [0, rest])
            if accuracy_level == INTEGER_LEVEL and is_packed and order is None:
                x = e.call(rounded, x, block=length)
        else:
            numbers = numbers[:, :k]
        weights = real_weights(e, numbers, scales, zeros, length)
    else:
        order, numbers = order[:k], numbers[:, :k]
        if order.shape != (k,) or not 0 <= order.min() <= order.max() < blocks:
            raise node.wrong(f"has a g_idx of shape {list(order.shape)}; expected {k} blocks below {blocks}")
        weights = e.cast(e.const(numbers), scales.dtype.name)
        if zeros is not None:
            weights = weights - e.take(e.const(zeros.astype(scales.dtype)), e.const(order), axis=1)
        weights = weights * e.take(e.const(scales), e.const(order), axis=1)
    made = e.matmul(x, e.transpose(e.cast(weights, x.dtype), [1, 0]))
    bias = node.input(5)
    return made if bias is None else made + bias


def unpacked(stored: np.ndarray, bits: int, count: int) -> np.ndarray:
    """``count`` numbers of each row of bytes, the lowest bits first."""
    parts = [stored >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*stored.shape[:-1], -1)[..., :count]


def shaped(node: Node, what: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``value`` in this shape; models also store it flat."""
    if value.size != math.prod(shape):
        raise node.wrong(f"has {what} of shape {list(value.shape)}; expected {list(shape)}")
    return value.reshape(shape)


def stored_weights(
    e: Emit, node: Node, block: Block, dtype: str, data: Value, scale: Value, zero: Value | None
) -> Value | None:
    """Constant weights with two axes as they are stored, int8 or uint8; ``None`` for all else."""
    numbers, scales, zeros = (None if v is None or not v.is_constant else v.known for v in (data, scale, zero))
    is_stored = data.rank == 2 and data.dtype in ("int8", "uint8") and dtype == scale.dtype
    if numbers is None or scales is None or (zero is not None and zeros is None) or not is_stored:
        return None
    offset = {"uint8": 128 if node.needed(0).dtype == "uint8" else 8}.get(data.dtype, 0)
    if offset and zeros is None:
        zeros = np.zeros(scales.shape, "float32")
    turned: Any = (lambda a: None if a is None else np.ascontiguousarray(a.T)) if block.axis == 0 else (lambda a: a)
    stored = turned((numbers.astype("int16") - offset).astype("int8"))
    centre = None if zeros is None else turned(zeros.astype("float32") - offset)
    weights = real_weights(e, stored, turned(scales), centre, block.length)
    return e.transpose(weights, [1, 0]) if block.axis == 0 else weights


def spread(e: Emit, block: Block, x: Value) -> Value:
    """Of what each block has one of, one for each element along the axis."""
    places = np.arange(block.size) // block.length
    if x.is_constant:
        return e.const(np.take(x.known, places, block.axis))  # type: ignore[arg-type]
    return e.take(x, e.const(places), axis=block.axis)


# ---- rows of a table, in blocks that share a scale --------------------------------------------------------


_MS = "com.microsoft"


def _rows_types(node: Node) -> list[Type]:
    stored, indices, scales = (node.needed(i) for i in range(3))
    dims = list(stored.sizes)
    if stored.dtype == "uint8":
        dims[-1] = dims[-1] * (8 // int(node.attr("bits", 4)))
    axis = int(node.attr("gather_axis", 0)) % len(dims)
    return [Type(scales.dtype, (*dims[:axis], *indices.sizes, *dims[axis + 1 :]))]


@operator("GatherBlockQuantized", domain=_MS, types=_rows_types, whole=True)
def _gather_rows(
    e: Emit, node: Node, stored: Value, indices: Value, scales: Value, zeros: Value | None = None
) -> Value:
    """Rows of a table in blocks; 0 for a row that is not there."""
    bits, block = int(node.attr("bits", 4)), int(node.attr("block_size", 128))
    rank = len(stored.sizes)
    axis, along = int(node.attr("gather_axis", 0)) % rank, int(node.attr("quantize_axis", 1)) % rank
    is_packed = stored.dtype == "uint8"
    if is_packed and (along != rank - 1 or axis == along):
        raise node.wrong(f"has bytes and the axes {axis} and {along}; expected blocks along the last axis")
    index, last = e.cast(indices, "int64"), whole(stored.sizes[axis])
    index = e.where(index < 0, index + last, index)
    is_there = (index >= 0) & (index < last)
    index = e.where(is_there, index, 0)
    rows = numbers_in(e, e.take(stored, index, axis=axis), bits if is_packed else 8)
    places = along if along < axis else along + len(indices.sizes) - 1
    if not isinstance(size := rows.sizes[places], int):
        raise node.refused("has blocks along an axis of an open size; fix it")
    blocks = Block(places, size, block)
    nothing = e.zeros([1 if a == axis else size for a, size in enumerate(scales.sizes)], scales.dtype)
    place = e.where(is_there, index, last)
    scale = spread(e, blocks, e.take(e.concat([scales, nothing], axis), place, axis=axis))
    real = e.cast(rows, scale.dtype)
    if zeros is not None:
        origin = e.take(zeros, index, axis=axis)
        if is_packed:
            origin = numbers_in(e, origin, bits, scales.sizes[along])
        real = real - e.cast(spread(e, blocks, origin), scale.dtype)
    elif is_packed:
        real = real - float(1 << (bits - 1))
    return real * scale


def numbers_in(e: Emit, stored: Value, bits: int, count: Any = None) -> Value:
    """Bytes along the last axis as the numbers in them, perhaps the first ``count`` of these."""
    if bits == 8:
        return stored
    *lead, last = stored.sizes
    moved = [e.right_shift(stored, e.const(shift, "uint8")) if shift else stored for shift in range(0, 8, bits)]
    parts = [part & e.const((1 << bits) - 1, "uint8") for part in moved]
    wide = e.reshape(e.stack(parts, -1), [*lead, last * len(parts)])
    return wide if count is None else e.cut(wide, len(lead), 0, count)
