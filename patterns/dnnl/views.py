r"""Nodes move beyond views: elementwise nodes above the reshapes and permutations in front of them, so that they can be
fused; and a batch normalisation reads the parts of a concat where they are.

    matmul ── reshape ── add(bias) ── relu          matmul ── add(bias') ── relu ── reshape
                                            ──>
    conv ── permute ── relu ── permute ── conv      conv ── relu ── conv

Elementwise functions commute with any view that keeps each element; a second operand gets the inverse view.

    a   b   c                      a   b   c
     \ /    |                      |\ /|   |
    concat  |                      | X |   |
     |    \ |          ──>         |/ \|   |
    norm  concat                  norm(a, b)  norm(a, b, c)
            |
           norm

In a DenseNet each layer joins its result to all earlier ones and normalises that; to join them takes a tenth of the
network's time. Only concats go of which nothing but normalisations is left as readers: any other reader would need the
joined tensor in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ...vendor import Dim, Node, PortableGraph

_ELEMENTWISE = ("eltwise", "binary")
VIEWS = ("reshape", "permute")


def divisor_of(graph: PortableGraph, node: Node) -> float | None:
    """The known number that a node divides its first operand by, if it does and the inverse is a finite number."""
    if node.kind != "binary" or node.attrs["alg"] != "div" or node.is_scaled or node.post_ops:
        return None
    known = graph.value_of(node.inputs[1])
    if known is None or known.size != 1 or graph.tensors[node.inputs[0]].shape != graph.tensors[node.outputs[0]].shape:
        return None
    number = float(known.reshape(-1)[0])
    return number if number != 0 and math.isfinite(number) and 1e-30 < abs(number) < 1e30 else None


def is_read_once(graph: PortableGraph, tensor: int) -> bool:
    """Whether one node reads ``tensor``, and nothing else."""
    return tensor not in graph.outputs and graph.nodes.read_count(tensor) == 1


def only_reader(graph: PortableGraph, tensor: int) -> Node | None:
    """The one node that reads ``tensor``; ``None`` if it is read elsewhere too."""
    return graph.nodes.readers(tensor)[0] if is_read_once(graph, tensor) else None


def move_up(
    graph: PortableGraph, place: Node, tensors: Iterable[int], may_move: Callable[[Node, int], bool] | None = None
) -> bool:
    """Bring what computes these tensors in front of ``place``, if all of it may move; whether it stands there."""
    late: dict[Node, None] = {}
    waiting = list(tensors)
    while waiting:
        tensor = waiting.pop()
        producer = graph.nodes.producer(tensor)
        if producer is None or producer in late or graph.nodes.precedes(producer, place):
            continue
        if producer is place or (may_move is not None and not may_move(producer, tensor)):
            return False
        late[producer] = None
        waiting.extend(producer.reads)
    for producer in graph.nodes.in_order(late):
        graph.nodes.move(producer, before=place)
    return True


def sink_views(graph: PortableGraph) -> None:
    """Move elementwise nodes above views, then compose consecutive views."""
    sinker = _Sinker(graph)
    for node in list(graph.nodes):
        if node not in graph.nodes:  # a view that composition has bypassed
            continue
        if node.kind in _ELEMENTWISE:
            while sinker.sink(node):
                pass
        elif node.kind in VIEWS:
            sinker.compose(node)
    _drop_identities(graph)


class _Sinker:
    def __init__(self, graph: PortableGraph) -> None:
        self.graph, self.nodes = graph, graph.nodes
        self._constants = graph.constant_tensors()
        self._inverses: set[Node] = set()  # made here; moving a node above one would undo the last move
        self._outputs = set(graph.outputs)

    def _shape(self, tensor: int) -> tuple[Dim, ...]:
        return self.graph.tensors[tensor].shape

    def _drop_unread(self, tensor: int) -> None:
        """Remove the view that makes ``tensor`` if nothing reads it any more, and the views that only it read."""
        while (view := self.nodes.producer(tensor)) is not None and view.kind in VIEWS:
            if tensor in self._outputs or self.nodes.readers(tensor):
                return
            self.nodes.remove(view)
            tensor = view.inputs[0]

    def sink(self, node: Node) -> bool:
        """Move ``node`` above one view in front of it."""
        if node.is_scaled:  # the view would change the meaning of the axes of its scales
            return False
        for place, tensor in enumerate(node.inputs):
            view = self.nodes.producer(tensor)
            if (
                view is None
                or view.kind not in VIEWS
                or view in self._inverses
                or tensor in self._constants
                or self._shape(tensor) != self._shape(node.outputs[0])
                or not is_read_once(self.graph, tensor)
            ):
                continue
            others = [self._seen_through(view, t) if i != place else view.inputs[0] for i, t in enumerate(node.inputs)]
            if None not in others:
                self._swap(view, node, place, others)
                return True
        return False

    def _swap(self, view: Node, node: Node, place: int, operands: list[object]) -> None:
        """``view; node`` → ``node; view``, with the other operands seen through the inverse view."""
        graph, inputs, inverses = self.graph, list(node.inputs), []
        inputs[place] = view.inputs[0]
        for i, operand in enumerate(operands):
            if isinstance(operand, tuple):
                kind, shape, attrs = operand
                old = inputs[i]
                inverse = graph.insert(kind, [old], shape, graph.tensors[old].dtype, before=node, **attrs)
                inverses.append(inverse)
                inputs[i] = inverse.outputs[0]
                if old in self._constants:
                    self._constants.add(inputs[i])
        result = node.outputs[0]
        inner = graph.new_tensor(graph.tensors[result].dtype, self._shape(view.inputs[0]))
        self.nodes.rewire(node, inputs, [inner])
        self.nodes.rewire(view, [inner], [result])
        self.nodes.move(view, after=node)
        self._inverses.update(inverses)
        for inverse in inverses:
            self.compose(inverse)

    def _seen_through(self, view: Node, tensor: int) -> object:
        """A view of another operand that broadcasts before ``view`` as the operand does after it, or ``None``."""
        before, after, own = self._shape(view.inputs[0]), self._shape(view.outputs[0]), self._shape(tensor)
        if view.kind == "permute":
            axes = [view.attrs["axes"].index(i) for i in range(len(own))]
            return ("permute", tuple(own[a] for a in axes), {"axes": axes})
        if own == after:
            return ("reshape", before, {})
        tail = 0  # axes at the end that the reshape leaves alone
        while tail < min(len(before), len(after)) and before[-1 - tail] == after[-1 - tail]:
            tail += 1
        if any(d != 1 for d in own[: len(own) - tail]):
            return None
        return ("reshape", (1,) * (len(before) - tail) + own[len(own) - tail :], {})

    def compose(self, node: Node) -> None:
        """Let a view of a view read the first one's source."""
        while (inner := self.nodes.producer(node.inputs[0])) is not None and inner.kind == node.kind:
            if node.kind == "permute":
                node.attrs = {"axes": [inner.attrs["axes"][a] for a in node.attrs["axes"]]}
            bypassed = node.inputs[0]
            self.nodes.rewire(node, inner.inputs)
            self._drop_unread(bypassed)


