"""TVM's converters of single ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import onnx
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, onnx_input

from .._compat import indices_from_start, is_a
from .onnx_reading import Attributes, Inputs, refuse_unread

__all__ = ["NamingImporter", "converters"]

_OF_ONE = onnx.AttributeProto
#: types of attributes → the field of one value, the field of several
_ONE = {_OF_ONE.FLOAT: "f", _OF_ONE.INT: "i", _OF_ONE.STRING: "s", _OF_ONE.TENSOR: "t", _OF_ONE.GRAPH: "g"}
_MANY = {_OF_ONE.FLOATS: "floats", _OF_ONE.INTS: "ints", _OF_ONE.STRINGS: "strings"}


@cache
def converters() -> dict[str, Any]:
    """Operator of ONNX → TVM's converter. TVM makes this table anew for every node."""
    return onnx_frontend._get_convert_map()


class NamingImporter(ONNXGraphImporter):
    """TVM's importer, of which nothing is used but the converters.

    Parameters
    ----------
    bb : BlockBuilder
        Where they emit.
    """

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self.bb = bb
        self._functions: dict[tuple[str, int], Callable[..., Any]] = {}  # operator and opset -> its converter

    def parsed(self, attr_proto: Iterable[onnx.AttributeProto]) -> dict[str, Any]:
        """Attributes as converters want them."""
        parsed: dict[str, Any] = {}
        for attribute in attr_proto:
            kind = attribute.type
            if kind in _ONE:
                parsed[attribute.name] = getattr(attribute, _ONE[kind])
            elif kind in _MANY and (values := tuple(getattr(attribute, _MANY[kind]))):
                parsed[attribute.name] = values
            else:
                parsed.update(self._parse_attr([attribute]))
        return parsed

    def converted(self, op_name: str, given: list[Any], attrs: dict[str, Any], opset: int) -> Any:
        """The result of a node."""
        inputs = indices_from_start(self.bb, op_name, onnx_input(given), attrs)
        result = self._converted(op_name, inputs, attrs, opset)
        if is_a(result, relax.Call) and (is_a(result.ty, relax.TensorType) or is_a(result.ty, relax.TupleType)):
            result = self.bb.emit(result)
        return result

    def _converted(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        """What TVM's ``_convert_operator`` does, which looks for the converter among all at every node."""
        function = self._functions.get((op_name, opset))
        if function is None:
            function = self._functions[op_name, opset] = converters()[op_name].get_converter(opset)
        read, known = Inputs(inputs), Attributes(attrs)
        result = function(self.bb, read, known, [{}, {}])
        refuse_unread(op_name, read, known, opset)
        return self.bb.normalize(result) if is_a(result, relax.Expr) else result
