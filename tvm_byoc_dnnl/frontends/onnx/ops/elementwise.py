"""Operators that compute each element by itself: activations and the limits of a Clip among them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from ..dim import product
from ..emit import Emit
from ..table import definition, operator
from ..value import Node, Value
from .casts import wide_float
from .computed import written


def _aligned(e: Emit, node: Node) -> list[Value]:
    """The operands. Before version 7 the axes of the second began at an axis of the first."""
    operands = [node.needed(i) for i in range(len(node.inputs))]
    if node.opset >= 7:
        return operands
    axis, is_slope = node.attr("axis"), node.op == "PRelu"
    if len(operands) != 2 or not (is_slope or node.attr("broadcast", 0)) or (axis is None and not is_slope):
        return operands
    first, second = operands
    rank = len(first.sizes)
    behind = rank - (1 if is_slope else axis % max(rank, 1)) - len(second.sizes)
    return [first, e.reshape(second, [*second.sizes, *[1] * max(behind, 0)])]


def _same_dtype(e: Emit, node: Node) -> list[Value]:
    operands = _aligned(e, node)
    dtypes = {x.dtype for x in operands if x.dtype}
    if len(dtypes) > 1:
        raise node.wrong(f"has operands of {' and '.join(sorted(dtypes))}; expected one type")
    return e.broadcast(*operands)


def _binary(call: Callable[..., Any]) -> Callable[[Emit, Node], Any]:
    return lambda e, node: e.call(call, *_same_dtype(e, node))


# ---- arithmetic -------------------------------------------------------------------------------------------

_BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    **{name: f"logical_{name.lower()}" for name in ("And", "Or", "Xor")},
    **{f"Bitwise{name}": f"bitwise_{name.lower()}" for name in ("And", "Or", "Xor")},
}
for _name, _call in _BINARY.items():
    operator(_name)(_binary(getattr(relax.op, _call)))


@operator("Equal")
def _are_equal(e: Emit, node: Node) -> Any:
    """TVM compares bools as if they were real numbers, which LLVM refuses."""
    a, b = _same_dtype(e, node)
    return ~(a ^ b) if a.dtype == "bool" else e.equal(a, b)


def _is_integer(value: Value) -> bool:
    return value.dtype.startswith(("int", "uint"))


@operator("Mod", since=10)
def _modulo(e: Emit, node: Node, *, fmod: int = 0) -> Any:
    a, b = _same_dtype(e, node)
    if a.dtype == "bfloat16":  # for which TVM has no such function, nor a power
        return e.cast(e.onnx("Mod", *(e.cast(x, "float32") for x in (a, b)), fmod=fmod), "bfloat16")
    if fmod:
        return e.mod(a, b)
    if _is_integer(a):
        return a % b
    # A division would lose infinities: the remainder with the dividend's sign, moved to the divisor's.
    rest = e.mod(a, b)
    return e.where(((rest < 0) ^ (b < 0)) & ~e.equal(rest, 0), rest + b, rest)


operator("Where", since=9)(lambda e, condition, a, b: e.where(condition, a, b))


def _fold(call: Callable[..., Any]) -> Callable[[Emit, Node], Any]:
    return lambda e, node: functools.reduce(functools.partial(e.call, call), _same_dtype(e, node))


operator("Max")(_fold(relax.op.maximum))
operator("Min")(_fold(relax.op.minimum))
operator("Sum")(_fold(relax.op.add))


@operator("Mean")
def _mean(e: Emit, node: Node) -> Any:
    total = _fold(relax.op.add)(e, node)
    return total / len(node.inputs) if len(node.inputs) > 1 else total


# ---- functions of one number ------------------------------------------------------------------------------


def _unary(name: str) -> Callable[[Emit, Value], Any]:
    return lambda e, x: getattr(e, name)(x)


def _of_integers(name: str) -> Callable[[Emit, Value], Any]:
    """A function of real numbers, whose results are cut where it is of integers."""
    return lambda e, x: e.cast(getattr(e, name)(e.cast(x, "float64") if _is_integer(x) else x), x.dtype)


for _name in (
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Exp", "Floor", "Log"),
    *("Relu", "Round", "Sigmoid", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
):
    operator(_name)(_unary(_name.lower()))
operator("Erf")(_of_integers("erf"))
operator("BitwiseNot")(_unary("bitwise_not"))
operator("Abs")(_unary("abs"))
operator("Neg")(_unary("negative"))
operator("Not")(_unary("logical_not"))
operator("Reciprocal")(lambda e, x: 1 / x)


@operator("Sign", since=9)
def _sign(e: Emit, x: Value) -> Any:
    """Of a NaN, the NaN: TVM's is a number. TVM has no sign of integers that have none."""
    if x.dtype.startswith("uint"):
        return e.minimum(x, 1)
    return e.sign(x) if _is_integer(x) else e.where(e.isnan(wide_float(e, x)), x, e.sign(x))


