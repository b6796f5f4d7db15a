"""Constant subgraphs folded: mostly the arithmetic on shapes that exporters write.

Known dims turn ``Shape`` into a constant, and its readers are computed by NumPy, or by ONNX's own reference
implementation. Large results are left to be computed at run time, except for weights written as one number
(``ConstantOfShape``).
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ..onnx_graph import Graph
from ..onnx_nodes import captured, is_standard
from .evaluate import evaluated

_SMALL = 1 << 14  # elements a fold may make
_NEVER = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Dropout", "Multinomial"),
        *("DequantizeLinear", "QuantizeLinear"),  # quantised weights stay quantised
    }
)
# Inputs that an operator needs as constants, whatever their size.
_WEIGHTS = {(op, i) for op in ("Conv", "ConvTranspose", "Gemm") for i in (1, 2)}
_WEIGHTS |= {("BatchNormalization", i) for i in (1, 2, 3, 4)} | {("MatMul", 1)}
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
#: operators whose result has at most as many elements as all inputs together
_NO_MORE = frozenset({"Cast", "Concat", "Slice", "Transpose"})
_MAX_ROUNDS = 8  # of inference and folding: each fold may make more shapes known


def folded(graph: Graph) -> dict[str, np.ndarray]:
    """The results of the one node of a graph, if all that it reads is known and they are small; else nothing."""
    (node,) = graph.nodes
    return _evaluate(graph, [node]) if _foldable(graph, node, set()) else {}


def _foldable(graph: Graph, node: onnx.NodeProto, available: set[str]) -> bool:
    if not node.input or any(i and i not in available and not graph.is_constant(i) for i in node.input):
        return False  # first, since it is so for most nodes
    if not is_standard(node) or node.op_type in _NEVER or any(captured(node)):
        return False
    sizes = [_elements(graph, name) for name in node.input if name]
    if node.op_type in _NO_MORE and None not in sizes and sum(sizes) <= _SMALL:
        return True
    if node.op_type in _VIEWS and node.input[0] and sizes[0] is not None:  # as many, and no types to infer
        results = sizes[:1]
    else:
        results = [_elements(graph, name) for name in node.output if name]
    if None in results:  # unknown: the result of so few elements is small, unless the operator expands
        asks = node.op_type in ("Expand", "Tile", "Range", "ConstantOfShape")
        return not asks and None not in sizes and max(sizes or [0]) <= _SMALL
    return bool(max(results) <= _SMALL)


def _elements(graph: Graph, name: str) -> Any:
    dims = graph.static_shape(name)
    return None if dims is None else math.prod(dims)


def _evaluate(graph: Graph, nodes: list[onnx.NodeProto]) -> dict[str, np.ndarray]:
    """Values that ``nodes`` compute; nodes that the reference cannot run are skipped."""
    known: dict[str, np.ndarray] = {}
    waiting: list[onnx.NodeProto] = []
    for node in nodes:
        value = _computed(graph, node, known)
        if value is None:
            value = _viewed(graph, node, known)
        if value is None:
            waiting.append(node)
        else:
            known[node.output[0]] = value
    known.update(_by_reference(graph, waiting, known))
    return known


def _viewed(graph: Graph, node: onnx.NodeProto, known: dict[str, np.ndarray]) -> np.ndarray | None:
    """The result of a node that changes nothing but the shape, which is known; else ``None``."""
    if node.op_type not in _VIEWS:
        return None
    name, shape = node.input[0], graph.static_shape(node.output[0])
    value = known[name] if name in known else graph.constant(name)
    return None if value is None or shape is None or value.size != math.prod(shape) else value.reshape(shape)


def _computed(graph: Graph, node: onnx.NodeProto, known: dict[str, np.ndarray]) -> np.ndarray | None:
    """The result of a node all of whose inputs are known, by NumPy; else ``None``."""
    inputs = [known[name] if name in known else graph.constant(name) for name in node.input]
    complete = all(value is not None or not name for name, value in zip(node.input, inputs, strict=True))
    return evaluated(node, inputs) if complete else None


def _by_reference(graph: Graph, nodes: list[onnx.NodeProto], known: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Values that ONNX's reference implementation computes: of all nodes at once, or of each if one of them fails."""
    made = {o for node in nodes for o in node.output}
    read = dict.fromkeys(i for node in nodes for i in node.input if i and i not in made)
    feeds = {name: known[name] if name in known else graph.constant(name) for name in read}
    if nodes and all(value is not None for value in feeds.values()):
        with contextlib.suppress(Exception):  # no implementation, or a broken model: TVM's importer says more about it
            return _run_reference(graph, nodes, feeds)
    results: dict[str, np.ndarray] = {}
    for node in nodes if len(nodes) > 1 else ():
        results |= _by_reference(graph, [node], {**known, **results})
    return results


def _run_reference(
    graph: Graph, nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray | None]
) -> dict[str, np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    outputs = [o for node in nodes for o in node.output if o]
    inputs, results = ([helper.make_empty_tensor_value_info(n) for n in names] for names in (feeds, outputs))
    model = helper.make_model(
        helper.make_graph(nodes, "fold", inputs, results), opset_imports=[helper.make_opsetid("", graph.opset)]
    )
    values = ReferenceEvaluator(model).run(None, feeds)
    if any(isinstance(value, (list, dict)) or value is None for value in values):
        raise TypeError("sequences, maps and empty optionals are no constants")
    return dict(zip(outputs, map(np.asarray, values), strict=True))
