"""Arithmetic on quantised tensors as one primitive on integers: sums, differences, products, another scale.

    a ─ dequantize ┐                                a  (scale) ┐
    b ─ dequantize ┴ add ─ relu ─ quantize   ──>    b  (scale) ┴ add ─ linear ─ relu ─ linear

oneDNN's binary primitive takes the scales of its operands. The zero points, and the scale of the result, are numbers
in linear functions behind it.

Another scale and zero point for the same integers is a linear function of them. Where a product makes an operand for
nobody else, the sum or the other scale is fused into it, with the rounding between the two:

    product ─ linear ─ round ─ clip ─ linear ─ add b ─ relu ─ linear
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import numpy as np

from ...vendor import Node, PostOp, Scaling
from .native import fused
from .quantize import is_quantize
from .quantized_links import PRODUCTS, RANGES, Links, kept

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
    if any(number is None for number in known) or graph.tensors[node.inputs[0]].shape != shape:
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
    result = Node("binary", integers, quantize.outputs, dict(node.attrs), post_ops)
    result.stands_for(*(made for made in (*sources, node, *steps, quantize) if made is not None))
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


def change_scale(links: Links, quantize: Node) -> None:
    """Let a conversion from integers to integers of another scale be one linear function, if that rounds as it does."""
    if not is_quantize(quantize) or quantize.result_scaling is None:
        return
    tensor, factor = _factor(links, quantize.inputs[0])
    before = links.dequantized(tensor)
    if before is None:
        return
    known = [links.numbers(scaling) for scaling in (before.scalings[0], quantize.result_scaling)]
    dtypes = {links.dtype(t) for t in (*before.inputs, *quantize.outputs)}
    if known[0] is None or known[1] is None or len(dtypes) != 1:
        return
    (scale, point), (other, shift) = known[0], known[1]
    dtype = dtypes.pop()
    integers = np.arange(256, dtype="uint8").view(dtype).astype("float32")
    ratio = scale * factor / other
    beta = shift - point * ratio
    # a sum that contains an odd zero point rounds a half to the other side
    products = np.float64(np.float32(ratio)) * integers
    sums = products + np.float32(beta)
    is_exact = (products.astype("float32") == products) & (sums.astype("float32") == sums)
    room = np.where(is_exact, 0, 2.0**-22 * (abs(ratio) * 255 + abs(beta)))  # for roundings on the way to them
    reals = (integers - np.float32(point)) * np.float32(scale)
    reals = reals if factor == 1 else reals * np.float32(factor)
    right = np.rint(reals / np.float32(other)) + shift
    low, high = RANGES[dtype]
    if any((np.clip(np.rint(sums + side), low, high) != np.clip(right, low, high)).any() for side in (-room, room)):
        return
    attrs = {"alg": "linear", "alpha": ratio, "beta": beta}
    scaled = Node("eltwise", before.inputs, quantize.outputs, attrs)
    scaled.stands_for(before, quantize)
    links.nodes.insert(scaled, quantize)
    links.nodes.remove(quantize)


def _factor(links: Links, tensor: int) -> tuple[int, float]:
    """The tensor that a number is multiplied with, and the number; 1 where there is none."""
    product = links.nodes.producer(tensor)
    if product is None or product.kind != "binary" or product.attrs["alg"] != "mul" or product.post_ops:
        return tensor, 1.0
    for data, other in (product.inputs, product.inputs[::-1]):
        number = links.number(other)
        if number is not None and links.graph.tensors[data].shape == links.graph.tensors[tensor].shape:
            return data, number
    return tensor, 1.0


def join_product(links: Links, node: Node) -> None:
    """Fuse a sum of integers, or their other scale, into the product that makes an operand."""
    is_sum = node.kind == "binary" and node.attrs["alg"] == "add" and len(node.scalings) == 2
    is_scale = node.kind == "eltwise" and node.attrs["alg"] == "linear" and not node.post_ops
    if not is_sum and not is_scale:
        return
    for place, tensor in enumerate(node.inputs):
        product = links.nodes.producer(tensor)
        others = [t for i, t in enumerate(node.inputs) if i != place]
        makers = [maker for t in others if (maker := links.nodes.producer(t)) is not None]
        if product is None or product.kind not in PRODUCTS or links.only_reader(tensor) is not node:
            continue
        stored = None if product.result_scaling is None else links.numbers(product.result_scaling)
        if stored is None or not all(links.nodes.precedes(maker, product) for maker in makers):
            continue
        unit, point = stored
        scaled = PostOp("eltwise", "linear", 1 / unit, 0.0)
        post_ops = [*product.post_ops, scaled, *kept(links.dtype(tensor), point)]
        if is_scale:
            alpha, beta = node.attrs["alpha"], node.attrs["beta"]
            post_ops.append(PostOp("eltwise", "linear", alpha, beta + alpha * point))
        else:
            post_ops += _added(links, node, place, len(product.inputs), point)
        inputs = (*product.inputs, *others)
        joined = Node(product.kind, inputs, node.outputs, product.attrs, post_ops, scalings=product.scalings)
        if links.graph.symbols or not fused(links.graph.isolate(joined, links.constants))[1]:
            links.nodes.remove(node)
            links.nodes.rescale(product, joined.scalings)
            links.nodes.rewire(product, inputs, node.outputs)
            product.post_ops = post_ops
            product.stands_for(node)
            return


def _added(links: Links, node: Node, place: int, position: int, point: int) -> list[PostOp]:
    """The steps of a sum behind its operand at ``place``, which is without its zero point ``point``.

    The other operand will be the product's input ``position``.
    """
    (own, _), (unit, _) = (links.numbers(node.scalings[i]) or (1.0, 0) for i in (place, 1 - place))
    steps = list(takewhile(lambda op: op.alg != "round", node.post_ops))
    rest = node.post_ops[len(steps) :]  # what was fused behind the integers of the sum
    final = steps.pop()
    shift = steps.pop(0).beta if steps and steps[0].alg == "linear" else 0.0
    bounds = [replace(s, alpha=s.alpha / unit, beta=s.beta / unit) if s.alg == "clip" else s for s in steps]
    return [
        PostOp("eltwise", "linear", own / unit, (shift + own * point) / unit),  # in units of the other operand
        PostOp("binary", "add", input=position),
        *bounds,
        replace(final, alpha=final.alpha * unit),
        *rest,
    ]
