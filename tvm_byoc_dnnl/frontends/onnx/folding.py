"""Results that are computed when a model is imported, by ONNX's own reference: all that a node reads is known."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from .emit import elem_type
from .ops.shapes import MOST
from .value import Node, Value

__all__ = ["folded"]

_NEVER = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Dropout", "Multinomial"),
        *("DequantizeLinear", "QuantizeLinear"),  # quantised weights stay quantised
    }
)
#: operators that make more elements than they read; of those that do not, few inputs have few results
_EXPANDING = frozenset({"ConstantOfShape", "Expand", "Gather", "Pad", "Range", "Resize", "Tile", "Upsample"})


def folded(node: Node) -> list[np.ndarray | None] | None:
    """The results of a node, ``None`` if not all that it reads is known, or they would be large."""
    if not node.inputs or node.domain or node.op in _NEVER:
        return None
    total = 0
    for value in node.inputs:
        if value is not None:
            if not value.is_constant or value.memory is None or value.memory.dtype.kind not in "biufV":
                return None
            total += value.memory.size
    if total > MOST or node.proto is None or any(a.HasField("g") or a.graphs for a in node.proto.attribute):
        return None
    names, given = _named(node)
    if not _is_small(node, names, given):
        return None
    with contextlib.suppress(Exception):  # no implementation, or a broken model: the conversion says more about it
        return _by_reference(node, names, given)
    return None


def _named(node: Node) -> tuple[list[str], dict[str, np.ndarray]]:
    names = ["" if value is None else f"x{i}" for i, value in enumerate(node.inputs)]
    arrays = [None if value is None else value.known for value in node.inputs]
    return names, {name: array for name, array in zip(names, arrays, strict=True) if array is not None}


def _standing_alone(node: Node, names: list[str]) -> onnx.NodeProto:
    assert node.proto is not None
    made = helper.make_node(node.op, names, [f"y{i}" for i in range(len(node.wanted))])
    made.attribute.extend(node.proto.attribute)
    return made


def _is_small(node: Node, names: list[str], given: dict[str, np.ndarray]) -> bool:
    """Whether the results have few elements, as far as ONNX's inference sees it."""
    try:
        schema = defs.get_schema(node.op, node.opset, "")
        types = {name: _type_of(value) for name, value in zip(names, node.inputs, strict=True) if value is not None}
        data = {name: numpy_helper.from_array(array, name) for name, array in given.items()}
        found = onnx.shape_inference.infer_node_outputs(
            schema, _standing_alone(node, names), types, data, opset_imports=[helper.make_opsetid("", node.opset)]
        )
    except Exception:  # plain RuntimeErrors of several kinds
        found = {}
    known = [_elements(t) for t in found.values()]
    sizes = [size for size in known if size is not None]
    return max(sizes, default=0) <= MOST and (len(sizes) == len(node.wanted) or node.op not in _EXPANDING)


def _type_of(value: Value) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(elem_type(value), value.dims)


def _elements(kind: onnx.TypeProto) -> int | None:
    shape = kind.tensor_type.shape.dim if kind.tensor_type.HasField("shape") else None
    if shape is None or not all(d.HasField("dim_value") for d in shape):
        return None
    return math.prod(d.dim_value for d in shape)


def _by_reference(node: Node, names: list[str], given: dict[str, np.ndarray]) -> list[np.ndarray | None]:
    from onnx.reference import ReferenceEvaluator  # takes longer than most imports

    made = _standing_alone(node, names)
    inputs = [helper.make_tensor_value_info(name, _kind(array), array.shape) for name, array in given.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in made.output]
    graph = helper.make_graph([made], "fold", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.opset)])
    found: Any = ReferenceEvaluator(model).run(None, given)
    if any(isinstance(value, (list, dict)) or value is None for value in found):
        raise TypeError("sequences, maps and empty optionals are no constants")
    return [np.asarray(value) for value in found]


def _kind(array: np.ndarray) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype)) or TensorProto.FLOAT
