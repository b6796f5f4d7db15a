"""Operators that the standard defines by others."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs, helper

from .emit import elem_type
from .value import Node

__all__ = ["definition_of", "has_definition"]


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
