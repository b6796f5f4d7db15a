"""The portable graph: one partitioned region as data (docs/portable_graph.md), and nothing after it knows Relax."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ..core.errors import GraphError
from .node_list import Node, NodeList, Scaling

_TEXT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
FORMAT = "tvm_byoc_dnnl.graph"
VERSION = 2

#: kinds whose result may lie in the memory of their input
VIEWS = frozenset({"reshape", "permute", "slice", "expand"})

#: a number, a symbol, or ``(operator, dim, dim)``
Dim: TypeAlias = "int | str | tuple[str, Dim, Dim]"


@dataclass
class Tensor:
    """A dense row-major tensor."""

    dtype: str
    shape: tuple[Dim, ...]
    name: str = ""


@dataclass
class Input:
    """One argument of the call: a tensor's id, or a shape that only binds symbols.

    ``alias`` is the position of the output that is written over the tensor.
    """

    tensor: int | None = None
    shape: tuple[Dim, ...] | None = None
    alias: int | None = None


@dataclass
class Constant:
    """A constant tensor, and the name by which its value is passed.

    ``checksum``, of its bytes, is known where code is generated for a value, and ``value`` where a lowering gives it;
    both are no part of the graph's text.
    """

    tensor: int
    name: str
    checksum: int | None = None
    value: np.ndarray | None = field(default=None, compare=False, repr=False)


@dataclass
class PortableGraph:
    """A region: tensors by id, nodes in topological order.

    ``options`` of the namespace are there for its lowerings and passes. ``equal`` are pairs of dims that are different
    expressions and the same number in every call. Neither is a part of the document. ``times`` has measured times of
    what the library can choose from (docs/portable_graph.md).
    """

    name: str
    tensors: list[Tensor] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    nodes: NodeList = field(default_factory=NodeList)
    outputs: list[int] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict, compare=False)
    equal: list[tuple[Dim, Dim]] = field(default_factory=list, compare=False)
    times: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.nodes = NodeList(self.nodes)

    def validate(self) -> PortableGraph:
        """Check ids, definitions and order.

        Raises
        ------
        GraphError
            If a tensor is read before it is defined, is defined twice or does not exist.
        """
        defined: set[int] = set()
        self._define([i.tensor for i in self.inputs if i.tensor is not None], defined, "an input")
        self._define([c.tensor for c in self.constants], defined, "a constant")
        for k, node in enumerate(self.nodes):
            if not defined.issuperset(node.reads):
                raise self._undefined(node.reads, defined, f"node {k} ({node.kind})")
            self._define(node.outputs, defined, f"the output of node {k} ({node.kind})")
            for op in node.post_ops:
                if op.kind == "binary" and not (op.input is not None and 0 <= op.input < len(node.inputs)):
                    raise GraphError(f"{self.name}: node {k} ({node.kind}) has a binary post-op without its operand")
        if not defined.issuperset(self.outputs):
            raise self._undefined(self.outputs, defined, "the region's output")
        for entry in self.inputs:
            if entry.alias is not None:
                self._check_alias(entry, entry.alias)
        return self

    def _define(self, ids: Iterable[int], defined: set[int], what: str) -> None:
        for i in ids:
            if not 0 <= i < len(self.tensors):
                raise GraphError(f"{self.name}: {what} is tensor {i}, but there are {len(self.tensors)} tensors")
            if i in defined:
                raise GraphError(f"{self.name}: tensor {i} is defined twice, the second time as {what}")
            defined.add(i)

    def _undefined(self, ids: Iterable[int], defined: set[int], what: str) -> GraphError:
        first = next(i for i in ids if i not in defined)
        return GraphError(f"{self.name}: {what} reads tensor {first} before it is defined")

    def _check_alias(self, entry: Input, alias: int) -> None:
        name = f"{self.name}: input tensor {entry.tensor}"
        if entry.tensor is None or not 0 <= alias < len(self.outputs):
            raise GraphError(f"{name} is the alias of output {alias}, but there are {len(self.outputs)} outputs")
        result = self.outputs[alias]
        old, new = self.tensors[entry.tensor], self.tensors[result]
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            raise GraphError(
                f"{name} is the alias of output {alias}, which is {new.dtype}{list(new.shape)}, "
                f"expected {old.dtype}{list(old.shape)}"
            )
        if result == entry.tensor:
            return
        writer = self.nodes.producer(result)
        if writer is None:
            raise GraphError(f"{name} is the alias of output {alias}, which no node makes")
        waiting, seen = [entry.tensor], {entry.tensor}
        while waiting:
            tensor = waiting.pop()
            if tensor in self.outputs:
                raise GraphError(f"{name} is read as an output after output {alias} has been written over it")
            for reader in self.nodes.readers(tensor):
                if self.nodes.precedes(writer, reader):
                    raise GraphError(f"{name} is read by {reader.kind} after output {alias} has been written over it")
                new_views = set(reader.outputs) - seen if reader.kind in VIEWS else set()
                seen |= new_views
                waiting.extend(new_views)

    def prune(self) -> PortableGraph:
        """Drop nodes, constants and tensors that no output needs, and renumber the rest."""
        live = set(self.outputs)
        nodes = []
        for node in reversed(self.nodes):
            if live.intersection(node.outputs):
                live.update(node.reads)
                nodes.append(node)
        nodes.reverse()
        self.constants = [c for c in self.constants if c.tensor in live]
        keep = live.union(*(node.outputs for node in nodes), (i.tensor for i in self.inputs if i.tensor is not None))
        if len(keep) == len(self.tensors) and len(nodes) == len(self.nodes):
            return self
        order = sorted(keep)
        new_id = {old: new for new, old in enumerate(order)}
        self.tensors = [self.tensors[i] for i in order]
        for node in nodes:
            node.reread(new_id)
            node.outputs = tuple(new_id[i] for i in node.outputs)
        self.nodes = NodeList(nodes)
        for entry in self.inputs:
            if entry.tensor is not None:
                entry.tensor = new_id[entry.tensor]
        for constant in self.constants:
            constant.tensor = new_id[constant.tensor]
        self.outputs = [new_id[i] for i in self.outputs]
        return self

    def constant_tensors(self) -> set[int]:
        """Tensors known before the first call: the constants, and all that is computed only from constants."""
        known = {c.tensor for c in self.constants}
        for node in self.nodes:
            if known.issuperset(node.reads):
                known.update(node.outputs)
        return known

    def value_of(self, tensor: int) -> np.ndarray | None:
        """The value of a scalar, vector or 8-bit weights that is known, seen through reshapes and conversions."""
        while (node := self.nodes.producer(tensor)) is not None:
            if node.kind not in ("reshape", "reorder") or node.is_scaled:
                return None
            tensor = node.inputs[0]
        return next((c.value for c in self.constants if c.tensor == tensor), None)

    def new_tensor(self, dtype: str, shape: Sequence[Dim]) -> int:
        """Append a tensor and return its id."""
        self.tensors.append(Tensor(dtype, tuple(shape)))
        return len(self.tensors) - 1

    def insert(
        self, kind: str, inputs: Sequence[int], shape: Sequence[Dim], dtype: str, before: Node, **attrs: Any
    ) -> Node:
        """Insert a node with a result of its own in front of ``before``."""
        node = Node(kind, tuple(inputs), (self.new_tensor(dtype, shape),), attrs)
        self.nodes.insert(node, before)
        return node

    def replace(self, tensors: Mapping[int, int]) -> None:
        """Let all that reads a key, the region's outputs included, read its value instead."""
        for node in dict.fromkeys(n for t in tensors for n in self.nodes.readers(t)):
            self.nodes.reread(node, tensors)
        self.outputs = [tensors.get(t, t) for t in self.outputs]

    def isolate(self, node: Node, constants: set[int]) -> PortableGraph:
        """A graph of ``node`` alone; its operands are constants where ``constants`` holds them, else inputs."""
        ids = list(dict.fromkeys([*node.reads, *node.outputs]))
        new_id = {old: new for new, old in enumerate(ids)}
        alone = PortableGraph("alone", [replace(self.tensors[i], name="") for i in ids], equal=self.equal)
        for i in dict.fromkeys(node.reads):
            if i in constants:
                alone.constants.append(Constant(new_id[i], f"c{new_id[i]}"))
            else:
                alone.inputs.append(Input(tensor=new_id[i]))
        lone = replace(node, source=[], calls=[])
        lone.reread(new_id)
        lone.outputs = tuple(new_id[i] for i in node.outputs)
        alone.nodes.append(lone)
        alone.outputs = list(lone.outputs)
        return alone

    def specialize(self, symbols: Mapping[str, int]) -> PortableGraph:
        """A copy in which every dim is a number."""

        def shape(dims: Sequence[Dim]) -> tuple[Dim, ...]:
            return tuple(evaluate(d, symbols) for d in dims)

        return PortableGraph(
            self.name,
            [replace(t, shape=shape(t.shape)) for t in self.tensors],
            [i if i.shape is None else replace(i, shape=shape(i.shape)) for i in self.inputs],
            self.constants,
            self.nodes,
            self.outputs,
        )

    def to_dict(self) -> dict[str, Any]:
        """The document of docs/portable_graph.md."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "tensors": [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in self.tensors],
            "inputs": [
                {"shape": list(i.shape or ())}
                if i.tensor is None
                else {"tensor": i.tensor} | ({} if i.alias is None else {"alias": i.alias})
                for i in self.inputs
            ],
            "constants": [{"tensor": c.tensor, "name": c.name} for c in self.constants],
            "nodes": [_node_dict(n) for n in self.nodes],
            "outputs": self.outputs,
            **({} if self.times is None else {"times": self.times}),
        }

    def to_json(self, *, anonymous: bool = False) -> str:
        """The document as compact JSON, the same text for the same graph.

        Parameters
        ----------
        anonymous : bool
            Leave out the names, and what the nodes come from: graphs that compute the same have the same text.
        """
        document = self.to_dict()
        if anonymous:
            document["name"] = "graph"
            for tensor in document["tensors"]:
                tensor["name"] = ""
            for number, constant in enumerate(document["constants"]):
                constant["name"] = f"c{number}"
            for node in document["nodes"]:
                node["source"], node["calls"] = [], []
        return _TEXT.encode(document)

    @property
    def symbols(self) -> set[str]:
        """Names of the symbolic dims that any tensor mentions."""
        shapes = [*(t.shape for t in self.tensors), *(i.shape for i in self.inputs if i.shape is not None)]
        return symbols_in(dim for shape in shapes for dim in shape if not isinstance(dim, int))


def symbols_in(dims: Iterable[Dim]) -> set[str]:
    found: set[str] = set()
    for dim in dims:
        if isinstance(dim, str):
            found.add(dim)
        elif isinstance(dim, tuple):
            found |= symbols_in(dim[1:])
    return found


_EVALUATE: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": max,
    "min": min,
}


def evaluate(dim: Dim, symbols: Mapping[str, int]) -> int:
    """Value of a dim for given values of the symbols."""
    if isinstance(dim, int):
        return dim
    if isinstance(dim, str):
        return symbols[dim]
    name, a, b = dim
    return _EVALUATE[name](evaluate(a, symbols), evaluate(b, symbols))


def _number(value: Any) -> Any:
    """JSON has no word for infinity and NaN: they are strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def _operand(tensor: int, scaling: Scaling | None) -> int | dict[str, int]:
    if scaling is None:
        return tensor
    fields = {"tensor": tensor, "scale": scaling.scale, "zero_point": scaling.zero_point, "axis": scaling.axis}
    return {name: value for name, value in fields.items() if value is not None}


def _node_dict(node: Node) -> dict[str, Any]:
    post_ops = []
    for op in node.post_ops:
        if op.kind == "eltwise":
            post_ops.append({"kind": op.kind, "alg": op.alg, "alpha": _number(op.alpha), "beta": _number(op.beta)})
        else:
            post_ops.append({"kind": op.kind, "alg": op.alg, "input": op.input})
    attrs = {k: _number(list(v) if isinstance(v, tuple) else v) for k, v in node.attrs.items()}
    return {
        "kind": node.kind,
        "inputs": [_operand(t, node.scalings.get(k)) for k, t in enumerate(node.inputs)],
        "outputs": [_operand(t, node.result_scaling) for t in node.outputs],
        "attrs": attrs,
        "post_ops": post_ops,
        "source": node.source,
        "calls": node.calls,
    }
