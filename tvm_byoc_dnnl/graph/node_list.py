"""The nodes of a portable graph in their order, and which of them makes and which of them read each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any


@dataclass
class PostOp:
    """An operation on a node's result before it is stored; ``input`` is a position in the node's inputs."""

    kind: str
    alg: str
    alpha: float = 0.0
    beta: float = 0.0
    input: int | None = None


@dataclass(frozen=True)
class Scaling:
    """The meaning of stored elements: value = (stored - zero point) · scale.

    Attributes
    ----------
    scale : int or None
        A tensor of float32 and rank 1.
    zero_point : int or None
        A tensor of int32 and rank 1.
    axis : int or None
        The axis with one of them for each channel; ``None`` where one is for all.
    """

    scale: int | None = None
    zero_point: int | None = None
    axis: int | None = None

    @property
    def tensors(self) -> tuple[int, ...]:
        """The scale and the zero point, where there are any."""
        return tuple(t for t in (self.scale, self.zero_point) if t is not None)

    def renamed(self, names: Mapping[int, int]) -> Scaling:
        """The same with other ids."""
        scale, zero_point = (None if t is None else names.get(t, t) for t in (self.scale, self.zero_point))
        return Scaling(scale, zero_point, self.axis)


@dataclass(eq=False)
class Node:
    """One primitive or view; compared by identity, since passes rewrite it in place.

    Once a node is in a graph, only `rewire`, `rescale` and `reread` of `NodeList` change its tensors.

    Attributes
    ----------
    scalings : dict
        Scales and zero points of inputs, by their position.
    result_scaling : Scaling or None
        Those of the output.
    source : list of str
        The Relax operators that it was made from.
    calls : list of int
        The positions of these calls in the region; for reports.
    apart : str
        Why the node is not fused into the one that makes its input; for reports, not in the document.
    precision : str
        Why the node computes in float32 although a lower precision was asked for, or is that of the model; for reports.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    post_ops: list[PostOp] = field(default_factory=list)
    source: list[str] = field(default_factory=list)
    apart: str = ""
    precision: str = ""
    scalings: dict[int, Scaling] = field(default_factory=dict)
    result_scaling: Scaling | None = None
    calls: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inputs, self.outputs = tuple(self.inputs), tuple(self.outputs)

    @property
    def function(self) -> str:
        """What it computes, in a word or two: the kind, of a kind with several functions the one it has."""
        if self.kind == "pooling":
            return f"{self.attrs.get('alg', '')} pooling".strip()
        return str(self.attrs.get("alg", self.kind)) if self.kind in ("eltwise", "binary") else self.kind

    @property
    def is_scaled(self) -> bool:
        """Whether an operand or the result has a scale or a zero point."""
        return bool(self.scalings) or self.result_scaling is not None

    @property
    def reads(self) -> tuple[int, ...]:
        """All tensors that the node reads: the inputs, then scales and zero points."""
        if not self.scalings and self.result_scaling is None:
            return self.inputs
        scalings = [*self.scalings.values(), *([self.result_scaling] if self.result_scaling else [])]
        return (*self.inputs, *(t for s in scalings for t in s.tensors))

    def stands_for(self, *others: Node) -> None:
        """Note that the node does the work of the calls of other nodes, too."""
        for other in others:
            self.source, self.calls = self.source + other.source, self.calls + other.calls

    def reread(self, names: Mapping[int, int]) -> None:
        """Read the tensors that ``names`` has for those that are read now."""
        self.inputs = tuple(names.get(t, t) for t in self.inputs)
        self.scalings = {place: s.renamed(names) for place, s in self.scalings.items()}
        self.result_scaling = self.result_scaling.renamed(names) if self.result_scaling else None


#: distance of the labels of neighbours that have room between them
_GAP = 1 << 64


