"""Views out of the way of fusion: elementwise nodes move above the reshapes and permutations in front of them.

    matmul ── reshape ── add(bias) ── relu          matmul ── add(bias') ── relu ── reshape
                                            ──>
    conv ── permute ── relu ── permute ── conv      conv ── relu ── conv

Elementwise functions commute with any view that keeps each element; a second operand gets the inverse view.
"""

from __future__ import annotations

from ...lower.graph import Dim, Node, PortableGraph

__all__ = ["VIEWS", "sink_views"]

_ELEMENTWISE = ("eltwise", "binary")
VIEWS = ("reshape", "permute")


def sink_views(graph: PortableGraph) -> None:
    """Move elementwise nodes above views, then compose consecutive views."""
    sinker = _Sinker(graph)
    for node in list(graph.nodes):
        if node.kind in _ELEMENTWISE:
            while sinker.sink(node):
                pass
        elif node.kind in VIEWS:
            sinker.compose(node)
    _drop_identities(graph)


class _Sinker:
    def __init__(self, graph: PortableGraph) -> None:
        self.graph = graph
        self._constants = graph.constant_tensors()
        self._producer = {t: n for n in graph.nodes for t in n.outputs}
        self._inverses: set[Node] = set()  # made here; moving a node above one would undo the last move
        self._reads = {tensor: len(users) for tensor, users in graph.uses().items()}
        self._outputs = set(graph.outputs)

    def _shape(self, tensor: int) -> tuple[Dim, ...]:
        return self.graph.tensors[tensor].shape

    def _is_read_once(self, tensor: int) -> bool:
        return self._reads[tensor] == 1 and tensor not in self._outputs

    def _reread(self, old: int | None, new: int) -> None:
        """Account for a reader of ``old`` that reads ``new`` now; a view that nobody reads any more reads nothing."""
        self._reads[new] = self._reads.get(new, 0) + 1
        while old is not None:
            self._reads[old] -= 1
            view = self._producer.get(old)
            is_dead = view is not None and view.kind in VIEWS and not self._reads[old] and old not in self._outputs
            old = view.inputs[0] if view is not None and is_dead else None

    def sink(self, node: Node) -> bool:
        """Move ``node`` above one view in front of it."""
        for place, tensor in enumerate(node.inputs):
            view = self._producer.get(tensor)
            if (
                view is None
                or view.kind not in VIEWS
                or view in self._inverses
                or tensor in self._constants
                or self._shape(tensor) != self._shape(node.outputs[0])
                or not self._is_read_once(tensor)
            ):
                continue
            others = [self._seen_through(view, t) if i != place else view.inputs[0] for i, t in enumerate(node.inputs)]
            if None not in others:
                self._swap(view, node, place, others)
                return True
        return False

    def _swap(self, view: Node, node: Node, place: int, operands: list[object]) -> None:
        """``view; node`` → ``node; view``, with the other operands seen through the inverse view."""
        graph = self.graph
        for i, operand in enumerate(operands):
            if i == place:
                self._reread(node.inputs[i], view.inputs[0])  # the view reads no more
                node.inputs[i] = view.inputs[0]
            elif isinstance(operand, tuple):
                kind, shape, attrs = operand
                old = node.inputs[i]
                node.inputs[i] = graph.insert_before(node, kind, [old], shape, graph.tensors[old].dtype, **attrs)
                inverse = graph.nodes[graph.nodes.index(node) - 1]
                self._reread(None, node.inputs[i])  # the inverse reads the operand in the node's place
                self._producer[node.inputs[i]] = inverse
                self._inverses.add(inverse)
                if old in self._constants:
                    self._constants.add(node.inputs[i])
                self.compose(inverse)
        result = node.outputs[0]
        inner = graph.new_tensor(graph.tensors[result].dtype, self._shape(view.inputs[0]))
        node.outputs = [inner]
        graph.nodes.remove(view)
        moved = Node(view.kind, [inner], [result], view.attrs, source=view.source)
        graph.nodes.insert(graph.nodes.index(node) + 1, moved)
        self._producer[inner], self._producer[result] = node, moved
        self._reread(None, inner)

    def _seen_through(self, view: Node, tensor: int) -> object:
        """How to see another operand so that it broadcasts before ``view`` as it does after it, or ``None``."""
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
        while (inner := self._producer.get(node.inputs[0])) is not None and inner.kind == node.kind:
            if node.kind == "permute":
                node.attrs = {"axes": [inner.attrs["axes"][a] for a in node.attrs["axes"]]}
            self._reread(node.inputs[0], inner.inputs[0])
            node.inputs = [inner.inputs[0]]


def _drop_identities(graph: PortableGraph) -> None:
    """Let the readers of a view that changes nothing read its source."""
    same: dict[int, int] = {}
    for node in graph.nodes:
        node.inputs = [same.get(t, t) for t in node.inputs]
        if node.kind not in VIEWS:
            continue
        if node.kind == "permute":
            is_identity = node.attrs["axes"] == sorted(node.attrs["axes"])
        else:
            is_identity = graph.tensors[node.inputs[0]].shape == graph.tensors[node.outputs[0]].shape
        if is_identity:
            same[node.outputs[0]] = node.inputs[0]
    graph.outputs = [same.get(t, t) for t in graph.outputs]
    graph.prune()
