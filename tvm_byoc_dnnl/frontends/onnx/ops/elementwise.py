"""Operators that compute each element by itself."""

from __future__ import annotations

import functools
import math
import operator as python
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim, Undecided, at_least, differ, equal, max_of, min_of
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, numbers
from .integers import integer_power
from .shapes import MOST, few

#: elements of a vector of open sizes
_MOST = 64


def _known(
    function: Callable[..., Any], result: str = "", of_arrays: Callable[..., Any] | None = None
) -> Callable[[Node], Any]:
    """The results of a function of single numbers, where some of the operands are open sizes.

    ``of_arrays`` is NumPy's function, if it does as ONNX says. All others are left to ONNX's own reference where there
    is no open size: to import that takes longer than most imports.
    """

    def value(node: Node) -> Any:
        known = few(*node.inputs)
        if known is None:
            return None
        if all(array.dtype != object for array in known):
            plain = of_arrays is not None and len({a.dtype for a in known}) == 1 and known[0].dtype.kind in "bif"
            return _of_arrays(of_arrays, known) if plain else None
        operands = np.broadcast_arrays(*known)
        if operands[0].size > _MOST:
            return None
        made = [function(*each) for each in zip(*(o.reshape(-1).tolist() for o in operands), strict=True)]
        if result == "bool":
            return np.array(made, bool).reshape(operands[0].shape)
        return numbers(made, operands[0].shape)

    return value


def _of_arrays(function: Any, arrays: list[np.ndarray]) -> np.ndarray | None:
    try:
        sizes = np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        return None
    return np.asarray(function(*arrays)) if math.prod(sizes) <= MOST else None


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*operands: Any) -> Any:
        return function(*map(_number, operands))

    return compute


def _number(value: Any) -> Any:
    """A number as an integer, as far as it is one."""
    if isinstance(value, float):
        if not value.is_integer():
            raise TypeError(f"{value} is no size")
        return int(value)
    return int(value) if isinstance(value, bool) else value


