"""Unary and binary elementwise operators: tables, and the few that have rules of their own. And activations for which
Relax has no operator, recognised in the arithmetic that importers write for them.

NaN: ONNX Runtime hands it on everywhere, oneDNN in all but these (held by tests/patterns/dnnl/test_nan.py):

    relu, clip     0, the lower bound       maximum, minimum   the second operand
    hardsigmoid    1

No other algorithm says the same function at the same cost: a relu with a slope hands a NaN on, but with a slope of
0 it is a maximum, and tiny slopes compute in denormal numbers; an elu with alpha 0 takes an exponential per element.
Comparisons with NaN are false, as they should.

    hardsigmoid   clip(a·x + b, 0, 1)          clip(x + b, 0, c) / c          any factor may be a division
    hardswish     x · hardsigmoid(x)           x · clip(x + b, 0, c) / c
    elu           relu(x) − α·relu(1 − exp(x))     where(x > 0, x, α·(exp(x) − 1))
    mish          x · tanh(softplus(x))
    swish         x · sigmoid(β·x)
    logsigmoid    log(sigmoid(x))

Each of these becomes one eltwise primitive, or one post-op of the primitive that computes x. The constants are part of
the formula and are checked; with other constants the calls are taken one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, wildcard

from ...vendor import RELU_OF_NUMBERS, GraphBuilder, Reject, Value, register_lowering, require
from .common import FLOATS, Match, broadcast_shape, close, floats, number, pattern, require_float, require_shape, times
from .numerics import is_nan, keeps_nan, nan_where

#: Relax op → (oneDNN algorithm, alpha, beta)
_UNARY: dict[str, tuple[str, float, float]] = {
    "relax.abs": ("abs", 0, 0),
    "relax.log": ("log", 0, 0),
    "relax.negative": ("linear", -1, 0),
    "relax.nn.gelu": ("gelu_erf", 0, 0),
    "relax.nn.gelu_tanh": ("gelu_tanh", 0, 0),
    "relax.nn.relu": ("relu", 0, 0),
    RELU_OF_NUMBERS: ("relu_of_numbers", 0, 0),
    "relax.nn.silu": ("swish", 1, 0),
    "relax.round": ("round", 0, 0),
    "relax.sigmoid": ("logistic", 0, 0),
    "relax.sqrt": ("sqrt", 0, 0),
    "relax.square": ("square", 0, 0),
    "relax.tanh": ("tanh", 0, 0),
}

_BINARY = {
    "relax.add": "add",
    "relax.subtract": "sub",
    "relax.multiply": "mul",
    "relax.divide": "div",
    "relax.maximum": "max",
    "relax.minimum": "min",
}

#: Relax op → (oneDNN algorithm, whether the operands change places). oneDNN's gt and ge are true for NaN, its lt and
#: le are false.
_COMPARISONS = {
    "relax.greater": ("lt", True),
    "relax.greater_equal": ("le", True),
    "relax.less": ("lt", False),
    "relax.less_equal": ("le", False),
    "relax.equal": ("eq", False),
    "relax.not_equal": ("ne", False),
}

#: Relax op on zeros and ones → oneDNN algorithm
_LOGICAL = {
    "relax.logical_and": "min",
    "relax.logical_or": "max",
    "relax.logical_xor": "ne",
}

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
#: from here on log(1 + exp(x)) is x, in float32
_SOFTPLUS_IS_LINEAR = 15.0
#: the normal numbers of float32
_TINY, _HUGE = float(np.finfo("float32").tiny), float(np.finfo("float32").max)
#: types whose values a float32 holds, all of them or (int32) rounded as Relax rounds them
_TO_FLOAT = (*FLOATS, "bool", "int8", "uint8", "int32")

#: integer type → those that hold all of its values
_WIDER = {"bool": ("int8", "uint8", "int32"), "int8": ("int32",), "uint8": ("int32",)}


@register_lowering("dnnl", list(_UNARY))
def unary(g: GraphBuilder, call: Any) -> Value:
    """One eltwise primitive."""
    (src,) = floats(g, call, 1)
    return g.eltwise(src, *_UNARY[call.op.name])


@register_lowering("dnnl", "relax.exp")
def exp(g: GraphBuilder, call: Any) -> Value:
    """The exponential; oneDNN's is infinite for a NaN, and becomes NaN again when it is multiplied by ``x = x``."""
    (src,) = floats(g, call, 1)
    out = g.eltwise(src, "exp")
    return g.binary("mul", out, g.binary("eq", src, src, src.shape), src.shape) if keeps_nan(g.graph) else out


