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

from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, wildcard

from ...vendor import GraphBuilder, Reject, Value, require
from .common import Match, close, number, pattern, require_float, require_shape, times

#: match → (oneDNN algorithm, alpha, beta)
Formula = Callable[[Match], tuple[str, float, float]]


def _register(name: str, root: Any, parts: dict[str, Any], formula: Formula, example: Callable[[Any], Any]) -> None:
    """A pattern that is one eltwise algorithm of its part ``x``; ``formula`` refuses wrong constants."""

    def lower(g: GraphBuilder, match: Match) -> Value:
        require_shape(match)
        eltwise = formula(match)
        src = g.value(match["x"])
        require_float(name, src)
        return g.eltwise(src, *eltwise)

    lower.__doc__ = formula.__doc__
    pattern(name, root, parts, lower, example)


def _number(value: float) -> relax.Constant:
    return relax.const(value, "float32")


def _by(x: Any, factor: float) -> Any:
    return R.multiply(x, _number(factor))


# ---------------------------------------------------------------- hardsigmoid, hardswish
def _hard_gate() -> tuple[Any, dict[str, Any]]:
    """Pattern of ``clip(x·factor + shift, low, high)``, factor and shift optional, and its parts."""
    parts = {name: is_const() for name in ("factor", "divisor", "shift", "only_factor", "only_divisor")}
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
    gate, parts = _hard_gate()
    scales = {"scale": is_const(), "scale_divisor": is_const()}
    scaled, product = times(gate, *scales.values()), is_op("relax.multiply")(parts["x"], gate)
    swish = is_op("relax.multiply")(parts["x"], gate | scaled)
    with_scale = {**parts, **scales}

    def of_sixths(x: Any) -> Any:
        return R.clip(R.add(_by(x, 1 / 6), _number(0.5)), 0, 1)

    def to_six(x: Any) -> Any:
        return R.clip(R.add(x, _number(3)), 0, 6)

    _register("hardswish", swish, with_scale, _hardswish, lambda x: R.multiply(x, of_sixths(x)))
    last = times(product, *scales.values())
    _register("hardswish_scaled_last", last, with_scale, _hardswish, lambda x: _by(R.multiply(x, to_six(x)), 1 / 6))
    _register("hardsigmoid_scaled", scaled, with_scale, _hardsigmoid, lambda x: _by(to_six(x), 1 / 6))
    _register("hardsigmoid", gate, parts, _hardsigmoid, lambda x: R.clip(R.add(_by(x, 0.2), _number(0.5)), 0, 1))


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
    x, one, alpha = wildcard(), is_const(), is_const()
    relu, exp = is_op("relax.nn.relu"), is_op("relax.exp")
    below = is_op("relax.multiply")(relu(is_op("relax.subtract")(one, exp(x))), alpha)
    _register(
        *("elu", is_op("relax.add")(below, relu(x)), {"x": x, "one": one, "minus_alpha": alpha}, _elu),
        lambda x: R.add(_by(R.nn.relu(R.subtract(_number(1), R.exp(x))), -0.7), R.nn.relu(x)),
    )

    x, zero, one, alpha = wildcard(), is_const(), is_const(), is_const()
    minus_one = is_op("relax.subtract")(exp(x), one)
    below = is_op("relax.multiply")(minus_one, alpha) | minus_one
    branches = is_op("relax.where")(is_op("relax.greater")(x, zero), x, below)
    _register(
        *("elu_where", branches, {"x": x, "zero": zero, "one": one, "alpha": alpha}, _elu),
        lambda x: R.where(R.greater(x, _number(0)), x, _by(R.subtract(R.exp(x), _number(1)), 0.7)),
    )

    x = wildcard()
    softplus = is_op("relax.nn.softplus")(x)
    mish = is_op("relax.multiply")(x, is_op("relax.tanh")(softplus))
    parts = {"x": x, "softplus": softplus}
    _register("mish", mish, parts, _mish, lambda x: R.multiply(x, R.tanh(R.nn.softplus(x))))

    x, factor, divisor = wildcard(), is_const(), is_const()
    swish = is_op("relax.multiply")(x, is_op("relax.sigmoid")(times(x, factor, divisor)))
    parts = {"x": x, "factor": factor, "divisor": divisor}
    _register("swish", swish, parts, _swish, lambda x: R.multiply(x, R.sigmoid(_by(x, 1.7))))

    x = wildcard()
    log = is_op("relax.log")(is_op("relax.sigmoid")(x))
    _register("logsigmoid", log, {"x": x}, _log_sigmoid, lambda x: R.log(R.sigmoid(x)))


_register_hard()
_register_smooth()