def _div(a: Any, b: Any) -> Any:
    """ONNX rounds towards zero, as ``//`` does for what is not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if not (at_least(a, 0) and (isinstance(b, Dim) or b > 0)):
        raise Undecided
    return a // b


def _mod(a: Any, b: Any) -> Any:
    if not isinstance(b, Dim) and b <= 0 and isinstance(a, Dim):
        raise Undecided
    return a % b


def _equal(a: Any, b: Any) -> bool:
    if equal(a, b):
        return True
    if differ(a, b):
        return False
    raise Undecided


def _where(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _pow(a: Any, b: Any) -> Any:
    if isinstance(b, Dim) or b < 0:
        raise Undecided
    return functools.reduce(python.mul, [a] * b, 1)


def _aligned(e: Emit, node: Node) -> list[Value]:
    """The operands. Before version 7 the axes of the second began at an axis of the first."""
    operands = [node.needed(i) for i in range(len(node.inputs))]
    if node.opset >= 7:
        return operands
    axis, is_slope = node.attr("axis"), node.op == "PRelu"
    if len(operands) != 2 or not (is_slope or node.attr("broadcast", 0)) or (axis is None and not is_slope):
        return operands
    first, second = operands
    if first.rank is None or second.dims is None:
        raise node.refused("broadcasts along an axis of a tensor of unknown rank")
    behind = first.rank - (1 if is_slope else axis % max(first.rank, 1)) - len(second.sizes)
    return [first, e.reshape(second, [*second.sizes, *[1] * max(behind, 0)])]


def _same_dtype(e: Emit, node: Node) -> list[Value]:
    operands = _aligned(e, node)
    dtypes = {x.dtype for x in operands if x.dtype}
    if len(dtypes) > 1:
        raise node.wrong(f"has operands of {' and '.join(sorted(dtypes))}; expected one type")
    return e.broadcast(*operands)


def _binary(call: Callable[..., Any]) -> Callable[[Emit, Node], Any]:
    def convert(e: Emit, node: Node) -> Any:
        return e.call(call, *_same_dtype(e, node))

    return convert


def _unary(call: Callable[..., Any]) -> Callable[[Emit, Node], Any]:
    def convert(e: Emit, node: Node) -> Any:
        return e.call(call, node.needed(0))

    return convert


# ---- arithmetic -------------------------------------------------------------------------------------------

#: operator, Relax's call, Python's function of two numbers, NumPy's of two arrays, and the result's dtype
_BINARY: list[tuple[str, Any, Any, Any, str]] = [
    ("Add", relax.op.add, python.add, np.add, ""),
    ("Sub", relax.op.subtract, python.sub, np.subtract, ""),
    ("Mul", relax.op.multiply, python.mul, np.multiply, ""),
    ("Equal", relax.op.equal, _equal, np.equal, "bool"),
    ("Greater", relax.op.greater, python.gt, np.greater, "bool"),
    ("GreaterOrEqual", relax.op.greater_equal, python.ge, np.greater_equal, "bool"),
    ("Less", relax.op.less, python.lt, np.less, "bool"),
    ("LessOrEqual", relax.op.less_equal, python.le, np.less_equal, "bool"),
    ("And", relax.op.logical_and, python.and_, np.logical_and, "bool"),
    ("Or", relax.op.logical_or, python.or_, np.logical_or, "bool"),
    ("Xor", relax.op.logical_xor, python.xor, np.logical_xor, "bool"),
]
for _name, _call, _function, _arrays, _dtype in _BINARY:
    operator(_name, value=_known(_of_numbers(_function), _dtype, _arrays))(_binary(_call))

for _name, _call in (
    ("BitwiseAnd", relax.op.bitwise_and),
    ("BitwiseOr", relax.op.bitwise_or),
    ("BitwiseXor", relax.op.bitwise_xor),
):
    operator(_name, since=18)(_binary(_call))


def _is_integer(value: Value) -> bool:
    return value.dtype.startswith(("int", "uint"))


@operator("Div", value=_known(_of_numbers(_div)))
def _divide(e: Emit, node: Node) -> Any:
    a, b = _same_dtype(e, node)
    return a / b


@operator("Mod", since=10, value=_known(_of_numbers(_mod)))
def _modulo(e: Emit, node: Node, *, fmod: int = 0) -> Any:
    a, b = _same_dtype(e, node)
    if fmod:
        return e.mod(a, b)
    if _is_integer(a):
        return a % b
    # A division would lose infinities: the remainder with the dividend's sign, moved to the divisor's.
    rest, zero = e.mod(a, b), e.const(0, a.dtype)
    apart = (rest < zero) ^ (b < zero)
    adjust = apart & ~e.equal(rest, zero)
    return e.where(adjust, rest + b, rest)


@operator("Where", since=9, value=_known(_where))
def _choose(e: Emit, node: Node) -> Any:
    return e.where(*e.broadcast(*(node.needed(i) for i in range(3))))


def _fold(call: Callable[..., Any]) -> Callable[[Emit, Node], Any]:
    def convert(e: Emit, node: Node) -> Any:
        return functools.reduce(lambda a, b: e.call(call, a, b), _same_dtype(e, node))

    return convert


operator("Max", value=_known(_of_numbers(max_of)))(_fold(relax.op.maximum))
operator("Min", value=_known(_of_numbers(min_of)))(_fold(relax.op.minimum))
operator("Sum", value=_known(_of_numbers(lambda *values: sum(values))))(_fold(relax.op.add))


@operator("Mean")
def _mean(e: Emit, node: Node) -> Any:
    total = _fold(relax.op.add)(e, node)
    return total / len(node.inputs) if len(node.inputs) > 1 else total


# ---- functions of one number ------------------------------------------------------------------------------

for _name, _call in (
    ("Acos", relax.op.acos),
    ("Acosh", relax.op.acosh),
    ("Asin", relax.op.asin),
    ("Asinh", relax.op.asinh),
    ("Atan", relax.op.atan),
    ("Atanh", relax.op.atanh),
    ("BitwiseNot", relax.op.bitwise_not),
    ("Ceil", relax.op.ceil),
    ("Cos", relax.op.cos),
    ("Cosh", relax.op.cosh),
    ("Erf", relax.op.erf),
    ("Exp", relax.op.exp),
    ("Floor", relax.op.floor),
    ("IsNaN", relax.op.isnan),
    ("Log", relax.op.log),
    ("Relu", relax.op.nn.relu),
    ("Round", relax.op.round),
    ("Sigmoid", relax.op.sigmoid),
    ("Sin", relax.op.sin),
    ("Sinh", relax.op.sinh),
    ("Sqrt", relax.op.sqrt),
    ("Tan", relax.op.tan),
    ("Tanh", relax.op.tanh),
):
    operator(_name)(_unary(_call))

operator("Abs", value=_known(lambda a: a if at_least(a, 0) else -a if at_least(-a, 0) else abs(a)))(
    _unary(relax.op.abs)
)
operator("Neg", value=_known(python.neg))(_unary(relax.op.negative))
operator("Not", value=_known(python.not_, "bool"))(_unary(relax.op.logical_not))


@operator("Reciprocal")
def _reciprocal(e: Emit, x: Value) -> Any:
    return 1 / x


@operator("Sign", since=9)
def _sign(e: Emit, x: Value) -> Any:
    """Of a NaN, the NaN: TVM's is a number."""
    sign = e.sign(x)
    if _is_integer(x):
        return sign
    return e.where(e.isnan(x), x, sign)


@operator("IsInf", since=10)
def _is_inf(e: Emit, x: Value, *, detect_positive: int = 1, detect_negative: int = 1) -> Any:
    found = e.isinf(x)
    if detect_positive and detect_negative:
        return found
    if not detect_positive and not detect_negative:
        return x < x
    return found & e.call(relax.op.greater if detect_positive else relax.op.less, x, e.const(0, x.dtype))


@operator("Pow", value=_known(_of_numbers(_pow)))
def _power(e: Emit, node: Node) -> Any:
    """ONNX lets the exponent be of another type, and PyTorch exports ``x ** 2`` so."""
    base, exponent = _aligned(e, node)
    base, exponent = e.broadcast(base, exponent)
    if _is_integer(base) and _is_integer(exponent):
        wide = base.dtype if base.dtype == exponent.dtype else "int64"
        return e.cast(integer_power(e, e.cast(base, wide), e.cast(exponent, wide)), base.dtype)
    if _is_integer(base):
        return e.cast(e.power(e.cast(base, exponent.dtype), exponent), base.dtype)
    return e.power(base, e.cast(exponent, base.dtype))


@operator("PRelu")
def _prelu(e: Emit, node: Node) -> Any:
    x, slope = e.broadcast(*_aligned(e, node))
    if x.rank is None or slope.dims is None:
        raise node.refused("reads a tensor of unknown rank")
    wide = [axis for axis, d in enumerate(slope.sizes) if d != 1]
    if x.rank == 0 or _is_integer(x) or len(wide) > 1 or len(slope.sizes) > x.rank:
        below = x < 0
        return e.where(below, x * slope, x)
    if not wide:
        return e.prelu(x, e.reshape(slope, [1]), axis=x.rank - 1)
    axis = x.rank - len(slope.sizes) + wide[0]
    return e.prelu(x, e.reshape(slope, [slope.sizes[wide[0]]]), axis=axis)
