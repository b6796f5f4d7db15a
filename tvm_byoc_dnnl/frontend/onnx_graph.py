"""An ONNX graph that can be edited without touching the model it came from.

Weights stay the model's own ``TensorProto`` objects until their values are needed.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .onnx_file import Weights
from .onnx_nodes import DEFAULT_DOMAINS, captured
from .onnx_static_types import StaticType, static_type

__all__ = ["Dims", "Graph", "LightGraph"]

Dims = tuple[Any, ...]  # of a value: numbers, names of symbols, None for unknown

_INFER_VALUES = 1024  # elements: constants up to this size take part in shape inference by value


@dataclass
class LightGraph:
    """The parts of a ``GraphProto`` that TVM's importer reads: to make one, every node would have to be copied."""

    node: list[onnx.NodeProto]
    initializer: list[onnx.TensorProto]
    input: list[onnx.ValueInfoProto]
    output: list[onnx.ValueInfoProto]


class Graph:
    """Nodes, constants, inputs and outputs of one model.

    Attributes
    ----------
    nodes : list of NodeProto
        In execution order once `sort` has run. Replace nodes, never change one in place.
    inputs, outputs : list of ValueInfoProto
        Inputs without those that only repeat an initialiser.
    """

    def __init__(self, model: onnx.ModelProto, weights: Weights | None = None) -> None:
        self._reads: dict[int, tuple[onnx.NodeProto, tuple[str, ...], tuple[str, ...]]] = {}  # by the nodes' addresses
        self.reload(model)
        self._weights = weights or Weights({})  # whose data are not in the model
        self._constants |= self._weights

    def reload(self, model: onnx.ModelProto) -> None:
        """Start again from another model."""
        graph = model.graph
        self.model = model
        self.nodes: list[onnx.NodeProto] = list(graph.node)
        self._constants: dict[str, Any] = {t.name: t for t in graph.initializer}
        self.inputs = [i for i in graph.input if i.name not in self._constants]
        self.outputs = list(graph.output)
        self._types: dict[str, tuple[int, Dims | None]] = {}  # of values, as far as they were inferred
        self._inferred: dict[int, Any] = {}  # the parts of the graph of which `_types` is true, by their addresses
        self._is_behind = False  # whether `_types` has to be inferred before it is read
        self.may_infer = True  # whether ONNX's inference may be asked for what the simple rules do not tell
        self._makers: dict[str, onnx.NodeProto] | None = None  # of values, since the last call of `infer_shapes`
        self._static_types: dict[str, StaticType] = {}  # of values, as far as simple rules were asked
        self._earlier: list[Graph] = []  # of which `_types` has to be inferred before that
        self.large: set[str] = set()  # values that are too large to be folded
        self.opset = next((o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS), 1)
        self._names: set[str] | None = None  # that are taken; found when a name is wanted

    def take_nodes(self, model: onnx.ModelProto) -> None:
        """Use the nodes of another model, made from this graph, and the constants that it added."""
        self.nodes = list(model.graph.node)
        for tensor in model.graph.initializer:
            self._constants.setdefault(tensor.name, tensor)
        if self._names is not None:
            self._names |= {n for node in self.nodes for n in (*node.input, *node.output)}

    # ---- constants ----------------------------------------------------------------------------------

    def is_constant(self, name: str) -> bool:
        """Whether a value is known now."""
        return name in self._constants

    def constant(self, name: str) -> np.ndarray | None:
        """The value of ``name`` if it is known now."""
        if name in self._weights:
            self._weights.complete()
        return self._array(name)

    def _array(self, name: str) -> np.ndarray | None:
        """The value of ``name``, or the memory into which it is read."""
        found = self._constants.get(name)
        return numpy_helper.to_array(found) if isinstance(found, onnx.TensorProto) else found

    def set_constant(self, name: str, value: np.ndarray) -> None:
        """Let ``name`` be a constant; the caller removes the node that made it."""
        self._inferred = {}
        self._constants[name] = np.asarray(value)

    def add_constant(self, hint: str, value: np.ndarray) -> str:
        """A new constant; returns its name."""
        name = self.fresh(hint)
        self.set_constant(name, value)
        return name

    # ---- structure ----------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """An unused name for a value."""
        if self._names is None:
            nodes = [*self.model.graph.node, *self.nodes]
            self._names = {n for node in nodes for n in (*self.reads(node), *node.output)}
            self._names |= {*self._constants, *(i.name for i in self.inputs)}
        name, count = hint, 0
        while name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._names.add(name)
        return name

    def readers(self) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
        """Value name to the nodes that read it, with the position."""
        readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in self.nodes:
            for position, name in enumerate(node.input):
                readers.setdefault(name, []).append((node, position))
        return readers

    def captured(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """Names that the subgraphs of a node may read from outside."""
        return self._read(node)[2]

    def reads(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """The inputs of a node, and what its subgraphs may read from outside."""
        return self._read(node)[1]

    def _read(self, node: onnx.NodeProto) -> tuple[onnx.NodeProto, tuple[str, ...], tuple[str, ...]]:
        """A node, which is searched once: all that it reads, and what it reads inside of subgraphs."""
        known = self._reads.get(id(node))
        if known is None:
            inside = tuple(captured(node)) if node.attribute else ()
            known = self._reads[id(node)] = (node, (*node.input, *inside), inside)
        return known

    def is_read(self, name: str) -> bool:
        """Whether a node, a subgraph or an output needs the value."""
        return any(o.name == name for o in self.outputs) or any(name in self.reads(node) for node in self.nodes)

    def sort(self) -> None:
        """Put nodes after those whose results they read, and drop those that no output needs."""
        maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        order: list[onnx.NodeProto] = []
        state: dict[int, bool] = {}  # False while the node's own inputs are being placed
        for output in self.outputs:
            stack = [maker[output.name]] if output.name in maker else []
            while stack:
                index = stack[-1]
                if index in state:
                    stack.pop()
                    if not state[index]:
                        state[index] = True
                        order.append(self.nodes[index])
                    continue
                state[index] = False
                node = self.nodes[index]
                needed = [maker[n] for n in self.reads(node) if n in maker]
                # A node that is being placed already and is needed again closes a cycle, which the checker reports.
                stack.extend(i for i in reversed(needed) if i not in state)
        self.nodes = order

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
        if found is not None:
            return helper.np_dtype_to_tensor_dtype(found.dtype)
        known = self._types.get(name, (0, None))[0]  # nodes that take the place of others give the same dtypes
        return known or self._type_of(name)[0]

    def infer_shapes(self) -> None:
        """Answer the next question about a value for the nodes as they are then; many models need no answer."""
        self._is_behind = True
        self._makers = None

    @contextlib.contextmanager
    def without_inference(self) -> Iterator[None]:
        """Answer only what simple rules tell."""
        self.may_infer = False
        try:
            yield
        finally:
            self.may_infer = True

    def settle_types(self) -> None:
        """Let the inference that `infer_shapes` has put off see the nodes as they are now.

        Less may be known of those that take their places.
        """
        if self._is_behind:
            self._is_behind = False
            now = copy.copy(self)
            now.nodes, now._constants, now._earlier = list(self.nodes), dict(self._constants), []
            self._earlier.append(now)

    def _type_of(self, name: str) -> tuple[int, Dims | None]:
        if self._is_behind or self._earlier:
            simple = self._static_type(name)
            if simple is not None:
                return simple
            if not self.may_infer:
                return 0, None
        for earlier in self._earlier:
            earlier._infer()
            self._inferred = {}
        self._earlier = []
        if self._is_behind:
            self._is_behind = False
            self._infer()
        return self._types.get(name, (0, None))

    def _static_type(self, name: str) -> StaticType | None:
        """The type of a value by simple rules, which is faster than to infer all."""
        if self._makers is None:
            self._makers = {output: node for node in self.nodes for output in node.output}
            for name_of_input, (dtype, dims) in ((i.name, _type(i)) for i in self.inputs):
                if dims is not None and all(isinstance(d, int) for d in dims):
                    self._static_types[name_of_input] = (dtype, dims)
        return static_type(self, name, self._makers, self._static_types)

    def _infer(self) -> None:
        """Fill `_types`. Large weights take part by their types only, so this costs nothing for them."""
        parts = {id(part): part for part in (*self.nodes, *self.inputs, *self.outputs)}
        if parts.keys() == self._inferred.keys():
            return
        self._inferred = parts
        skeleton, _ = self.without_weights(_INFER_VALUES)
        try:
            inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True).graph
        except Exception:  # onnx raises plain RuntimeErrors of several kinds; without shapes fewer values are known
            inferred = skeleton.graph
        for value in (*inferred.input, *inferred.output, *inferred.value_info):
            self._types[value.name] = _type(value)

    # ---- results ------------------------------------------------------------------------------------

    def without_weights(self, size: int) -> tuple[onnx.ModelProto, list[str]]:
        """The edited model; its constants of at least ``size`` elements become inputs after the others.

        Returns the model and the names of these inputs.
        """
        used = self._used()
        large = [k for k in used if math.prod(self.dims(k) or ()) >= size]
        apart = set(large)
        graph = helper.make_graph(
            self.nodes,
            self.model.graph.name,
            [*self.inputs, *map(self._declared, large)],
            self.outputs,
            [_tensor(k, v) for k, v in used.items() if k not in apart],
        )
        return self._model(graph), large

    def apart(self, size: int) -> tuple[LightGraph, dict[str, np.ndarray], list[np.ndarray]]:
        """The graph, its constants of less than ``size`` elements, and the others, which are its last inputs.

        Constants of dtypes that NumPy does not have stay in the graph.
        """
        used = self._used()
        large = [name for name in used if math.prod(self.dims(name) or ()) >= size]
        apart = {*large}
        arrays = {name: np.asarray(self._array(name) if name in apart else self.constant(name)) for name in used}
        strange = [name for name, a in arrays.items() if name not in apart and not _is_plain(a.dtype)]
        inputs = [onnx.ValueInfoProto.FromString(i.SerializeToString()) for i in self.inputs]
        initializers = [_tensor(name, used[name]) for name in strange]
        light = LightGraph(self.nodes, initializers, [*inputs, *map(self._declared, large)], self.outputs)
        apart.update(strange)
        small = {name: array for name, array in arrays.items() if name not in apart}
        return light, small, [arrays[name] for name in large]

    def _used(self) -> dict[str, Any]:
        """The constants that are read."""
        read = {n for node in self.nodes for n in self.reads(node)}
        read |= {o.name for o in self.outputs}
        return {k: v for k, v in self._constants.items() if k in read}

    def _declared(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, self.elem_type(name), self.dims(name))

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        opsets = [o for o in self.model.opset_import if o.domain not in DEFAULT_DOMAINS]
        opsets.append(helper.make_opsetid("", self.opset))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=max(4, self.model.ir_version))
        model.functions.extend(self.model.functions)
        return model


def _is_plain(dtype: np.dtype) -> bool:
    """Whether these are numbers or truth values that NumPy itself has, unlike bfloat16."""
    return dtype.isbuiltin == 1 and dtype.kind in "biuf"


def _tensor(name: str, value: Any) -> onnx.TensorProto:
    return value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(value, name)


def _type(value: onnx.ValueInfoProto) -> tuple[int, Dims | None]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    dims = (d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
    return tensor.elem_type, tuple(dims)
