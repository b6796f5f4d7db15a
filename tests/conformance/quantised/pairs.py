"""Sequences of two and more quantised operators: every pair, as QDQ models and QLinear operators have them."""

from __future__ import annotations

from collections.abc import Callable

from .bounds import stored
from .operators import OPERATORS, as_rank
from .sequence import MS, Sequential, Wholes

__all__ = ["NAMES", "QLINEAR", "sequence"]

Step = Callable[[Sequential, Wholes], Wholes]
QLINEAR: dict[str, tuple[int, Step]] = {}


def between(name: str) -> Step:
    """Dequantise, compute, quantise; at times the real result, or the integers, are read elsewhere too."""

    def step(s: Sequential, x: Wholes) -> Wholes:
        source = s.real(x)
        result = OPERATORS[name][1](s, source)
        whole = s.stored(result, like=x)
        if s.rng.random() < 0.1:
            s.give(s.pick(whole, s.real(whole)))
        return whole

    return step


def qlinear(name: str, domain: str, rank: int = 0, **more: int) -> None:
    """The operator of real numbers of that name, by a node that takes and gives integers."""

    def step(s: Sequential, x: Wholes) -> Wholes:
        types, s.types = s.types, (x.bounds.dtype,)  # all operands of such a node have one dtype
        count = len(s.nodes)
        result = OPERATORS[name.removeprefix("QLinear")][1](s, s.real(x))
        (node,) = [n for n in s.nodes[count:] if n.op_type != "DequantizeLinear"]
        made = {n.output[0]: list(n.input) for n in s.nodes[count:] if n.op_type == "DequantizeLinear"}
        if any(len(made.get(source, ())) != 3 for source in node.input):
            raise NotImplementedError  # an operand that is real, or a bias
        operands = [part for source in node.input for part in made[source]]
        s.nodes[count:] = []
        scale, point, dtype = s.scale_for(result, like=x)
        scaling = s.scaled(scale, point)
        inputs = [*scaling, *operands] if name == "QLinearConcat" else [*operands, *scaling]
        s.types = types
        whole = Wholes(s.add(name, inputs, domain, **more), scaling, stored(result.bounds, scale, point, dtype))
        s.nodes[-1].attribute.extend(node.attribute)
        return whole

    QLINEAR[name] = rank, step


qlinear("QLinearSigmoid", MS)
qlinear("QLinearLeakyRelu", MS)
qlinear("QLinearAdd", MS)
qlinear("QLinearMul", MS)
qlinear("QLinearConcat", MS)
qlinear("QLinearSoftmax", MS, opset=13)
qlinear("QLinearAveragePool", MS, 4)
qlinear("QLinearGlobalAveragePool", MS, 4)
qlinear("QLinearConv", "", 4)
qlinear("QLinearMatMul", "")
NAMES = [*OPERATORS, *QLINEAR]


def _step(name: str) -> tuple[int, Step]:
    return (OPERATORS[name][0], between(name)) if name in OPERATORS else QLINEAR[name]


def sequence(
    names: list[str],
    seed: list[int],
    prefix: str = "",
    types: tuple[str, ...] = ("uint8", "int8"),
    powers: bool = False,
    moves: bool = True,
) -> Sequential:
    """Quantise an input or compute the first operator on real numbers, then the steps; the last may be dequantised.

    ``moves``: behind them integers are moved between two scales, at times.
    """
    s = Sequential(seed, prefix, types, powers)
    shape = (int(s.rng.integers(1, 3)), s.pick(1, 3, 8, 17, 32), int(s.rng.integers(1, 7)), int(s.rng.integers(2, 8)))
    first, *_ = names
    kind = s.pick("integers", "integers", "quantised", "real")
    if kind == "real" and first in OPERATORS:
        rank, operator = OPERATORS[first]
        x = s.stored(operator(s, as_rank(s, s.numbers(shape), rank)))
        names = names[1:]
    else:
        x = s.integers(shape) if kind == "integers" else s.stored(s.numbers(shape))
    for name in names:
        rank, step = _step(name)
        if x.bounds.axis is not None and (name in QLINEAR or rank not in (0, len(x.shape))):
            x = s.stored(s.real(x))
        x = as_rank(s, x, rank)
        s.kept.append(x)
        x = step(s, x)
    for _ in range(s.pick(0, 1, 1, 2)):  # again, in other scales, and at times moved in between
        between_two = s.real(x)
        if moves and s.rng.random() < 0.3:
            rank, operator = OPERATORS[s.pick("Concat", "Transpose", "Relu", "MaxPool")]
            between_two = operator(s, as_rank(s, between_two, rank))
        x = s.stored(between_two, like=x)
    s.give(s.real(x) if s.rng.random() < 0.3 else x)
    return s
