"""Links of quantised networks on integers: scales and zero points become attributes of the primitive between them.

    x ─ dequantize ┐                                                    x   (scale, zero point)
    w ─ dequantize ┴ convolution ─ + bias ─ relu ─ quantize ─ y   ──>   w ─ convolution + bias + relu ─ y
                                                                        (scale per channel)       (scale, zero point)

`read_integers` runs before elementwise chains are fused and `write_integers` after it, so the bias and the post-ops
are fused as they are in float32. Steps that only move elements, or take the largest of some, move the integers.
"""

from __future__ import annotations

from ...vendor import InputError, PortableGraph
from .lookups import tabulate
from .quantize import is_quantize
from .quantized_links import PRODUCTS, Links
from .quantized_rounding import round_before_points
from .quantized_sums import change_scale, join_product, read_sum

#: option → default: how sums of 8-bit products are computed on a CPU without VNNI
OPTIONS = {"int8": "exact"}
_INT8 = ("exact", "saturating")


def read_integers(graph: PortableGraph) -> None:
    """Let movements, pooling and products read the integers that are dequantised for them."""
    wanted = str(graph.options.get("int8", OPTIONS["int8"]))
    if wanted not in _INT8:
        raise InputError(f"the option int8 is {wanted!r}; expected {', '.join(_INT8)}")
    if not _has_integers(graph):
        return
    may_saturate = wanted == "saturating"
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
