"""Tensors that are quantised in blocks, each with a scale: ``MatMulNBits``, ``QuantizeLinear``, ``DequantizeLinear``.

    q [N · K / block, block] ── DequantizeLinear (axis 0) ── Reshape (N, K) ── Transpose ── weights [K, N]

A backend that knows this form reads constant weights as they are stored (`tvm_byoc_dnnl.prepare.compression`). Blocks
that do not divide the axis are cut into smaller ones that do, which share scales. What the form cannot say (such blocks
of no multiple of 8, zero points that are no whole numbers) becomes float32 here, to the same values. Tensors that are
no constant weights have the arithmetic written out, with a scale for each element along the axis.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ...errors import InputError, UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes

_MS = "com.microsoft"
_UNSIGNED = {"uint8": 128, "uint4": 8, "uint2": 2}
_SIGNED = ("int8", "int4", "int2")
_BITS = (2, 4, 8)
#: what `tvm_byoc_dnnl.prepare.compression` takes blocks of multiples of
_UNIT = 8
_STORABLE = (TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16)


class _Blocks(Builder):
    """With the steps from stored blocks to weights."""

    @property
    def title(self) -> str:
        """The old node, for messages."""
        return f"{self.old.op_type} (node `{self.old.name or self.old.output[0]}`)"

    def constant(self, name: str, value: np.ndarray) -> str:
        """A constant whose name begins as that of the old node's result."""
        return self.graph.add_constant(f"{self.old.output[0]}_{name}", value)

    def shaped(self, what: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """``value`` in this shape; models also store it flat."""
        if value.size != math.prod(shape):
            raise InputError(f"{self.title} has {what} of shape {list(value.shape)}; expected {list(shape)}")
        return value.reshape(shape)

    def real(self, numbers: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, block: int) -> str:
        """Weights [N, K]; ``numbers`` int8 [N, K], the others [N, K / block], the last block perhaps shorter."""
        n, k = numbers.shape
        whole = zeros is None or np.array_equal(zeros, zeros.astype("int8"))
        part = math.gcd(min(block, k), k)
        if not whole or part % _UNIT or scales.dtype != np.float32:
            scale, zero = (0 if a is None else a[:, np.arange(k) // block] for a in (scales, zeros))
            return self.constant("weights", ((numbers - zero) * scale).astype(scales.dtype))
        parts = np.arange(0, k, part) // block
        zeros = np.zeros(scales.shape, "int8") if zeros is None else zeros.astype("int8")
        names = [
            self.constant("numbers", numbers.reshape(-1, part)),
            self.constant("scales", scales[:, parts].reshape(-1)),
            self.constant("zeros", zeros[:, parts].reshape(-1)),
        ]
        return self.add("Reshape", [self.add("DequantizeLinear", names, axis=0), self.ints((n, k))])


def _unpacked(stored: np.ndarray, bits: int, count: int) -> np.ndarray:
    """``count`` numbers of each row of bytes, the lowest bits first."""
    parts = [stored >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(stored.shape[0], -1)[:, :count]


def _matmul(graph: Graph, node: onnx.NodeProto) -> Nodes:
    """ONNX Runtime's product with weights of 2, 4 or 8 bits."""
    b = _Blocks(graph, node)
    k, n, block = (int(b.attrs.get(name, 0)) for name in ("K", "N", "block_size"))
    bits = int(b.attrs.get("bits", 4))
    if bits not in _BITS or b.attrs.get("weight_prepacked"):
        how = "weights that are packed for one device" if bits in _BITS else f"{bits} bits; expected 2, 4 or 8"
        raise UnsupportedError(f"no Relax equivalent for {b.title} with {how}")
    if min(k, n, block) < 1 or block * bits % 8:
        raise InputError(f"{b.title} has K {k}, N {n} and block_size {block}; expected blocks of whole bytes")
    unknown = [name for name in b.inputs[1:5] if name and graph.constant(name) is None]
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        raise UnsupportedError(f"no Relax equivalent for {b.title}: {names} must be constant; bake the weights in")
    blocks, offset = -(-k // block), 1 << (bits - 1)
    x, *_, bias = b.inputs[:6]
    stored, scales, zeros, order = (graph.constant(name) if name else None for name in b.inputs[1:5])
    assert stored is not None
    assert scales is not None
    stored = b.shaped("weights", stored, (n, blocks * block * bits // 8))
    numbers = (_unpacked(stored, bits, k).astype("int16") - offset).astype("int8")
    scales = b.shaped("scales", scales, (n, blocks))
    if zeros is not None and zeros.dtype == np.uint8:
        zeros = _unpacked(b.shaped("zero points", zeros, (n, -(-blocks * bits // 8))), bits, blocks)
    if zeros is not None:
        zeros = b.shaped("zero points", zeros, (n, blocks)).astype("float32") - offset
    if order is None or np.array_equal(order[:k], np.arange(k) // block):
        weights = b.real(numbers, scales, zeros, block)
    else:
        order = order[:k]
        if order.shape != (k,) or not 0 <= order.min() <= order.max() < blocks:
            raise InputError(f"{b.title} has a g_idx of shape {list(order.shape)}; expected {k} blocks below {blocks}")
        spread = np.zeros((n, k)) if zeros is None else zeros[:, order]
        weights = b.constant("weights", ((numbers - spread) * scales[:, order]).astype(scales.dtype))
    product = b.add("MatMul", [x, b.add("Transpose", [weights], perm=[1, 0])], None if bias else node.output[0])
    if bias:
        b.add("Add", [product, bias], node.output[0])
    return b.nodes


# ---------------------------------------------------------------- QuantizeLinear and DequantizeLinear
def _blocks(b: _Blocks) -> tuple[int, int, int] | None:
    """Axis, its size, and the size of a block; nothing for one scale, or one per slice.

    Blocks that do not divide the axis leave a shorter one at its end.
    """
    block, dims, scales = int(b.attrs.get("block_size", 0)), b.graph.dims(b.inputs[0]), b.graph.dims(b.inputs[1])
    if not block:
        return None
    axis = int(b.attrs.get("axis", 1))
    if dims is None or not -len(dims) <= axis < len(dims) or not isinstance(dims[axis], int) or block < 0:
        known = "unknown shape" if dims is None else f"shape {list(dims)}"
        raise UnsupportedError(
            f"no Relax equivalent for {b.title} with blocks of {block} along axis {axis} of {known}; "
            "expected an axis of a known size"
        )
    axis, size = axis % len(dims), int(dims[axis])
    if scales is not None and (len(scales) != len(dims) or scales[axis] != -(-size // block)):
        raise InputError(
            f"{b.title} has scales of shape {list(scales)} for blocks of {block} along axis {axis} of {list(dims)}; "
            f"expected {-(-size // block)} of them along it"
        )
    return axis, size, block


def _dequantize(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Constant weights with two axes as they are stored, all else as arithmetic."""
    b = _Blocks(graph, node)
    found = _blocks(b)
    if found is None:
        return None
    axis, _, block = found
    data, scales, zeros = (graph.constant(name) if name else None for name in b.inputs[:3])
    kind = "" if data is None else str(data.dtype)
    offset = _UNSIGNED.get(kind, 0)
    is_weights = data is not None and data.ndim == 2 and (offset or kind in _SIGNED) and not b.attrs.get("output_dtype")
    if not is_weights or scales is None or (b.inputs[2] and zeros is None):
        return _dequantized(b, *found)
    assert data is not None
    if offset and zeros is None:
        zeros = np.zeros(scales.shape, "float32")
    turned: Any = (lambda a: None if a is None else np.ascontiguousarray(a.T)) if axis == 0 else (lambda a: a)
    numbers = turned((data.astype("int16") - offset).astype("int8"))
    centre = None if zeros is None else turned(zeros.astype("float32") - offset)
    weights = b.real(numbers, turned(scales), centre, block)
    if axis == 0:
        b.add("Transpose", [weights], node.output[0], perm=[1, 0])
    else:
        b.add("Identity", [weights], node.output[0])
    return b.nodes


def _dequantized(b: _Blocks, axis: int, size: int, block: int) -> Nodes:
    """``(x - zero point) · scale`` in float32, as ONNX defines it."""
    x, scale, zero = b.inputs[:3]
    result = int(b.attrs.get("output_dtype", 0)) or b.graph.elem_type(scale) or TensorProto.FLOAT
    whole = _float(b, x)
    if zero:
        whole = b.add("Sub", [whole, _spread(b, _float(b, zero), axis, size, block)])
    product = b.add("Mul", [whole, _spread(b, _float(b, scale), axis, size, block)])
    b.add("Cast", [product], b.old.output[0], to=result)
    return b.nodes


def _quantize(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Divided, rounded and moved; the last step, with a scale of 1, clamps."""
    b = _Blocks(graph, node)
    found = _blocks(b)
    if found is None:
        return None
    x, scale, zero = b.inputs[:3]
    kind = int(b.attrs.get("output_dtype", 0)) or (graph.elem_type(zero) if zero else TensorProto.UINT8)
    if kind not in _STORABLE or b.attrs.get("precision"):
        raise UnsupportedError(
            f"no Relax equivalent for {b.title} in blocks to {TensorProto.DataType.Name(kind)}; "
            "expected 8 or 16 bits, and no precision of its own"
        )
    whole = b.add("Round", [_float(b, b.add("Div", [x, _spread(b, scale, *found)]))])
    if zero:
        whole = b.add("Add", [whole, _spread(b, _float(b, zero), *found)])
    origin = b.constant("origin", np.zeros((), onnx.helper.tensor_dtype_to_np_dtype(kind)))
    b.add("QuantizeLinear", [whole, b.constant("one", np.float32(1)), origin], node.output[0])
    return b.nodes


def _float(b: _Blocks, name: str) -> str:
    value = b.graph.constant(name)
    return b.add("Cast", [name], to=TensorProto.FLOAT) if value is None else b.constant("real", value.astype("float32"))


def _spread(b: _Blocks, name: str, axis: int, size: int, block: int) -> str:
    """Of what each block has one of, one for each element along the axis."""
    value, places = b.graph.constant(name), np.arange(size) // block
    if value is not None:
        return b.constant("spread", np.take(value, places, axis))
    return b.add("Gather", [name, b.ints(places.tolist())], axis=axis)


RULES = {
    (_MS, "MatMulNBits"): _matmul,
    **{(domain, "DequantizeLinear"): _dequantize for domain in ("", _MS)},
    **{(domain, "QuantizeLinear"): _quantize for domain in ("", _MS)},
}