class NodeList:
    """A linked list of nodes: insertion, removal and the question which of two comes first take constant time."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        # ``None`` stands before the first node and behind the last one. Labels increase along the list.
        self._next: dict[Node | None, Node | None] = {None: None}
        self._previous: dict[Node | None, Node | None] = {None: None}
        self._label: dict[Node, int] = {}
        self._producer: dict[int, Node] = {}
        self._readers: dict[int, dict[Node, int]] = {}  # with the number of times that each reads the tensor
        for node in nodes:
            self.append(node)

    def __len__(self) -> int:
        return len(self._label)

    def __contains__(self, node: object) -> bool:
        return node in self._label

    def __iter__(self) -> Iterator[Node]:
        node = self._next[None]
        while node is not None:
            yield node
            node = self._next[node]

    def __reversed__(self) -> Iterator[Node]:
        node = self._previous[None]
        while node is not None:
            yield node
            node = self._previous[node]

    def __getitem__(self, index: int) -> Node:
        """The node at a position, counted from the nearer end where ``index`` is negative."""
        nodes, place = (iter(self), index) if index >= 0 else (reversed(self), -1 - index)
        for node in islice(nodes, place, None):
            return node
        raise IndexError(f"node {index} of {len(self)}")

    def producer(self, tensor: int) -> Node | None:
        return self._producer.get(tensor)

    def readers(self, tensor: int) -> list[Node]:
        return list(self._readers.get(tensor, ()))

    def read_count(self, tensor: int) -> int:
        """The number of operands that are this tensor; a node that multiplies it with itself counts twice."""
        return sum(self._readers.get(tensor, {}).values())

    def precedes(self, node: Node, other: Node) -> bool:
        return self._label[node] < self._label[other]

    def in_order(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self._label.__getitem__)

    def append(self, node: Node) -> None:
        self.insert(node, before=None)

    def insert(self, node: Node, before: Node | None) -> None:
        self._link(node, before)
        self._connect(node)

    def remove(self, node: Node) -> None:
        self._disconnect(node)
        self._unlink(node)

    def move(self, node: Node, before: Node | None = None, after: Node | None = None) -> None:
        self._unlink(node)
        self._link(node, self._next[after] if after is not None else before)

    def rewire(self, node: Node, inputs: Iterable[int] | None = None, outputs: Iterable[int] | None = None) -> None:
        self._disconnect(node)
        node.inputs = node.inputs if inputs is None else tuple(inputs)
        node.outputs = node.outputs if outputs is None else tuple(outputs)
        self._connect(node)

    def rescale(self, node: Node, scalings: Mapping[int, Scaling], result: Scaling | None = None) -> None:
        self._disconnect(node)
        node.scalings, node.result_scaling = dict(scalings), result
        self._connect(node)

    def reread(self, node: Node, names: Mapping[int, int]) -> None:
        self._disconnect(node)
        node.reread(names)
        self._connect(node)

    def sort(self, key: Callable[[Node], Any]) -> None:
        for node in sorted(self, key=key):
            self.move(node)

    def _connect(self, node: Node) -> None:
        for tensor in node.outputs:
            self._producer[tensor] = node
        for tensor in node.reads:
            readers = self._readers.setdefault(tensor, {})
            readers[node] = readers.get(node, 0) + 1

    def _disconnect(self, node: Node) -> None:
        for tensor in node.outputs:
            if self._producer.get(tensor) is node:
                del self._producer[tensor]
        for tensor in node.reads:
            self._readers[tensor].pop(node, None)

    def _link(self, node: Node, before: Node | None) -> None:
        previous = self._previous[before]
        self._previous[node], self._next[node] = previous, before
        self._next[previous] = self._previous[before] = node
        low = self._label[previous] if previous is not None else 0
        self._label[node] = (low + self._label[before]) // 2 if before is not None else low + _GAP
        if self._label[node] == low:  # after 64 insertions at one place, at the earliest
            self._label = {n: (k + 1) * _GAP for k, n in enumerate(self)}

    def _unlink(self, node: Node) -> None:
        previous, following = self._previous.pop(node), self._next.pop(node)
        self._next[previous], self._previous[following] = following, previous
        del self._label[node]
