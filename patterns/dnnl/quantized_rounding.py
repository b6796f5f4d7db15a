"""Results of integer products are rounded where the model rounds them, with as few steps in float32 as possible.

    sum · source scale · weights scale + bias ─ relu ─ / scale + zero point ─ round
    sum · (source scale · weights scale / scale) + (bias / scale) ─ relu ─ round ─ + zero point

Both are one value in real numbers. In float32 the first one is off by more: a zero point of 128 leaves 16 bits behind
the point, and each step rounds. Where the value lies next to a half, the result is then another integer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from ...vendor import Node, PostOp, Scaling
from .native import fused
from .quantized_links import PRODUCTS, RANGES, Links


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

    Another scale of integers, behind their round and clip, is proved as it is (`quantized_sums.change_scale`).
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
    if links.graph.symbols or not fused(links.graph.isolate(other, links.constants))[1]:
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