def _drop_identities(graph: PortableGraph) -> None:
    """Let the readers of a view that changes nothing read its source."""
    same: dict[int, int] = {}
    for node in graph.nodes:
        if node.kind not in VIEWS:
            continue
        source, result = same.get(node.inputs[0], node.inputs[0]), node.outputs[0]
        if node.kind == "permute":
            is_identity = node.attrs["axes"] == sorted(node.attrs["axes"])
        else:
            is_identity = graph.tensors[source].shape == graph.tensors[result].shape
        if is_identity:
            same[result] = source
    if same:
        graph.replace(same)
        graph.prune()


_NORM = "batch_normalization"
_CHANNELS = 1


def read_parts(graph: PortableGraph) -> None:
    """Remove concats of channels that only batch normalisations read, directly or through other such concats."""
    needless: set[Node] = set()
    for node in reversed(graph.nodes):  # a concat may be read by one that stands behind it
        if _joins_channels(graph, node) and all(
            reader in needless or (reader.kind == _NORM and not reader.is_scaled) for reader in _readers(graph, node)
        ):
            needless.add(node)
    parts: dict[int, tuple[int, ...]] = {}
    for node in list(graph.nodes):
        if node in needless:
            parts[node.outputs[0]] = tuple(part for t in node.inputs for part in parts.get(t, (t,)))
            readers = _readers(graph, node)
            next((n for n in readers if n.kind == _NORM), readers[0]).stands_for(node)
        elif node.kind == _NORM and node.inputs[0] in parts:
            first, *others = parts[node.inputs[0]]
            graph.nodes.rewire(node, [first, *node.inputs[1:], *others])
    for node in needless:
        graph.nodes.remove(node)


def _readers(graph: PortableGraph, node: Node) -> list[Node]:
    return graph.nodes.readers(node.outputs[0])


def _joins_channels(graph: PortableGraph, node: Node) -> bool:
    if node.kind != "concat" or node.attrs["axis"] != _CHANNELS or node.is_scaled or node.post_ops:
        return False
    result = node.outputs[0]
    is_read = graph.nodes.read_count(result) > 0
    return is_read and result not in graph.outputs and graph.tensors[result].dtype == "float32"
