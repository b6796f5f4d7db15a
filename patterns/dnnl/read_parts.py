"""A batch normalisation reads the parts of a concat where they are.

    a   b   c                      a   b   c
     \\ /    |                      |\\ /|   |
    concat  |                      | X |   |
     |    \\ |          ──>         |/ \\|   |
    norm  concat                  norm(a, b)  norm(a, b, c)
            |
           norm

In a DenseNet each layer joins its result to all earlier ones and normalises that; to join them takes a tenth of the
network's time. Only concats go of which nothing but normalisations is left as readers: any other reader would need the
joined tensor in any case.
"""

from __future__ import annotations

from ...vendor import Node, PortableGraph

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
