"""Logits of the last position only: a text needs no others, and the product with all words is a large part of a prompt.

normed [B, S, H] ── @ table ── · number, tanh … ── logits [B, S, V]
    ──>   normed ── its last row [B, 1, H] ── @ table ── · number, tanh … ── logits [B, 1, V]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["keep_last_row"]

#: that compute each row of their first operand by itself, if the other ones are constants
_PRODUCTS = ("MatMul", "MatMulNBits")
_OF_NUMBERS = ("Add", "Cast", "Div", "Identity", "Mul", "Sub", "Tanh")


def keep_last_row(model: onnx.ModelProto, output: str, apart: Container[str]) -> None:
    """Change a model so that an output [batch, rows, columns] has its last row only, if a product makes it.

    ``apart``: names of constants that are not in the model.
    """
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    reads = Counter([name for node in graph.node for name in node.input] + [value.name for value in graph.output])
    inside = {tensor.name for tensor in graph.initializer}

    def changes(name: str) -> bool:
        if not name or name in inside or name in apart:
            return False
        return name not in makers or any(map(changes, makers[name].input))

    declared = {value.name: value.type.tensor_type.shape.dim for value in graph.output}
    dims, name = declared.get(output, []), output
    while len(dims) == 3 and reads[name] == 1 and (node := makers.get(name)) is not None:
        computed = [operand for operand in node.input if changes(operand)]
        if node.op_type in _PRODUCTS and computed == [node.input[0]]:
            last, place = f"{output}.last_row", f"{output}.last_row.place"
            graph.initializer.append(numpy_helper.from_array(np.array([-1]), place))
            at = next(i for i, other in enumerate(graph.node) if name in other.output)
            graph.node.insert(at, helper.make_node("Gather", [node.input[0], place], [last], last, axis=1))
            node = graph.node[at + 1]
            node.input[0] = last
            dims[1].dim_value = 1
            return
        if node.op_type not in _OF_NUMBERS or len(computed) != 1:
            return
        name = computed[0]