@register_lowering("dnnl", ["relax.floor", "relax.ceil"])
def floor(g: GraphBuilder, call: Any) -> Value:
    """The nearest whole number, less one where that is above; upside down for ceil, and exact for all numbers."""
    src = g.value(call.args[0])
    require(src.dtype == "float32", f"{call.op.name} of dtype {src.dtype}")
    is_ceil = call.op.name == "relax.ceil"
    data = g.eltwise(src, "linear", -1) if is_ceil else src
    nearest = g.eltwise(data, "round")
    result = g.binary("sub", nearest, g.binary("lt", data, nearest, src.shape), src.shape)
    return g.eltwise(result, "linear", -1) if is_ceil else result


@register_lowering("dnnl", "relax.rsqrt")
def rsqrt(g: GraphBuilder, call: Any) -> Value:
    """A root and a division: the power of -1/2 is 0 for -∞, and +∞ for -0."""
    (src,) = floats(g, call, 1)
    return g.eltwise(g.eltwise(src, "sqrt"), "pow", 1, -1)


@register_lowering("dnnl", "relax.nn.leakyrelu")
def leaky_relu(g: GraphBuilder, call: Any) -> Value:
    """Relu with a negative slope."""
    (src,) = floats(g, call, 1)
    return g.eltwise(src, "relu", float(call.attrs.alpha))


@register_lowering("dnnl", "relax.nn.softplus")
def softplus(g: GraphBuilder, call: Any) -> Value:
    """``log(1 + exp(beta·x)) / beta``; the threshold must be so large that the result is x there anyway."""
    (src,) = floats(g, call, 1)
    beta, threshold = float(call.attrs.beta), float(call.attrs.threshold)
    require(beta != 0, "softplus with beta 0 divides by it")
    require(
        threshold >= _SOFTPLUS_IS_LINEAR,
        f"softplus with threshold {threshold} has a step there; oneDNN's has none",
    )
    # Our kernel is of float32; oneDNN's of 16 bits is off by 8e-6, and may be below 0.
    return g.cast(g.eltwise(g.cast(src, "float32"), "soft_relu", beta), src.dtype)


@register_lowering("dnnl", "relax.nn.selu")
def selu(g: GraphBuilder, call: Any) -> Value:
    """Scaled elu; the two constants are those of Klambauer et al. 2017, eq. 14."""
    (src,) = floats(g, call, 1)
    return g.eltwise(g.eltwise(src, "elu", _SELU_ALPHA), "linear", _SELU_SCALE)


@register_lowering("dnnl", "relax.clip")
def clip(g: GraphBuilder, call: Any) -> Value:
    """Clip to constant bounds."""
    (src,) = floats(g, call, 1)
    low, high = (float(getattr(a, "value", a)) for a in call.args[1:3])
    require(low <= high, f"clip to the empty range [{low}, {high}]")
    return g.eltwise(src, "clip", low, high)


@register_lowering("dnnl", "relax.nn.prelu")
def prelu(g: GraphBuilder, call: Any) -> Value:
    """Relu with a slope per channel."""
    src, slope = floats(g, call)
    axis = int(call.attrs.axis) % src.ndim
    require(slope.ndim == 1, f"prelu with a slope of rank {slope.ndim}")
    shape = [slope.shape[0] if i == axis else 1 for i in range(src.ndim)]
    return g.emit("prelu", [src, g.reshape(slope, shape)], src.shape)


def _with_scalar(alg: str, scalar: float, scalar_first: bool, dtype: str) -> tuple[str, float, float] | None:
    """A binary operation with a constant number as an eltwise algorithm that gives the same, where there is one."""
    if not math.isfinite(scalar):
        return None
    if alg == "add":
        return ("linear", 1, scalar)
    if alg == "sub":
        return ("linear", -1, scalar) if scalar_first else ("linear", 1, -scalar)
    if alg == "mul":
        return ("linear", scalar, 0)
    if alg == "div":
        return _divided(scalar, scalar_first, dtype)
    # A clip turns a NaN into its lower bound, as TVM does, except for a minimum or where the number comes first.
    return ("clip", scalar, math.inf) if alg == "max" and not scalar_first else None


def _divided(scalar: float, scalar_first: bool, dtype: str) -> tuple[str, float, float] | None:
    """In float32, 49 times the inverse of 49 is less than 1: only that of a power of two is exact."""
    if scalar_first:
        return ("pow", scalar, -1)
    # The inverse must be a normal number: a tiny divisor's is infinite, a huge one's loses bits.
    is_normal = scalar != 0 and _TINY <= abs(1 / scalar) <= _HUGE
    is_exact = dtype != "float32" or abs(math.frexp(scalar)[0]) == 0.5
    return ("linear", 1 / scalar, 0) if is_normal and is_exact else None