operator("IsNaN", since=9)(lambda e, x: e.isnan(wide_float(e, x)))


@operator("IsInf", since=10)
def _is_inf(e: Emit, x: Value, *, detect_positive: int = 1, detect_negative: int = 1) -> Any:
    x = wide_float(e, x)
    found = e.isinf(x)
    if detect_positive and detect_negative:
        return found
    if not detect_positive and not detect_negative:
        return x < x
    return found & (x > 0 if detect_positive else x < 0)


@operator("Pow")
def _power(e: Emit, node: Node) -> Any:
    """ONNX lets the exponent be of another type, and PyTorch exports ``x ** 2`` so."""
    base, exponent = _aligned(e, node)
    base, exponent = e.broadcast(base, exponent)
    if _is_integer(base) and _is_integer(exponent):
        wide = base.dtype if base.dtype == exponent.dtype else "int64"
        return e.cast(integer_power(e, e.cast(base, wide), e.cast(exponent, wide)), base.dtype)
    if _is_integer(base):
        return e.cast(e.power(e.cast(base, exponent.dtype), exponent), base.dtype)
    wide = "float32" if base.dtype == "bfloat16" else base.dtype
    return e.cast(e.power(e.cast(base, wide), e.cast(exponent, wide)), base.dtype)


@operator("PRelu")
def _prelu(e: Emit, node: Node) -> Any:
    x, slope = e.broadcast(*_aligned(e, node))
    rank = len(x.sizes)
    wide = [axis for axis, d in enumerate(slope.sizes) if d != 1]
    if not rank or x.dtype not in ("float16", "float32", "float64") or len(wide) > 1 or len(slope.sizes) > rank:
        return e.where(x < 0, x * slope, x)
    if not wide:
        return e.prelu(x, e.reshape(slope, [1]), axis=rank - 1)
    axis = rank - len(slope.sizes) + wide[0]
    return e.prelu(x, e.reshape(slope, [slope.sizes[wide[0]]]), axis=axis)


# ---- integers: what machines leave open ---------------------------------------------------------------------


@operator("BitShift", since=11)
def _bit_shift(e: Emit, node: Node, data: Value, *, direction: Any = None) -> Any:
    """A shift by the width or more, or by less than 0, moves every bit out; machines shift by the remainder."""
    x, by = e.broadcast(data, node.needed(1))
    if direction not in ("LEFT", "RIGHT"):
        raise node.wrong(f"has the direction {direction}; expected LEFT or RIGHT")
    call, dtype = e.left_shift if direction == "LEFT" else e.right_shift, np.dtype(x.dtype)
    known, bits = by.known if by.is_constant else None, dtype.itemsize * 8
    if known is not None and ((known >= 0) & (known < bits)).all():
        return call(x, by)
    inside, emptied = by < bits, e.const(0, x.dtype)
    if dtype.kind == "i":
        inside = inside & (by >= 0)
        if direction == "RIGHT":
            emptied = e.where(x < 0, e.const(-1, x.dtype), 0)
    return e.where(inside, call(x, e.where(inside, by, 0)), emptied)


#: squarings that are calls of their own, which other operators may be joined with
_FEW_STEPS = 4


def _squared(e: Emit, base: Value, exponent: Value, steps: int) -> Value:
    """The powers by the lowest bits of the exponents, in one loop; unsigned, where an overflow is defined."""
    unsigned, count = f"uint{np.dtype(base.dtype).itemsize * 8}", product(base.sizes)

    def write(base: Any, exponent: Any, out: Any, square: Any, count: Any) -> None:
        with T.parallel(0, count) as i:
            out[i], square[i] = tirx.const(1, unsigned), base[i]
            with T.serial(0, steps) as bit:
                with T.If((exponent[i] >> tirx.Cast(unsigned, bit)) & tirx.const(1, unsigned) != 0), T.Then():
                    out[i] = out[i] * square[i]
                square[i] = square[i] * square[i]

    flat = [e.cast(e.reshape(x, [count]), unsigned) for x in (base, exponent)]
    made = written(e, "integer_power", write, flat, [([count], unsigned)] * 2, [count])[0]
    return e.reshape(e.cast(made, base.dtype), base.sizes)


def integer_power(e: Emit, base: Value, exponent: Value) -> Value:
    """Powers of integers by squaring, exact and with the overflow of integers.

    With an exponent below 0, 1 and -1 have their inverse, and every other number has 0.
    """
    dtype = np.dtype(base.dtype)
    known = exponent.known if exponent.is_constant else None
    sizes = (base + exponent).sizes
    base, exponent = e.expand(base, sizes), e.expand(exponent, sizes)
    is_signed, bits = dtype.kind == "i", dtype.itemsize * 8
    # The lowest bit of an exponent below 0 says whether the inverse of -1 is -1, as it does above.
    highest = max(1, int(known.max(initial=0))) if known is not None else (1 << (bits - is_signed)) - 1
    steps = highest.bit_length()
    result: Value | None = None
    if steps <= _FEW_STEPS:
        square = base
        for bit in range(steps):
            square = square * square if bit else base
            factor = e.where(e.equal(exponent & e.const(np.array(1 << bit, dtype)), 0), 1, square)
            result = factor if result is None else result * factor
    else:
        result = _squared(e, base, exponent, steps)
    assert result is not None
    if not is_signed or (known is not None and not (known < 0).any()):
        return result
    is_unit = e.equal(base, 1) | e.equal(base, -1)
    return e.where((exponent < 0) & ~is_unit, 0, result)


