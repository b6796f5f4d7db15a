"""TVM's ONNX importer, which also tells which variables are made of which node."""

from __future__ import annotations

import contextlib
from typing import Any

import onnx
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from .._compat import indices_from_start, quantised, var_name
from ..handles import items
from ..windowed_types import TypingBuilder
from .onnx_bounds import clip
from .onnx_dims import OpenInputs
from .onnx_open_shapes import OpenShapes

__all__ = ["NamingImporter"]

_QUANTISATION = ("QuantizeLinear", "DequantizeLinear")
#: the types of ONNX that shapes are computed in
_DTYPES = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int32"}


class NamingImporter(ONNXGraphImporter):
    """TVM's importer.

    Parameters
    ----------
    inputs : OpenInputs
        Shape of each input.
    """

    def __init__(self, inputs: OpenInputs) -> None:
        super().__init__(dict(inputs.shapes), "float32")
        self.bb = TypingBuilder()
        self._open_inputs = inputs
        self._open_shapes = OpenShapes(self.bb)
        self._last_variable: dict[str, str] = {}  # of a node -> the node
        self._branches = 0

    def _construct_nodes(self, graph: Any) -> None:
        for symbol, value in self._open_inputs.solved:
            self.bb.match_cast(self.bb.emit(relax.ShapeExpr([value])), relax.ShapeType([symbol]))
        for name, dims in self._open_inputs.inner.items():
            self._nodes[name] = self._open_shapes.cast(self._nodes[name], dims)
        super()._construct_nodes(graph)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        if self._branches:
            return self._by_tvm(op_name, inputs, attrs, opset)
        dtype = _DTYPES.get(attrs.get("to")) if op_name == "Cast" else None
        result = self._open_shapes.convert(op_name, inputs, attrs, dtype)
        if result is None:
            agreed = type(inputs)(self._open_shapes.agree(op_name, inputs, attrs))
            result = self._by_tvm(op_name, agreed, attrs, opset)
        elif isinstance(result, relax.Call):
            result = self.bb.normalize(result)
        if isinstance(result, relax.Call) and isinstance(result.ty, (relax.TensorType, relax.TupleType)):
            result = self.bb.emit(result)  # now, so that a node's variables follow each other
        parts = result.fields if isinstance(result, relax.Tuple) else [result]
        for part in parts:
            if isinstance(part, relax.Var):
                self._last_variable.setdefault(var_name(part), str(attrs["tvm_custom"]["name"]))
        return result

    def _by_tvm(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        if op_name == "Clip" and (bounded := clip(self.bb, inputs, attrs, opset)) is not None:
            return bounded
        inputs = indices_from_start(self.bb, op_name, inputs, attrs)
        convert = super()._convert_operator
        if op_name not in _QUANTISATION:
            return convert(op_name, inputs, attrs, opset)
        kind, (data, *rest) = type(inputs), inputs
        return quantised(self.bb, data, lambda tensor: convert(op_name, kind([tensor, *rest]), attrs, opset))

    def _convert_subgraph(self, bb: Any, graph: Any) -> Any:
        self._branches += 1
        try:
            return super()._convert_subgraph(bb, graph)
        finally:
            self._branches -= 1

    def nodes_by_variable(self, func: relax.Function) -> dict[str, str]:
        """Variable to node, for every variable of the imported function that comes from a node with a name."""
        found: dict[str, str] = {}
        waiting: list[str] = []
        for block in items(func.body.blocks):
            for binding in items(block.bindings):
                name = var_name(binding.var)
                if isinstance(binding.value, relax.Var) and var_name(binding.value) in found:
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
