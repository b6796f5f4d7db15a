"""Several matrix products of one row become one.

        x [1, K]                           x [1, K]
       /    |    \\                            |
    @ W1  @ W2  @ W3        ──>        @ [W1 | W2 | W3]        the weights joined once, when the module loads
     + b1  + b2  + b3                  + [b1 | b2 | b3]
     relu  relu  relu                       relu
       \\    |    /                       /     |    \\
                                    columns of the result, read where they are

Only for one row (a token of a decoder, the heads after a global pooling): its columns are then contiguous pieces, so
their readers read the same data as before, and the starts of all products but one are saved. With more rows the
pieces are strided, and whether joined products are faster depends on the numbers of rows and threads. So they are left
apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...vendor import Node, PortableGraph
from .views import VIEWS, move_up


def merge_matmuls(graph: PortableGraph) -> None:
    """Join the products of each tensor that may be joined; runs on fused graphs, whose products have their bias."""
    constants = graph.constant_tensors()
    groups: dict[tuple[object, ...], list[Node]] = {}
    delivered = _delivered(graph)
    for node in graph.nodes:
        if node.kind == "matmul" and why_apart(graph, node, constants, delivered) is None:
            groups.setdefault(_common(graph, node), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(graph, nodes)


def why_apart(graph: PortableGraph, node: Node, constants: set[int], delivered: set[int]) -> str | None:
    """The reason why a product cannot be joined with others of its input; ``None`` if it can.

    ``delivered``: tensors that are outputs of the region, through views or not.
    """
    shape = graph.tensors[node.outputs[0]].shape
    if len(shape) != 2 or shape[0] != 1:
        return f"a product of shape {list(shape)}: only the columns of one row lie together"
    if not isinstance(shape[1], int):
        return f"a symbolic number of columns, {shape[1]}"
    if node.is_scaled:
        return "operands with scales or zero points"
    if any(op.kind != "eltwise" for op in node.post_ops):
        return "a post-op with an operand of its own"
    if node.inputs[0] in constants or not constants.issuperset(node.inputs[1:]):
        return "weights or a bias that are known at run time only"
    if node.outputs[0] in delivered:
        return "a result of the region: its columns would have to be copied there"
    return None


def _delivered(graph: PortableGraph) -> set[int]:
    """The region's outputs, and the tensors of which they are views."""
    found = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.kind in VIEWS and found.intersection(node.outputs):
            found.update(node.inputs)
    return found


def _common(graph: PortableGraph, node: Node) -> tuple[object, ...]:
    """The properties in which products must agree to be joined."""
    types = tuple((graph.tensors[t].dtype, len(graph.tensors[t].shape)) for t in (*node.inputs[1:], *node.outputs))
    root = node.inputs[0]  # each product may have a reshape of its own; the result has rank 2, so they are alike
    while (view := graph.nodes.producer(root)) is not None and view.kind == "reshape":
        root = view.inputs[0]
    return root, types, tuple((op.alg, op.alpha, op.beta) for op in node.post_ops), repr(node.attrs)


def _merge(graph: PortableGraph, nodes: list[Node]) -> None:
    first = nodes[0]
    places = range(1, len(first.inputs))
    operands = [first.inputs[0], *(_joined(graph, first, [n.inputs[p] for n in nodes]) for p in places)]
    widths = [graph.tensors[n.outputs[0]].shape[1] for n in nodes]
    dtype = graph.tensors[first.outputs[0]].dtype
    total = sum(w for w in widths if isinstance(w, int))
    whole = graph.new_tensor(dtype, (1, total))
    joined = Node("matmul", tuple(operands), (whole,), dict(first.attrs), list(first.post_ops))
    joined.stands_for(*nodes)
    graph.nodes.insert(joined, first)
    begin = 0
    for node, width in zip(nodes, widths, strict=True):
        assert isinstance(width, int)
        slice_ = Node("slice", (whole,), node.outputs, {"begin": [0, begin], "steps": [1, 1]})
        begin += width
        graph.nodes.insert(slice_, first)
    for node in nodes:
        graph.nodes.remove(node)


def _joined(graph: PortableGraph, first: Node, tensors: Sequence[int]) -> int:
    """The constants side by side; computed once."""
    move_up(graph, first, tensors)
    shapes = [graph.tensors[t].shape for t in tensors]
    columns = sum(s[-1] for s in shapes if isinstance(s[-1], int))
    axis = len(shapes[0]) - 1
    shape = (*shapes[0][:-1], columns)
    return graph.insert("concat", tensors, shape, graph.tensors[tensors[0]].dtype, before=first, axis=axis).outputs[0]