@operator("MatMulInteger16", domain="com.microsoft")
def _product(e: Emit, a: Value, b: Value) -> Any:
    wide = "uint32" if a.dtype == b.dtype == "uint16" else "int32"
    return e.matmul(e.cast(a, wide), e.cast(b, wide))


definition("Swish", since=24)


@operator("Clip")
def _clip(e: Emit, x: Value, low: Value | None = None, high: Value | None = None) -> Any:
    """NaN in the data stays; a limit that is NaN is none."""
    for bound, call, none in ((low, e.maximum, -math.inf), (high, e.minimum, math.inf)):
        if bound is None:
            continue
        limit = e.reshape(bound, []) if bound.dims != () else bound
        if not limit.dtype.startswith(("int", "uint")) and not _is_number(limit):
            limit = e.where(e.isnan(wide_float(e, limit)), none, limit)
        x = call(x, limit)
    return x


def _is_number(limit: Value) -> bool:
    return limit.is_constant and limit.known is not None and not np.isnan(limit.known.astype("float64")).any()


@operator("Gelu", since=20)
def _gelu(e: Emit, node: Node, x: Value, *, approximate: str = "none") -> Any:
    if approximate not in ("none", "tanh"):
        raise node.wrong(f"has approximate={approximate}; expected none or tanh")
    return e.gelu_tanh(x) if approximate == "tanh" else e.gelu(x)


def _wide(e: Emit, x: Value) -> Value:
    """As float32, if it has 16 bits."""
    return e.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _elu(e: Emit, x: Value, *, alpha: float = 1.0) -> Any:
    wide = _wide(e, x)
    rising = e.relu(wide)
    if x.dtype == "float64":  # which nothing fuses
        return e.where(x > 0, x, alpha * (e.exp(x) - 1))
    return e.cast(-alpha * e.relu(1 - e.exp(wide)) + rising, x.dtype)


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


@operator("Selu", since=6)
def _selu(e: Emit, x: Value, *, alpha: float = _SELU[0], gamma: float = _SELU[1]) -> Any:
    wide = _wide(e, x)
    return e.cast(gamma * _elu(e, wide, alpha=alpha), x.dtype)


operator("Selu")(lambda e, x, *, alpha=1.6732, gamma=1.0507: _selu(e, x, alpha=alpha, gamma=gamma))


def softplus(e: Emit, x: Value) -> Any:
    wide = _wide(e, x)
    return e.cast(e.maximum(wide, 0) + e.log(1 + e.exp(-abs(wide))), x.dtype)


def _celu(e: Emit, x: Value, *, alpha: float = 1.0) -> Any:
    wide = _wide(e, x)
    if alpha < 0:
        return e.cast(e.relu(wide) + e.minimum(alpha * (e.exp(wide / alpha) - 1), 0), x.dtype)
    return e.cast(alpha * _elu(e, wide / alpha), x.dtype)


def _shrink(e: Emit, x: Value, *, lambd: float = 0.5, bias: float = 0.0) -> Any:
    """Of integers, the result is computed with the fractions of the attributes, and cut."""
    wide = e.cast(x, "float64") if "int" in x.dtype else x
    low = e.where(wide < -lambd, wide + bias, e.const(0, wide.dtype))
    return e.cast(e.where(wide > lambd, wide - bias, low), x.dtype)


#: operator, its first version, and its formula
_FORMULAS: tuple[tuple[str, int, Callable[..., Any]], ...] = (
    ("Celu", 12, _celu),
    ("Elu", 1, _elu),
    ("HardSigmoid", 1, lambda e, x, *, alpha=0.2, beta=0.5: e.clip(alpha * x + beta, min=0, max=1)),
    ("HardSwish", 14, lambda e, x: x * (e.clip(x + 3, min=0, max=6) / 6)),
    ("LeakyRelu", 1, lambda e, x, *, alpha=0.01: e.leakyrelu(x, alpha=alpha)),
    ("Shrink", 9, _shrink),
    ("Softplus", 1, softplus),
    ("Softsign", 1, lambda e, x: x / (abs(x) + 1)),
    ("ThresholdedRelu", 1, lambda e, x, *, alpha=1.0: e.where(x > alpha, x, 0)),
)
for _name, _since, _formula in _FORMULAS:
    operator(_name, since=_since)(_formula)
