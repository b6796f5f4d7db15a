"""Links of quantised networks on integers: scales and zero points become attributes of the primitive between them, and
elementwise steps between two tensors of bytes a table of 256 results.

    x ─ dequantize ┐                                                    x   (scale, zero point)
    w ─ dequantize ┴ convolution ─ + bias ─ relu ─ quantize ─ y   ──>   w ─ convolution + bias + relu ─ y
                                                                        (scale per channel)       (scale, zero point)

`read_integers` runs before elementwise chains are fused and `write_integers` after it, so the bias and the post-ops
are fused as they are in float32. Steps that only move elements, or take the largest of some, move the integers.

    x ─ dequantize ─ gelu ─ quantize ─ y   ──>   x ─ lookup [256 bytes] ─ y

Whatever the steps are, their result is a function of one byte. The table is computed by the steps themselves.

Arithmetic on quantised tensors as one primitive on integers: sums, differences, products, another scale; and
results of integer products, rounded where the model rounds them, with as few steps in float32 as possible.

    a ─ dequantize ┐                                a  (scale) ┐
    b ─ dequantize ┴ add ─ relu ─ quantize   ──>    b  (scale) ┴ add ─ linear ─ relu ─ linear

oneDNN's binary primitive takes the scales of its operands. The zero points, and the scale of the result, are numbers
in linear functions behind it.

Another scale and zero point for the same integers is a linear function of them. Where a product makes an operand for
nobody else, the sum or the other scale is fused into it, with the rounding between the two:

    product ─ linear ─ round ─ clip ─ linear ─ add b ─ relu ─ linear

    sum · source scale · weights scale + bias ─ relu ─ / scale + zero point ─ round
    sum · (source scale · weights scale / scale) + (bias / scale) ─ relu ─ round ─ + zero point

Both are one value in real numbers. In float32 the first one is off by more: a zero point of 128 leaves 16 bits behind
the point, and each step rounds. Where the value lies next to a half, the result is then another integer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import numpy as np

from ...vendor import Input, Node, PortableGraph, PostOp, Scaling, Tensor
from . import library
from .common import ARITHMETIC, PRODUCTS, option
from .quantize import is_quantize
from .quantized_links import RANGES, Links, kept


def round_before_points(links: Links, node: Node) -> None:
    """Round the results of ``node`` before their zero point is added, and merge the scales in front of that."""
    if links.dtype(node.outputs[0]) not in RANGES or node.kind not in (*PRODUCTS, "binary"):
        return
    if node.kind in PRODUCTS and 1 in node.scalings:
        _merge_scales(links, node)
    result = node.result_scaling
    if result is not None and result.zero_point is not None:
        known = links.numbers(result) if result.scale is not None else (1.0, 0)
        if known is not None:
            scaled = [PostOp("eltwise", "linear", 1 / known[0], 0.0)] if known[0] != 1 else []
            _take(links, node, [*node.post_ops, *scaled, PostOp("eltwise", "round")], Scaling(None, result.zero_point))
    elif result is None and (steps := _rounded(node.post_ops)) != node.post_ops:
        _take(links, node, steps, None)


def _rounded(post_ops: list[PostOp]) -> list[PostOp]:
    """The same steps, of which those to integers round before they add a zero point.

    Another scale of integers, behind their round and clip, is proved as it is (`change_scale`).
    """
    result: list[PostOp] = []
    for i, op in enumerate(post_ops):
        point, before = float(round(op.beta)), [step.alg for step in post_ops[max(i - 2, 0) : i]]
        is_stored = i + 1 == len(post_ops) or post_ops[i + 1].alg == "round"
        is_whole = op.alg == "linear" and point != 0 and abs(op.beta - point) < 1e-6
        if is_whole and is_stored and before != ["round", "clip"]:
            result += [replace(op, beta=0.0), PostOp("eltwise", "round"), PostOp("eltwise", "linear", 1.0, point)]
        else:
            result.append(op)
    return result


def _take(links: Links, node: Node, post_ops: list[PostOp], result: Scaling | None) -> None:
    """Give ``node`` these steps, unless oneDNN has no implementation with them."""
    other = Node(node.kind, node.inputs, node.outputs, node.attrs, post_ops, scalings=node.scalings)
    other.result_scaling = result
    if links.is_one_primitive(other):
        node.post_ops = post_ops
        links.nodes.rescale(node, node.scalings, result)


def _merge_scales(links: Links, node: Node) -> None:
    """Let the scale of the weights be that of the whole product, up to the first step that is no bound."""
    bounds = list(takewhile(lambda op: op.kind == "eltwise" and op.alg in ("relu", "clip"), node.post_ops))
    rest = node.post_ops[len(bounds) :]
    source, weights, result = node.scalings.get(0, Scaling()), node.scalings[1], node.result_scaling
    own = None if source.scale is None else links.scale(source)
    bias = _bias(node)
    if own is None or weights.scale not in links.constants or (bias is not None and bias not in links.constants):
        return
    if result is not None and not rest:
        known = links.numbers(result)
        unit = None if known is None else known[0]
        result = Scaling(None, result.zero_point) if result.zero_point is not None else None
    elif result is None and rest and rest[0].alg == "linear" and rest[0].alpha > 0 and not rest[0].beta:
        unit, rest = 1 / rest[0].alpha, rest[1:]
    else:
        return
    if unit is None:
        return
    steps = [PostOp(op.kind, op.alg, *_in_units(op, unit)) for op in bounds] + rest
    factors = [(weights.scale, float(own.reshape(-1)[0]) / unit), (bias, 1 / unit)]
    scale, bias = (None if t is None else _multiplied(links, t, factor, node) for t, factor in factors)
    inputs = node.inputs if bias is None else (*node.inputs[:2], bias, *node.inputs[3:])
    scalings = {1: Scaling(scale, weights.zero_point, weights.axis)}
    if source.zero_point is not None:
        scalings[0] = Scaling(None, source.zero_point)
    links.nodes.rewire(node, inputs)
    links.nodes.rescale(node, scalings, result)
    node.post_ops = steps


def _bias(node: Node) -> int | None:
    """The bias of a product: its third input, if that is no operand of a step behind it."""
    is_operand = any(op.input == 2 for op in node.post_ops)
    return None if len(node.inputs) < 3 or is_operand else node.inputs[2]


def _in_units(op: PostOp, unit: float) -> tuple[float, float]:
    return (op.alpha / unit, op.beta / unit) if op.alg == "clip" else (op.alpha, op.beta)


def _multiplied(links: Links, tensor: int, factor: float, before: Node) -> int:
    """A constant vector times a number, computed when the constants are loaded."""
    shape = links.graph.tensors[tensor].shape
    made = links.graph.insert(
        "eltwise", [tensor], shape, "float32", before=before, alg="linear", alpha=factor, beta=0.0
    )
    links.constants.update(made.outputs)
    return made.outputs[0]


_SIGNS = {"add": 1.0, "sub": -1.0, "mul": 0.0}
_BOUNDS = ("relu", "clip")


def read_sum(links: Links, node: Node) -> None:
    """Let an arithmetic operation on two dequantised tensors read and write the integers."""
    if node.kind != "binary" or node.attrs["alg"] not in _SIGNS or node.post_ops or node.is_scaled:
        return
    graph, shape = links.graph, links.graph.tensors[node.outputs[0]].shape
    sources = [links.dequantized(t) for t in node.inputs]
    steps, quantize = _bounds_behind(links, node)
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


def _bounds_behind(links: Links, node: Node) -> tuple[list[Node], Node | None]:
    """The bounds behind a node, and the conversion to integers behind these."""
    steps: list[Node] = []
    reader = links.only_reader(node.outputs[0])
    while reader is not None and reader.kind == "eltwise" and reader.attrs["alg"] in _BOUNDS:
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
        if links.is_one_primitive(joined):
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
