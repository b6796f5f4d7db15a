"""TVM's ONNX importer, which also tells which variables are made of which node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from .._compat import indices_from_start, is_a, quantised, small_constants, var_name
from ..handles import items
from ..whole import Operator, operator
from ..windowed_types import TypingBuilder
from .onnx_bounds import clip
from .onnx_dims import OpenInputs
from .onnx_open_shapes import OpenShapes
from .onnx_reading import Attributes, Inputs, refuse_unread

__all__ = ["NamingImporter", "converters"]

_QUANTISATION = ("QuantizeLinear", "DequantizeLinear")
#: the types of ONNX that shapes are computed in
_DTYPES = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int32"}
_OF_ONE = onnx.AttributeProto
#: types of attributes → the field of one value, the field of several
_ONE = {_OF_ONE.FLOAT: "f", _OF_ONE.INT: "i", _OF_ONE.STRING: "s", _OF_ONE.TENSOR: "t", _OF_ONE.GRAPH: "g"}
_MANY = {_OF_ONE.FLOATS: "floats", _OF_ONE.INTS: "ints", _OF_ONE.STRINGS: "strings"}


def _whole(entry: Operator, inputs: Any, attrs: dict[str, Any]) -> relax.Call:
    """A call of an operator that is kept whole."""
    texts = {name: _text(value) for name, value in attrs.items() if name != "tvm_custom"}
    custom = attrs["tvm_custom"]
    return entry.call(list(inputs), texts, [True] * custom["num_outputs"], custom["name"])


def _text(value: Any) -> Any:
    """The value of an attribute with str in the place of bytes."""
    if isinstance(value, (tuple, list)):
        return [_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


@cache
def converters() -> dict[str, Any]:
    """Operator of ONNX → TVM's converter. TVM makes this table anew for every node."""
    return onnx_frontend._get_convert_map()


class NamingImporter(ONNXGraphImporter):
    """TVM's importer.

    Parameters
    ----------
    inputs : OpenInputs
        Shape of each input.
    constants : dict of ndarray
        The values of the model's constants, of dtypes that NumPy itself has; others are initialisers of the graph.
    """

    def __init__(self, inputs: OpenInputs, constants: Mapping[str, np.ndarray]) -> None:
        super().__init__(dict(inputs.shapes), "float32")
        self.bb = TypingBuilder()
        self._open_inputs = inputs
        self._open_shapes = OpenShapes(self.bb)
        self._constants = constants
        self.place = ""  # the node that is converted
        self._functions: dict[str, Callable[..., Any]] = {}  # operator -> its converter for the model's opset
        self._last_variable: dict[str, str] = {}  # of a node -> the node

    def _parse_graph_initializers(self, graph: Any) -> None:
        super()._parse_graph_initializers(graph)
        self._nodes.update(zip(self._constants, small_constants(self._constants.values()), strict=True))

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Nothing: the caller has looked, and knows operators that are kept whole."""

    def _parse_value_proto(self, value_proto: Any) -> str:
        return value_proto.name or value_proto.output[0]  # of a node without a name

    def _parse_attr(self, attr_proto: Iterable[onnx.AttributeProto]) -> dict[str, Any]:
        parsed: dict[str, Any] = {}
        for attribute in attr_proto:
            kind = attribute.type
            if kind in _ONE:
                parsed[attribute.name] = getattr(attribute, _ONE[kind])
            elif kind in _MANY and (values := tuple(getattr(attribute, _MANY[kind]))):
                parsed[attribute.name] = values
            else:
                parsed.update(super()._parse_attr([attribute]))
        return parsed

    def _construct_nodes(self, graph: Any) -> None:
        for symbol, value in self._open_inputs.solved:
            self.bb.match_cast(self.bb.emit(relax.ShapeExpr([value])), relax.ShapeType([symbol]))
        for name, dims in self._open_inputs.inner.items():
            self._nodes[name] = self._open_shapes.cast(self._nodes[name], dims)
        super()._construct_nodes(graph)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        self.place = f"node `{attrs['tvm_custom']['name']}`, {op_name}"
        dtype = _DTYPES.get(attrs.get("to")) if op_name == "Cast" else None
        entry = operator("", op_name)
        result = (
            self._open_shapes.convert(op_name, inputs, attrs, dtype) if entry is None else _whole(entry, inputs, attrs)
        )
        if result is None:
            agreed = type(inputs)(self._open_shapes.agree(op_name, inputs, attrs))
            result = self._by_tvm(op_name, agreed, attrs, opset)
        elif is_a(result, relax.Call):
            result = self.bb.normalize(result)
        if is_a(result, relax.Call) and (is_a(result.ty, relax.TensorType) or is_a(result.ty, relax.TupleType)):
            result = self.bb.emit(result)  # now, so that a node's variables follow each other
        parts = items(result.fields) if is_a(result, relax.Tuple) else [result]
        for part in parts:
            if is_a(part, relax.Var):
                self._last_variable.setdefault(var_name(part), str(attrs["tvm_custom"]["name"]))
        return result

    def _by_tvm(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        if op_name == "Clip" and (bounded := clip(self.bb, inputs, attrs, opset)) is not None:
            return bounded
        inputs = indices_from_start(self.bb, op_name, inputs, attrs)
        if op_name not in _QUANTISATION:
            return self._converted(op_name, inputs, attrs, opset)
        kind, (data, *rest) = type(inputs), inputs
        return quantised(self.bb, data, lambda tensor: self._converted(op_name, kind([tensor, *rest]), attrs, opset))

    def _converted(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        """What TVM's ``_convert_operator`` does, which looks for the converter among all at every node."""
        function = self._functions.get(op_name)
        if function is None:
            if op_name not in converters():
                return super()._convert_operator(op_name, inputs, attrs, opset)
            function = self._functions[op_name] = converters()[op_name].get_converter(opset)
        read, known = Inputs(inputs), Attributes(attrs)
        result = function(self.bb, read, known, [self._nodes, self._params])
        refuse_unread(op_name, read, known, opset)
        return self.bb.normalize(result) if is_a(result, relax.Expr) else result

    def nodes_by_variable(self, func: relax.Function) -> dict[str, str]:
        """Variable to node, for every variable of the imported function that comes from a node with a name."""
        found: dict[str, str] = {}
        waiting: list[str] = []
        for block in items(func.body.blocks):
            for binding in items(block.bindings):
                name = var_name(binding.var)
                if is_a(binding.value, relax.Var) and var_name(binding.value) in found:
                    found[name] = found[var_name(binding.value)]
                    continue
                waiting.append(name)
                if name in self._last_variable:
                    found.update(dict.fromkeys(waiting, self._last_variable[name]))
                    waiting = []
        return {variable: node for variable, node in found.items() if node}

    def give_up(self) -> None:
        """Close the blocks that a failure left open: TVM would warn of them when the builder is deleted."""
        with contextlib.suppress(Exception):
            while True:
                self.bb._end_block()
