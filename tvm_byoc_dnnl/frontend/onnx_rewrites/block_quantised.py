"""Constant weights that are quantised in blocks, each with a scale: ``MatMulNBits`` and ``DequantizeLinear``.

    q [N · K / block, block] ── DequantizeLinear (axis 0) ── Reshape (N, K) ── Transpose ── weights [K, N]

A backend that knows this form reads the weights as they are stored (`tvm_byoc_dnnl.prepare.compression`). What it
cannot say (blocks that do not divide the axis, zero points that are no whole numbers) becomes float32 here, to the
same values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes

_MS = "com.microsoft"
_UNSIGNED = {"uint8": 128, "uint4": 8}


class _Blocks(Builder):
    """With the steps from stored blocks to weights."""

    def constant(self, name: str, value: np.ndarray) -> str:
        """A constant whose name begins as that of the old node's result."""
        return self.graph.add_constant(f"{self.old.output[0]}_{name}", value)

    def real(self, numbers: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None) -> str:
        """Weights [N, K]; ``numbers`` int8 [N, K], the others [N, K / block]."""
        n, k = numbers.shape
        whole = zeros is None or np.array_equal(zeros, zeros.astype("int8"))
        block = -(-k // scales.shape[1])
        if not whole or k % scales.shape[1] or scales.dtype != np.float32:
            zeros = np.zeros(scales.shape) if zeros is None else zeros
            scale, zero = (np.repeat(a, block, 1)[:, :k] for a in (scales, zeros))
            return self.constant("weights", ((numbers - zero) * scale).astype(scales.dtype))
        zero = np.zeros(scales.size, "int8") if zeros is None else zeros.reshape(-1).astype("int8")
        names = [
            self.constant("numbers", numbers.reshape(-1, block)),
            self.constant("scales", scales.reshape(-1)),
            self.constant("zeros", zero),
        ]
        return self.add("Reshape", [self.add("DequantizeLinear", names, axis=0), self.ints((n, k))])


def _unpacked(stored: np.ndarray, bits: int, count: int) -> np.ndarray:
    """``count`` numbers of each row of bytes, the lowest bits first."""
    if bits == 8:
        return stored[:, :count]
    return np.stack([stored & 15, stored >> 4], -1).reshape(stored.shape[0], -1)[:, :count]


def _matmul(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """ONNX Runtime's product with weights of 4 or 8 bits."""
    b = _Blocks(graph, node)
    k, n, bits, block = (int(b.attrs.get(name, 4)) for name in ("K", "N", "bits", "block_size"))
    blocks = -(-k // block)
    x, *_, bias = b.inputs[:6]
    stored, scales, zeros, order = (graph.constant(name) if name else None for name in b.inputs[1:5])
    unknown = [name for name in b.inputs[1:5] if name and graph.constant(name) is None]
    if bits not in (4, 8) or unknown or stored is None or scales is None:
        return None
    offset = 1 << (bits - 1)
    numbers = _unpacked(stored.reshape(n, -1), bits, k).astype("int16") - offset
    if zeros is not None and zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(n, -1), bits, blocks).astype("float32")
    if zeros is not None:
        zeros = zeros.reshape(n, blocks).astype("float32") - offset
    scales = scales.reshape(n, blocks)
    numbers = numbers.astype("int8")
    if order is not None and not np.array_equal(order, np.arange(k) // block):
        spread = np.zeros((n, k)) if zeros is None else zeros[:, order]
        weights = b.constant("weights", ((numbers - spread) * scales[:, order]).astype(scales.dtype))
    else:
        weights = b.real(numbers, scales, zeros)
    product = b.add("MatMul", [x, b.add("Transpose", [weights], perm=[1, 0])], None if bias else node.output[0])
    if bias:
        b.add("Add", [product, bias], node.output[0])
    return b.nodes


def _dequantize(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Weights with two axes and blocks along one of them."""
    b = _Blocks(graph, node)
    block, axis = int(b.attrs.get("block_size", 0)), int(b.attrs.get("axis", 1))
    data, scales, zeros = (graph.constant(name) if name else None for name in b.inputs[:3])
    if not block or data is None or scales is None or (b.inputs[2] and zeros is None) or data.ndim != 2:
        return None
    offset = _UNSIGNED.get(str(data.dtype), 0)
    if not offset and str(data.dtype) not in ("int8", "int4"):
        return None
    if offset and zeros is None:
        zeros = np.zeros(scales.shape, "float32")
    turned: Any = (lambda a: None if a is None else np.ascontiguousarray(a.T)) if axis % 2 == 0 else (lambda a: a)
    numbers = turned((data.astype("int16") - offset).astype("int8"))
    centre = None if zeros is None else turned(zeros.astype("float32") - offset)
    weights = b.real(numbers, turned(scales), centre)
    if axis % 2 == 0:
        b.add("Transpose", [weights], node.output[0], perm=[1, 0])
    else:
        b.add("Identity", [weights], node.output[0])
    return b.nodes


RULES = {(_MS, "MatMulNBits"): _matmul, ("", "DequantizeLinear"): _dequantize}
