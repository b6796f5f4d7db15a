"""Sums, differences and products of two quantised tensors as one primitive on integers.

    a ─ dequantize ┐                                a  (scale) ┐
    b ─ dequantize ┴ add ─ relu ─ quantize   ──>    b  (scale) ┴ add ─ linear ─ relu ─ linear

oneDNN's binary primitive takes the scales of its operands. The zero points, and the scale of the result, are numbers
in linear functions behind it.

Where a product makes one of the operands for nobody else, the sum is fused into it, with the rounding between the two:

    product ─ linear ─ round ─ clip ─ linear ─ add b ─ relu ─ linear
"""

from __future__ import annotations

from dataclasses import replace

from ...lower.graph import Node, PortableGraph, PostOp, Scaling
from .native import probe_fused
from .quantize import is_quantize
from .quantized_links import PRODUCTS, RANGES, Links

__all__ = ["join_sum", "read_sum"]

_SIGNS = {"add": 1.0, "sub": -1.0, "mul": 0.0}
_STEPS = ("relu", "clip")


def read_sum(links: Links, node: Node) -> None:
    """Let an arithmetic operation on two dequantised tensors read and write the integers."""
    if node.kind != "binary" or node.attrs["alg"] not in _SIGNS or node.post_ops or node.is_scaled:
        return
    graph, shape = links.graph, links.graph.tensors[node.outputs[0]].shape
    sources = [links.dequantized(t) for t in node.inputs]
    steps, quantize = _steps(links, node)
    if None in sources or quantize is None or quantize.result_scaling is None:
        return
    scalings = [s.scalings[0] for s in sources if s is not None]
    known = [links.numbers(scaling) for scaling in (*scalings, quantize.result_scaling)]
    if any(number is None for number in known) or any(graph.tensors[t].shape != shape for t in node.inputs):
        return
    (scale_a, point_a), (scale_b, point_b), (scale, point) = (number for number in known if number is not None)
    sign = _SIGNS[node.attrs["alg"]]
    if not sign and (point_a or point_b):
        return
    shift = -(scale_a * point_a + sign * scale_b * point_b)
    post_ops = [PostOp("eltwise", "linear", 1.0, shift)] if shift else []
    post_ops += [PostOp("eltwise", step.attrs["alg"], step.attrs["alpha"], step.attrs["beta"]) for step in steps]
    post_ops.append(PostOp("eltwise", "linear", 1 / scale, float(point)))
    integers = tuple(s.inputs[0] for s in sources if s is not None)
    origin = [name for made in (*sources, node, *steps, quantize) if made is not None for name in made.source]
    result = Node("binary", integers, quantize.outputs, dict(node.attrs), post_ops, origin)
    result.scalings = {place: Scaling(scaling.scale) for place, scaling in enumerate(scalings)}
    graph.nodes.insert(result, quantize)
    for old in (quantize, *reversed(steps), node):
        graph.nodes.remove(old)


def _steps(links: Links, node: Node) -> tuple[list[Node], Node | None]:
    """The bounds behind a node, and the conversion to integers behind these."""
    steps: list[Node] = []
    reader = links.only_reader(node.outputs[0])
    while reader is not None and reader.kind == "eltwise" and reader.attrs["alg"] in _STEPS:
        steps.append(reader)
        reader = links.only_reader(reader.outputs[0])
    return steps, (reader if reader is not None and is_quantize(reader) else None)


def join_sum(links: Links, node: Node) -> None:
    """Fuse a sum of integers into the product that makes one of its operands."""
    if node.kind != "binary" or node.attrs["alg"] != "add" or len(node.scalings) != 2 or not node.post_ops:
        return
    for place, tensor in enumerate(node.inputs):
        product, other = links.nodes.producer(tensor), node.inputs[1 - place]
        maker = links.nodes.producer(other)
        if product is None or product.kind not in PRODUCTS or links.only_reader(tensor) is not node:
            continue
        if maker is not None and not links.nodes.precedes(maker, product):
            continue
        joined = _joined(links, product, node, place)
        if joined is not None:
            _put(links.graph, product, node, joined)
            return


def _joined(links: Links, product: Node, node: Node, place: int) -> Node | None:
    """``product`` with the sum as its post-ops, if oneDNN has an implementation."""
    graph = links.graph
    stored = None if product.result_scaling is None else links.numbers(product.result_scaling)
    read, added = (links.numbers(node.scalings[i]) for i in (place, 1 - place))
    if stored is None or read is None or added is None:
        return None
    (scale, point), unit = stored, added[0]
    low, high = RANGES[links.dtype(node.inputs[place])]
    steps = list(node.post_ops)
    shift = steps.pop(0).beta if steps[0].alg == "linear" and len(steps) > 1 else 0.0
    final = steps.pop()
    bounds = [replace(s, alpha=s.alpha / unit, beta=s.beta / unit) if s.alg == "clip" else s for s in steps]
    post_ops = [
        *product.post_ops,
        PostOp("eltwise", "linear", 1 / scale, float(point)),
        PostOp("eltwise", "round"),
        PostOp("eltwise", "clip", float(low), float(high)),
        PostOp("eltwise", "linear", read[0] / unit, shift / unit),  # in units of the other operand
        PostOp("binary", "add", input=len(product.inputs)),
        *bounds,
        replace(final, alpha=final.alpha * unit),
    ]
    inputs = (*product.inputs, node.inputs[1 - place])
    joined = Node(product.kind, inputs, node.outputs, product.attrs, post_ops, scalings=product.scalings)
    if not graph.symbols and probe_fused(graph.isolate(joined, links.constants)) is not None:
        return None
    return joined


def _put(graph: PortableGraph, product: Node, node: Node, joined: Node) -> None:
    graph.nodes.remove(node)
    graph.nodes.rescale(product, joined.scalings)
    graph.nodes.rewire(product, joined.inputs, joined.outputs)
    product.post_ops = joined.post_ops
    product.source = product.source + node.source
