"""What ONNX says of an operator: its definition by others, and its results where all that it reads is known."""

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


def definition_of(node: Node) -> onnx.FunctionProto | None:
    """The body of an operator that the standard defines by others, ``None`` if it has none."""
    try:
        schema: Any = defs.get_schema(node.op, node.opset, node.domain)
    except defs.SchemaError:
        return None
    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        types = []
        for value in node.inputs:
            kind = elem_type(value) if value is not None else 0
            dims = (
                None
                if value is None or value.dims is None
                else [d if isinstance(d, int) else str(d) for d in value.dims]
            )
            types.append((helper.make_tensor_type_proto(kind, dims) if kind else onnx.TypeProto()).SerializeToString())
        assert node.proto is not None
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.opset]
        types += [onnx.TypeProto().SerializeToString()] * (len(node.proto.input) - len(types))
        try:
            body = schema.get_context_dependent_function_with_opset_version(
                max(versions, default=node.opset), node.proto.SerializeToString(), types
            )
        except RuntimeError:  # it wants a type that is not known
            return None
        function.ParseFromString(body)
    elif schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= node.opset]
        if versions:
            function.ParseFromString(schema.get_function_with_opset_version(max(versions)))
        else:
            function.CopyFrom(schema.function_body)
    for name, attribute in schema.attributes.items():
        if attribute.default_value.type and all(a.name != name for a in function.attribute_proto):
            function.attribute_proto.append(attribute.default_value)
    return function if function.node else None


def has_definition(node: Node) -> bool:
    try:
        schema: Any = defs.get_schema(node.op, node.opset, node.domain)
    except defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)
