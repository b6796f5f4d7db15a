"""An ONNX graph that rules read and add constants to, without touching the model that it came from."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .onnx_nodes import DEFAULT_DOMAINS, captured, in_order

__all__ = ["Dims", "Graph"]

Dims = tuple[Any, ...]  # of a value: numbers, names of symbols, None for unknown

_INFER_VALUES = 1024  # elements: constants up to this size take part in shape inference by value


class Graph:
    """Nodes, constants, inputs and outputs of one model.

    Attributes
    ----------
    nodes : list of NodeProto
        Replace nodes, never change one in place.
    inputs, outputs : list of ValueInfoProto
        Inputs without those that only repeat an initialiser.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.reload(model)

    def reload(self, model: onnx.ModelProto) -> None:
        """Start again from another model."""
        graph = model.graph
        self.model = model
        self.nodes: list[onnx.NodeProto] = list(graph.node)
        self._constants: dict[str, Any] = {t.name: t for t in graph.initializer}
        self.inputs = [i for i in graph.input if i.name not in self._constants]
        self.outputs = list(graph.output)
        self._types: dict[str, tuple[int, Dims | None]] | None = None  # of values, once they were inferred
        self.opset = next((o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS), 1)
        self._names: set[str] | None = None  # that are taken; found when a name is wanted

    # ---- constants ----------------------------------------------------------------------------------

    def is_constant(self, name: str) -> bool:
        """Whether a value is known now."""
        return name in self._constants

    def constant(self, name: str) -> np.ndarray | None:
        """The value of ``name`` if it is known now."""
        found = self._constants.get(name)
        return numpy_helper.to_array(found) if isinstance(found, onnx.TensorProto) else found

    def add_constant(self, hint: str, value: np.ndarray) -> str:
        """A new constant; returns its name."""
        name = self.fresh(hint)
        self._constants[name] = np.asarray(value)
        return name

    # ---- structure ----------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """An unused name for a value."""
        if self._names is None:
            self._names = {n for node in self.nodes for n in (*self.reads(node), *node.output)}
            self._names |= {*self._constants, *(i.name for i in self.inputs)}
        name, count = hint, 0
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names.add(name)
        return name

    def reads(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """The inputs of a node, and what its subgraphs may read from outside."""
        return (*node.input, *captured(node))

    def is_read(self, name: str) -> bool:
        """Whether an output or a node needs a value."""
        return bool(self.read_by(name)[0]) or self.read_by(name)[1]

    def read_by(self, name: str) -> tuple[list[onnx.NodeProto], bool]:
        """The nodes that read a value, and whether it is an output."""
        return [n for n in self.nodes if name in self.reads(n)], any(o.name == name for o in self.outputs)

    def sort(self) -> None:
        """Put nodes after those whose results they read, and drop those that no output needs."""
        self.nodes = in_order(self.nodes, [o.name for o in self.outputs], self.reads)

    # ---- types --------------------------------------------------------------------------------------

    def dims(self, name: str) -> Dims | None:
        """Dims of a value, ``None`` when even the rank is unknown."""
        found = self._constants.get(name)
        if found is not None:
            return tuple(found.dims) if isinstance(found, onnx.TensorProto) else found.shape
        return self._type_of(name)[1]

    def static_shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a value when every dim is a number."""
        dims = self.dims(name)
        return dims if dims is not None and all(isinstance(d, int) for d in dims) else None

    def rank(self, name: str) -> int | None:
        """Rank of a value when known."""
        dims = self.dims(name)
        return None if dims is None else len(dims)

    def elem_type(self, name: str) -> int:
        """ONNX element type of a value, 0 when unknown."""
        found = self._constants.get(name)
        if isinstance(found, onnx.TensorProto):
            return found.data_type
        return self._type_of(name)[0] if found is None else helper.np_dtype_to_tensor_dtype(found.dtype)

    def _type_of(self, name: str) -> tuple[int, Dims | None]:
        if self._types is None:
            self._types = self._inferred()
        return self._types.get(name, (0, None))

    def _inferred(self) -> dict[str, tuple[int, Dims | None]]:
        """Types by ONNX's inference; large weights take part by their types only, so they cost nothing."""
        large = [k for k in self._constants if math.prod(self.dims(k) or ()) >= _INFER_VALUES]
        apart = [helper.make_tensor_value_info(k, self.elem_type(k), self.dims(k)) for k in large]
        values = {k: v for k, v in self._constants.items() if k not in large}
        tensors = [v if isinstance(v, onnx.TensorProto) else numpy_helper.from_array(v, k) for k, v in values.items()]
        graph = helper.make_graph(self.nodes, "types", [*self.inputs, *apart], self.outputs, tensors)
        opsets = [o for o in self.model.opset_import if o.domain not in DEFAULT_DOMAINS]
        opsets.append(helper.make_opsetid("", self.opset))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=max(4, self.model.ir_version))
        # onnx raises plain RuntimeErrors of several kinds; without shapes fewer values are known
        with contextlib.suppress(Exception):
            graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        return {value.name: _type(value) for value in (*graph.input, *graph.output, *graph.value_info)}


def _type(value: onnx.ValueInfoProto) -> tuple[int, Dims | None]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    dims = (d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
    return tensor.elem_type, tuple(dims)
