"""TVM's ONNX importer, which also tells which variables are made of which node."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from .._compat import indices_from_start, var_name

__all__ = ["NamingImporter"]


class NamingImporter(ONNXGraphImporter):
    """TVM's importer.

    Parameters
    ----------
    shapes : mapping
        Shape of each input.
    """

    def __init__(self, shapes: Mapping[str, list[Any]]) -> None:
        super().__init__(dict(shapes), "float32")
        self._last_variable: dict[str, str] = {}  # of a node -> the node
        self._branches = 0

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        inputs = indices_from_start(self.bb, op_name, inputs, attrs)
        result = super()._convert_operator(op_name, inputs, attrs, opset)
        if self._branches:
            return result
        if isinstance(result, relax.Call) and isinstance(result.ty, (relax.TensorType, relax.TupleType)):
            result = self.bb.emit(result)  # now, so that a node's variables follow each other
        parts = result.fields if isinstance(result, relax.Tuple) else [result]
        for part in parts:
            if isinstance(part, relax.Var):
                self._last_variable.setdefault(var_name(part), str(attrs["tvm_custom"]["name"]))
        return result

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
        for block in func.body.blocks:
            for binding in block.bindings:
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
