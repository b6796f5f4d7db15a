"""Links of quantised networks on integers: scales and zero points become attributes of the primitive between them, and
elementwise steps between two tensors of bytes a table of 256 results.

    x ─ dequantize ┐                                                    x   (scale, zero point)
    w ─ dequantize ┴ convolution ─ + bias ─ relu ─ quantize ─ y   ──>   w ─ convolution + bias + relu ─ y
                                                                        (scale per channel)       (scale, zero point)

`read_integers` runs before elementwise chains are fused and `write_integers` after it, so the bias and the post-ops
are fused as they are in float32. Steps that only move elements, or take the largest of some, move the integers.

    x ─ dequantize ─ gelu ─ quantize ─ y   ──>   x ─ lookup [256 bytes] ─ y

Whatever the steps are, their result is a function of one byte. The table is computed by the steps themselves.
"""

from __future__ import annotations

import numpy as np

from ...vendor import Input, Node, PortableGraph, Tensor
from . import library
from .common import ARITHMETIC, PRODUCTS, option
from .quantize import is_quantize
from .quantized_links import RANGES, Links
from .quantized_sums import change_scale, join_product, read_sum, round_before_points

_BYTES = 256


def tabulate(links: Links, quantize: Node) -> None:
    """Let the steps between a dequantisation and ``quantize`` be a table."""
    scaling = quantize.result_scaling
    if quantize not in links.nodes or not is_quantize(quantize) or scaling is None or not library.available():
        return
    result, found = links.numbers(scaling), _steps(links, quantize)
    if result is None or found is None:
        return
    before, steps = found
    source = links.numbers(before.scalings[0])
    if source is None:
        return
    integers = np.arange(_BYTES, dtype="uint8").view(links.dtype(before.inputs[0]))
    reals = (integers.astype("float32") - np.float32(source[1])) * np.float32(source[0])
    if steps:
        reals = _apply(links, steps, reals)
    if np.isnan(reals).any():
        return
    low, high = RANGES[links.dtype(quantize.outputs[0])]
    table = np.clip(np.rint(reals / np.float32(result[0])) + result[1], low, high)
    lookup = Node("lookup", before.inputs, quantize.outputs, {"table": tuple(int(x) for x in table)})
    lookup.stands_for(before, *steps, quantize)
    links.nodes.insert(lookup, quantize)
    links.nodes.remove(quantize)


def _steps(links: Links, quantize: Node) -> tuple[Node, list[Node]] | None:
    """A dequantisation, and the elementwise nodes from there to ``quantize``, if nothing else reads or feeds them."""
    graph, shape = links.graph, links.graph.tensors[quantize.outputs[0]].shape
    steps: dict[Node, None] = {}
    sources: list[Node] = []
    waiting = list(quantize.inputs)
    while waiting:
        tensor = waiting.pop()
        before, node = links.dequantized(tensor), links.nodes.producer(tensor)
        if graph.tensors[tensor].shape != shape or node is None:
            return None
        if before is not None:
            sources.append(before)
        elif node not in steps:
            is_step = node.kind == "eltwise" or (node.kind == "binary" and node.attrs["alg"] in ARITHMETIC)
            if not is_step or node.post_ops or node.is_scaled or tensor in graph.outputs:
                return None
            steps[node] = None
            waiting += [t for t in node.inputs if links.number(t) is None]
    readers = {reader for step in steps for reader in links.nodes.readers(step.outputs[0])}
    if not sources or not readers <= {*steps, quantize}:
        return None
    first = sources[0]
    for other in sources[1:]:
        if other.inputs != first.inputs or not links.are_equal(other.scalings[0], first.scalings[0]):
            return None
    return first, links.nodes.in_order(steps)


def _apply(links: Links, steps: list[Node], reals: np.ndarray) -> np.ndarray:
    """The results of the steps for a vector of numbers."""
    graph = PortableGraph("steps", [Tensor("float32", reals.shape)], [Input(tensor=0)])
    arguments = [reals]
    ids: dict[int, int] = {}
    for step in steps:
        for tensor in step.inputs:
            number = links.number(tensor)
            if number is not None and tensor not in ids:
                arguments.append(np.full(1, number, "float32"))
                ids[tensor] = graph.new_tensor("float32", (1,))
                graph.inputs.append(Input(tensor=ids[tensor]))
        inputs = tuple(ids.get(tensor, 0) for tensor in step.inputs)  # 0: what was dequantised
        ids[step.outputs[0]] = graph.new_tensor("float32", reals.shape)
        graph.nodes.append(Node(step.kind, inputs, (ids[step.outputs[0]],), step.attrs))
    graph.outputs = [ids[steps[-1].outputs[0]]]
    return library.run(graph, arguments)[0]


def read_integers(graph: PortableGraph) -> None:
    """Let movements, pooling and products read the integers that are dequantised for them."""
    may_saturate = option(graph, "int8") == "saturating"
    if not _has_integers(graph):
        return
    links = Links(graph)
    for node in reversed(list(graph.nodes)):
        links.raise_quantize(node)
    for node in list(graph.nodes):
        if node in graph.nodes and not links.skip_round_trip(node) and not links.lower_dequantize(node):
            links.average_integers(node)
    for node in list(graph.nodes):
        read_sum(links, node)
        links.normalize_integers(node)
        if node in graph.nodes and is_quantize(node):
            change_scale(links, node)
            tabulate(links, node)
    for node in graph.nodes:
        if node.kind in PRODUCTS:
            why = links.read_product(node)
            node.apart = why and f"in float32: {why}"
            if (node.is_scaled and may_saturate) or links.has_small_weights(node):
                node.attrs = {**node.attrs, "alg": "saturating"}
    graph.prune()


def write_integers(graph: PortableGraph) -> None:
    """Let products that read integers write them, where nothing reads the real numbers between."""
    if not _has_integers(graph):
        return
    links = Links(graph)
    for node in list(graph.nodes):
        if is_quantize(node):
            node.apart = links.write_product(node)
        elif node in graph.nodes:
            links.write_sum(node)
    graph.prune()
    links = Links(graph)
    for node in list(graph.nodes):
        join_product(links, node)
    for node in list(graph.nodes):
        round_before_points(links, node)


def _has_integers(graph: PortableGraph) -> bool:
    return any(node.is_scaled for node in graph.nodes)
