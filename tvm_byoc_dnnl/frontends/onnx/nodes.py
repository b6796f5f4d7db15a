"""What a node of an ONNX graph says by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx

__all__ = ["DEFAULT_DOMAINS", "captured", "in_order", "is_standard", "nodes_in"]

DEFAULT_DOMAINS = ("", "ai.onnx")
_ATTRIBUTE = onnx.AttributeProto
#: types of attributes that have no graph: asking them for one takes longer
_PLAIN_ATTRIBUTES = (_ATTRIBUTE.INTS, _ATTRIBUTE.INT, _ATTRIBUTE.FLOAT, _ATTRIBUTE.STRING, _ATTRIBUTE.TENSOR)


def is_standard(node: onnx.NodeProto) -> bool:
    return node.domain in DEFAULT_DOMAINS


def captured(node: onnx.NodeProto) -> list[str]:
    """Names that the subgraphs of a node read from outside."""
    found: list[str] = []
    for attribute in node.attribute:
        if attribute.type in _PLAIN_ATTRIBUTES:
            continue
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            own = {value.name for values in (graph.input, graph.initializer) for value in values}
            own |= {name for inner in graph.node for name in inner.output}
            read = [name for inner in graph.node for name in (*inner.input, *captured(inner))]
            found += [name for name in (*read, *(o.name for o in graph.output)) if name not in own]
    return found


def nodes_in(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type not in _PLAIN_ATTRIBUTES:
                for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                    found += nodes_in(inner)
    return found


def in_order(
    nodes: list[onnx.NodeProto], results: Iterable[str], reads: Callable[[onnx.NodeProto], Iterable[str]]
) -> list[onnx.NodeProto]:
    """Nodes after those whose results they read, without those that none of the ``results`` needs."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    order: list[onnx.NodeProto] = []
    state: dict[int, bool] = {}  # False while the node's own inputs are being placed
    for result in results:
        stack = [maker[result]] if result in maker else []
        while stack:
            index = stack[-1]
            if index in state:
                stack.pop()
                if not state[index]:
                    state[index] = True
                    order.append(nodes[index])
                continue
            state[index] = False
            needed = [maker[n] for n in reads(nodes[index]) if n in maker]
            # A node that is being placed already and is needed again closes a cycle, which has been reported.
            stack.extend(i for i in reversed(needed) if i not in state)
    return order
