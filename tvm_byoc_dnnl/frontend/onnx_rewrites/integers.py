"""Arithmetic whose corner cases TVM leaves to the machine: shifts out of range, remainders of infinities, powers."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..onnx_graph import Graph
from .builder import Builder, Nodes

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
INTEGERS = frozenset({*range(TensorProto.UINT8, TensorProto.INT64 + 1), TensorProto.UINT32, TensorProto.UINT64})


def dtype_of(graph: Graph, name: str) -> np.dtype | None:
    """NumPy's dtype of a value, ``None`` when unknown."""
    kind = graph.elem_type(name)
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind)) if kind else None


def _bit_shift(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """A shift by the width or more, or by less than 0, moves every bit out; machines shift by the remainder."""
    dtype = dtype_of(graph, node.input[0])
    if dtype is None:
        return None
    shift, bits = graph.constant(node.input[1]), dtype.itemsize * 8
    if shift is not None and ((shift >= 0) & (shift < bits)).all():
        return None
    b = Builder(graph, node)
    x, by = node.input
    zero = graph.add_constant(f"{node.output[0]}_zero", np.array(0, dtype))
    inside = b.add("Less", [by, graph.add_constant(f"{node.output[0]}_bits", np.array(bits, dtype))])
    if dtype.kind == "i":
        inside = b.add("And", [inside, b.add("GreaterOrEqual", [by, zero])])
    shifted = b.add("BitShift", [x, b.add("Where", [inside, by, zero])], **b.attrs)
    b.settle()
    emptied = zero
    if dtype.kind == "i" and b.attrs["direction"] == "RIGHT":
        ones = graph.add_constant(f"{node.output[0]}_ones", np.array(-1, dtype))
        emptied = b.add("Where", [b.add("Less", [x, zero]), ones, zero])
    b.add("Where", [inside, shifted, emptied], node.output[0])
    return b.nodes


def integer_power(graph: Graph, node: onnx.NodeProto) -> Nodes:
    """Powers of integers by squaring, exact and with the overflow of integers; TVM only knows powers of floats.

    With an exponent below 0, 1 and -1 have their inverse, and every other number has 0.
    """
    b = Builder(graph, node)
    base, exponent = node.input
    dtype = dtype_of(graph, base)
    assert dtype is not None
    known = graph.constant(exponent)
    is_signed, bits = dtype.kind == "i", dtype.itemsize * 8
    may_be_negative = is_signed and (known is None or bool((known < 0).any()))
    # The lowest bit of an exponent below 0 says whether the inverse of -1 is -1, as it does above.
    highest = max(1, int(known.max(initial=0))) if known is not None else (1 << (bits - is_signed)) - 1
    one = graph.add_constant(f"{node.output[0]}_one", np.array(1, dtype))
    zero = graph.add_constant(f"{node.output[0]}_zero", np.array(0, dtype))
    result = one
    base_of_all = base
    for bit in range(highest.bit_length()):
        mask = graph.add_constant(f"{node.output[0]}_bit", np.array(1 << bit, dtype))
        skipped = b.add("Equal", [b.add("BitwiseAnd", [exponent, mask]), zero])
        result = b.add("Mul", [result, b.add("Where", [skipped, one, base])])
        base = b.add("Mul", [base, base])
    b.nodes.pop()  # no node reads the square
    if may_be_negative:
        below = b.add("Less", [exponent, zero])
        minus = graph.add_constant(f"{node.output[0]}_minus", np.array(-1, dtype))
        is_unit = b.add("Or", [b.add("Equal", [base_of_all, one]), b.add("Equal", [base_of_all, minus])])
        result = b.add("Where", [b.add("And", [below, b.add("Not", [is_unit])]), zero, result])
    b.add("Identity", [result], node.output[0])
    return b.nodes


RULES = {("", "BitShift"): _bit_shift}
