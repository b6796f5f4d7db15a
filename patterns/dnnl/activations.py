"""Activations for which Relax has no operator, recognised in the arithmetic that importers write for them.

    hardsigmoid   clip(a·x + b, 0, 1)          clip(x + b, 0, c) / c          any factor may be a division
    hardswish     x · hardsigmoid(x)           x · clip(x + b, 0, c) / c
    elu           relu(x) − α·relu(1 − exp(x))     where(x > 0, x, α·(exp(x) − 1))
    mish          x · tanh(softplus(x))
    swish         x · sigmoid(β·x)
    logsigmoid    log(sigmoid(x))

Each becomes one eltwise primitive, or one post-op of the primitive that computes x. The constants are part of the
formula and are checked; with other constants the calls are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.relax.dpl import is_op, wildcard

from ...vendor import GraphBuilder, Reject, Value, require
from .common import Match, close, constant, number, pattern, require_float, require_shape, times

#: match → (oneDNN algorithm, alpha, beta)
Formula = Callable[[Match], tuple[str, float, float]]


def _register(name: str, root: Any, parts: dict[str, Any], formula: Formula) -> None:
    """A pattern that is one eltwise algorithm of its part ``x``; ``formula`` refuses wrong constants."""

    def lower(g: GraphBuilder, match: Match) -> Value:
        require_shape(match)
        eltwise = formula(match)
        src = g.value(match["x"])
        require_float(name, src)
        return g.eltwise(src, *eltwise)

    lower.__doc__ = formula.__doc__
    pattern(name, root, parts, lower)


# ---------------------------------------------------------------- hardsigmoid, hardswish
def _hard_gate() -> tuple[Any, dict[str, Any]]:
    """Pattern of ``clip(x·factor + shift, low, high)``, factor and shift optional, and its parts."""
    parts = {name: constant() for name in ("factor", "divisor", "shift", "only_factor", "only_divisor")}
    x, low, high = wildcard(), wildcard(), wildcard()
    scaled = times(x, parts["factor"], parts["divisor"])
    inner = is_op("relax.add")(scaled | x, parts["shift"]) | times(x, parts["only_factor"], parts["only_divisor"])
    return is_op("relax.clip")(inner, low, high), {"x": x, "low": low, "high": high, **parts}


def _hard_sigmoid(match: Match) -> tuple[float, float]:
    """Slope and offset of the hardsigmoid that the gate is, scaled by the number after it."""
    scale = number(match, "scale", 1.0) / number(match, "scale_divisor", 1.0)
    slope = number(match, "factor", 1.0) * number(match, "only_factor", 1.0)
    slope /= number(match, "divisor", 1.0) * number(match, "only_divisor", 1.0)
    low, high = number(match, "low") * scale, number(match, "high") * scale
    if not (low == 0 and close(high, 1, match["x"])):
        raise Reject(f"a gate between {low:g} and {high:g}; a hardsigmoid lies between 0 and 1")
    return slope * scale, number(match, "shift", 0.0) * scale


def _hardsigmoid(match: Match) -> tuple[str, float, float]:
    """``clip(a·x + b, 0, 1)``."""
    return ("hardsigmoid", *_hard_sigmoid(match))


def _hardswish(match: Match) -> tuple[str, float, float]:
    """``x · clip(a·x + b, 0, 1)``."""
    return ("hardswish", *_hard_sigmoid(match))


def _register_hard() -> None:
    def with_scale(gate: Any, parts: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        scales = {"scale": constant(), "scale_divisor": constant()}
        return times(gate, scales["scale"], scales["scale_divisor"]), {**parts, **scales}

    gate, parts = _hard_gate()
    scaled, scaled_parts = with_scale(gate, parts)
    _register("hardswish", is_op("relax.multiply")(parts["x"], gate | scaled), scaled_parts, _hardswish)
    gate, parts = _hard_gate()
    product, product_parts = with_scale(is_op("relax.multiply")(parts["x"], gate), parts)
    _register("hardswish_scaled_last", product, product_parts, _hardswish)
    gate, parts = _hard_gate()
    scaled, scaled_parts = with_scale(gate, parts)
    _register("hardsigmoid_scaled", scaled, scaled_parts, _hardsigmoid)
    gate, parts = _hard_gate()
    _register("hardsigmoid", gate, parts, _hardsigmoid)


# ---------------------------------------------------------------- the smooth ones
def _elu(match: Match) -> tuple[str, float, float]:
    """``relu(x) − α·relu(1 − exp(x))``, or ``α·(exp(x) − 1)`` where x is negative."""
    one, zero = number(match, "one"), number(match, "zero", 0.0)
    require(close(one, 1, match["x"]), f"exp(x) is compared with {one:g}; an elu has 1")
    require(zero == 0, f"the branches meet at {zero:g}; those of an elu at 0")
    alpha = -number(match, "minus_alpha") if "minus_alpha" in match else number(match, "alpha", 1.0)
    return ("elu", alpha, 0.0)


def _mish(match: Match) -> tuple[str, float, float]:
    """``x · tanh(softplus(x))``."""
    attrs = match["softplus"].attrs
    beta, threshold = float(attrs.beta), float(attrs.threshold)
    require(beta == 1, f"softplus with beta {beta:g}; a mish has 1")
    require(threshold >= 15, f"softplus with threshold {threshold:g} has a step there")
    return ("mish", 0.0, 0.0)


def _swish(match: Match) -> tuple[str, float, float]:
    """``x · sigmoid(β·x)``."""
    return ("swish", number(match, "factor", 1.0) / number(match, "divisor", 1.0), 0.0)


def _log_sigmoid(match: Match) -> tuple[str, float, float]:
    """``log(sigmoid(x))``, without the infinity that the sigmoid's underflow makes."""
    return ("soft_relu", -1.0, 0.0)


def _register_smooth() -> None:
    x, one, alpha = wildcard(), constant(), constant()
    relu, exp = is_op("relax.nn.relu"), is_op("relax.exp")
    below = is_op("relax.multiply")(relu(is_op("relax.subtract")(one, exp(x))), alpha)
    _register("elu", is_op("relax.add")(below, relu(x)), {"x": x, "one": one, "minus_alpha": alpha}, _elu)

    x, zero, one, alpha = wildcard(), constant(), constant(), constant()
    minus_one = is_op("relax.subtract")(exp(x), one)
    below = is_op("relax.multiply")(minus_one, alpha) | minus_one
    branches = is_op("relax.where")(is_op("relax.greater")(x, zero), x, below)
    _register("elu_where", branches, {"x": x, "zero": zero, "one": one, "alpha": alpha}, _elu)

    x = wildcard()
    softplus = is_op("relax.nn.softplus")(x)
    gate = is_op("relax.tanh")(softplus)
    _register("mish", is_op("relax.multiply")(x, gate), {"x": x, "softplus": softplus}, _mish)

    x, factor, divisor = wildcard(), constant(), constant()
    gate = is_op("relax.sigmoid")(times(x, factor, divisor))
    annotations = {"x": x, "factor": factor, "divisor": divisor}
    _register("swish", is_op("relax.multiply")(x, gate), annotations, _swish)

    x = wildcard()
    _register("logsigmoid", is_op("relax.log")(is_op("relax.sigmoid")(x)), {"x": x}, _log_sigmoid)


_register_hard()
_register_smooth()