@register_lowering("dnnl", list(_BINARY))
def binary(g: GraphBuilder, call: Any) -> Value:
    """Two operands that broadcast; a constant number is folded into an eltwise primitive."""
    alg = _BINARY[call.op.name]
    a, b = floats(g, call)
    shape = g.shape_of(call.ty)
    for value, scalar, first in ((a, b.scalar, False), (b, a.scalar, True)):
        if scalar is not None and value.shape == shape:
            eltwise = _with_scalar(alg, scalar, first, value.dtype)
            if eltwise is not None:
                return g.eltwise(value, *eltwise)
    return g.binary(alg, a, b, shape)


@register_lowering("dnnl", list(_COMPARISONS))
def comparison(g: GraphBuilder, call: Any) -> Value:
    """Two operands that broadcast, to a tensor of booleans."""
    alg, swap = _COMPARISONS[call.op.name]
    a, b = floats(g, call)
    return g.binary(alg, *((b, a) if swap else (a, b)), g.shape_of(call.ty), "bool")


@register_lowering("dnnl", list(_LOGICAL))
def logical(g: GraphBuilder, call: Any) -> Value:
    """Two operands of booleans that broadcast."""
    a, b = g.operands(call)
    _require_bool(call, a, b)
    return g.binary(_LOGICAL[call.op.name], a, b, g.shape_of(call.ty))


@register_lowering("dnnl", "relax.logical_not")
def logical_not(g: GraphBuilder, call: Any) -> Value:
    """``1 - x`` of booleans."""
    src = g.value(call.args[0])
    _require_bool(call, src)
    return g.eltwise(src, "linear", -1, 1)


def _require_bool(call: Any, *values: Value) -> None:
    for value in values:
        require(value.dtype == "bool", f"{call.op.name} of dtype {value.dtype}")


@register_lowering("dnnl", "relax.ewise_fma")
def multiply_add(g: GraphBuilder, call: Any) -> Value:
    """``a·b + c`` of equal shapes."""
    a, b, c = floats(g, call)
    return g.binary("add", g.binary("mul", a, b, a.shape), c, a.shape)


@register_lowering("dnnl", "relax.where")
def where(g: GraphBuilder, call: Any) -> Value:
    """Selection by bounds: with ±∞ for the condition, ``max(min(a, ±∞), min(b, ∓∞))`` is exact for every number.

    A value that is not selected never changes the result; a selected NaN needs another product.
    """
    condition, a, b = (g.value(arg) for arg in call.args)
    require_float(call.op.name, a, b)
    require(condition.dtype == "bool", f"where with a condition of dtype {condition.dtype}")
    shape = g.shape_of(call.ty)
    chosen = g.emit("reorder", [condition], condition.shape, a.dtype)
    sign = g.eltwise(chosen, "linear", 2, -1)
    picked, bad = [], []
    for value, is_chosen, bound in (
        (a, chosen, math.inf),
        (b, g.eltwise(chosen, "linear", -1, 1), -math.inf),
    ):
        common = broadcast_shape(value.shape, condition.shape)
        picked.append(g.binary("min_of_numbers", value, g.eltwise(sign, "linear", bound), common))
        if keeps_nan(g.graph) and (value.scalar is None or math.isnan(value.scalar)):
            bad.append(g.binary("mul", is_nan(g, value), is_chosen, common))
    first, second = picked if picked[0].shape == shape else picked[::-1]
    result = g.binary("max_of_numbers", first, second, shape)
    for some in bad:
        result = nan_where(g, result, some, shape)
    return result


@register_lowering("dnnl", "relax.power")
def power(g: GraphBuilder, call: Any) -> Value:
    """A constant exponent."""
    src, exponent = floats(g, call)
    require(exponent.scalar is not None, "power with an exponent that is not one constant number")
    require(src.shape == g.shape_of(call.ty), "power whose exponent broadcasts the base")
    assert exponent.scalar is not None
    require(math.isfinite(exponent.scalar), f"power with exponent {exponent.scalar}")
    return g.eltwise(src, "pow", 1, exponent.scalar)


@register_lowering("dnnl", "relax.astype")
def astype(g: GraphBuilder, call: Any) -> Value:
    """Conversion to a floating-point type, to a wider integer and to booleans.

    To a narrower integer oneDNN rounds and saturates, where Relax cuts off.
    """
    src, dtype = g.value(call.args[0]), str(call.ty.dtype)
    require(src.dtype in _TO_FLOAT, f"{call.op.name} from {src.dtype}; oneDNN converts from {', '.join(_TO_FLOAT)}")
    if dtype == "bool" and src.dtype != "bool":
        number = src if src.dtype in FLOATS else g.emit("reorder", [src], src.shape, "float32")
        return g.binary("ne", number, g.eltwise(number, "linear", 0, 0), src.shape, "bool")
    require(
        dtype in FLOATS or dtype == src.dtype or dtype in _WIDER.get(src.dtype, ()),
        f"{call.op.name} from {src.dtype} to {dtype}: oneDNN rounds to the nearest and saturates, Relax cuts off",
    )
    return g.cast(src, dtype)


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
