"""A group of calls between dequantizes and a quantize, read: the scales, and the bias as the integers that it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ..core.compilation import current
from ..core.errors import InputError, takes
from ..core.tvm_fast import ByIdentity
from ..ir.relax_utils import bindings_in, constant_numpy, is_op_call
from ..ir.tvm_compat import dtype_of, is_constant

DEQUANTIZE, QUANTIZE = "relax.dequantize", "relax.quantize"
CONVERSIONS = frozenset({DEQUANTIZE, QUANTIZE})
#: operators whose second operand is weights
_PRODUCTS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "relax.matmul")


class Matched(dict[str, Any]):
    """What a pattern's ``check`` gets: name of a part → expression.

    ``bindings`` are all variables of the match, and ``context`` is what TVM's own patterns get.
    """

    def __init__(self, parts: Mapping[str, Any], bindings: Mapping[Any, Any], context: Any = None) -> None:
        super().__init__(parts)
        self.bindings = bindings
        self.context = context


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor of integers and how they stand for real numbers: ``(integer - zero point) * scale``.

    Attributes
    ----------
    tensor : Expr
        The integers; a constant for weights.
    dtype : str
        Their dtype.
    scales, zero_points : ndarray or None
        One number, of shape (), or one for each place of ``axis``; None where they are no constants.
    axis : int or None
        The axis of ``tensor`` along which they differ, counted from 0.
    """

    tensor: Any
    dtype: str
    scales: np.ndarray | None
    zero_points: np.ndarray | None
    axis: int | None

    @property
    def is_symmetric(self) -> bool:
        """Whether all zero points are 0."""
        return self.zero_points is not None and not np.any(self.zero_points)

    def same_scale(self, other: QuantizedTensor) -> bool:
        """Whether integers of both stand for the same numbers."""
        pairs = [(self.scales, other.scales), (self.zero_points, other.zero_points)]
        known = all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs)
        return known and (self.dtype, self.axis) == (other.dtype, other.axis)


@dataclass(frozen=True)
class QuantizedGroup:
    """A call between conversions, as `quantized` reads it.

    Attributes
    ----------
    call : relax.Call
        The call in the middle: the convolution, product, sum …
    inputs : tuple of QuantizedTensor or None
        Its tensors in order, those of a tuple one by one; None for one that is not dequantized.
    output : QuantizedTensor or None
        What the group makes; None where it ends without a quantize.
    weights : QuantizedTensor or None
        The second operand of a convolution or product, where it is constant.
    is_transposed : bool
        Whether a product reads its weights transposed: they are stored as (outputs, inputs).
    real_bias : ndarray or None
        The constant that is added to the result.
    clip : tuple of float or None
        The bounds of a relu or clip behind it, or of the call itself if it is one; the second may be infinite.
    """

    call: Any
    inputs: tuple[QuantizedTensor | None, ...]
    output: QuantizedTensor | None
    weights: QuantizedTensor | None = None
    is_transposed: bool = False
    real_bias: np.ndarray | None = None
    clip: tuple[float, float] | None = None

    @property
    def op(self) -> str:
        """The operator in the middle."""
        return str(self.call.op.name)

    @property
    def sum_scales(self) -> np.ndarray | None:
        """What one step of the sum of products stands for, float64: the scale of the input times those of the weights.

        None where one of both is not known.
        """
        data = self.inputs[0] if self.inputs else None
        weights = self.weights or (self.inputs[1] if self.op in _PRODUCTS else None)
        if data is None or weights is None or data.scales is None or weights.scales is None:
            return None
        return data.scales.astype("float64") * weights.scales.astype("float64")

    @property
    def multipliers(self) -> np.ndarray | None:
        """`sum_scales` in steps of the output, float64: with them a sum of products becomes the output's integers."""
        if self.sum_scales is None or self.output is None or self.output.scales is None:
            return None
        return self.sum_scales / self.output.scales.astype("float64")

    @property
    def bias(self) -> np.ndarray | None:
        """The bias in steps of the sum of products, int32[channels]; None without one.

        QDQ models store a bias as such integers, and an importer folds them into real numbers.

        Raises
        ------
        OverflowError
            If the steps are not known, or are so small that the bias is no number of 32 bits.
        """
        if self.real_bias is None:
            return None
        if self.sum_scales is None:
            raise OverflowError("a bias whose scale is not known; the group has no constant scales")
        real = self.real_bias.astype("float64").reshape(-1)
        steps = np.rint(real / np.broadcast_to(self.sum_scales, (max(real.size, self.sum_scales.size),)))
        limits = np.iinfo("int32")
        if not np.all((steps >= limits.min) & (steps <= limits.max)):
            raise OverflowError(f"a bias of {real[np.argmax(np.abs(steps))]:g} is no number of 32 bits of such steps")
        return steps.astype("int32")

    @property
    def limits(self) -> tuple[int, int] | None:
        """The least and the greatest integer of the output, with the bounds of `clip`; None without an output."""
        if self.output is None or self.output.scales is None or self.output.zero_points is None:
            return None
        info = np.iinfo(self.output.dtype)
        if self.clip is None or self.output.axis is not None:
            return int(info.min), int(info.max)
        scale, zero = float(self.output.scales), int(self.output.zero_points)
        low, high = (np.clip(np.rint(np.float64(b) / scale) + zero, info.min, info.max) for b in self.clip)
        return int(low), int(high)


@takes(call=(relax.Function, relax.Call, relax.Var, Matched))
def quantized(call: Any, within: Any = None) -> QuantizedGroup | QuantizedTensor:
    """Read a quantised group, or one conversion.

    Parameters
    ----------
    call : relax.Call, relax.Function or mapping
        The last call of the group, a composite function, a call of one, or the match that a pattern's ``check`` gets.
        A single ``dequantize`` gives a `QuantizedTensor`.
    within : relax.Function or mapping, optional
        Where the variables that the call reads are bound: the function, or variable → value. Not needed for a match or
        a function, and inside of ``check``, ``fits`` and a codegen, which know what they look at.

    Returns
    -------
    QuantizedGroup or QuantizedTensor

    Raises
    ------
    InputError
        If there is nothing quantised in it.
    """
    values = _values([*current().around, within, call.bindings if isinstance(call, Matched) else call])
    root = call["root"] if isinstance(call, Mapping) else call
    if isinstance(root, relax.Function):
        body = root.body
        root = body.body if isinstance(body, relax.SeqExpr) else body
    if isinstance(root, relax.Call) and isinstance(values.get(root.op), relax.Function):
        values.update(zip(values[root.op].params, root.args))  # of this call, where others call the same function
    root = _value(root, values)
    if _is(root, DEQUANTIZE):
        return conversion(root, values)
    group = group_at(root, values)
    if group.output is None and not any(group.inputs):
        raise InputError(
            f"{root.op.name} is not quantised as far as can be seen: none of its operands is a dequantize and no "
            "quantize follows; pass the match, the composite function, or within=the function that binds its operands"
        )
    return group


def _values(sources: Sequence[Any]) -> ByIdentity[Any]:
    """Variable → what it is bound to; a parameter of a local function → the argument of its call."""
    values: ByIdentity[Any] = ByIdentity()
    for source in sources:
        if isinstance(source, relax.Function):
            values.update((b.var, b.value) for b in bindings_in(source))
        elif isinstance(source, Mapping):
            values.update((var, value) for var, value in source.items() if isinstance(var, relax.Var))
    for value in list(values.values()):
        callee = values.get(value.op) if isinstance(value, relax.Call) and isinstance(value.op, relax.Var) else None
        if isinstance(callee, relax.Function):
            values.update(zip(callee.params, value.args))
    return values


def _is(expr: Any, op: str) -> bool:
    return is_op_call(expr) and expr.op.name == op


def _value(expr: Any, values: ByIdentity[Any]) -> Any:
    while True:
        if isinstance(expr, relax.Var) and expr in values:
            expr = values[expr]
        elif isinstance(expr, relax.Call) and isinstance(values.get(expr.op), relax.Function):
            body = values[expr.op].body
            expr = body.body if isinstance(body, relax.SeqExpr) else body
        else:
            return expr


def group_at(root: Any, values: ByIdentity[Any]) -> QuantizedGroup:
    """The group that ends in an expression; ``values`` says what variables are bound to."""
    output, inner = None, _value(root, values)
    if _is(inner, QUANTIZE):
        output = conversion(inner, values)
        inner = _value(inner.args[0], values)
    clip, bias = None, None
    while is_op_call(inner):
        name, operands = inner.op.name, [_value(arg, values) for arg in inner.args]
        bounds = _bounds(name, operands) if bias is None else None
        if bounds is not None:
            clip = bounds if clip is None else (max(clip[0], bounds[0]), min(clip[1], bounds[1]))
        if _is(operands[0], DEQUANTIZE):
            break  # the call in the middle, also a relu alone
        if bounds is not None:
            pass
        elif name == "relax.add" and bias is None and any(map(is_constant, operands)):
            constant = next(operand for operand in operands if is_constant(operand))
            other = next(operand for operand in operands if operand is not constant)
            if not is_op_call(other) or other.op.name not in _PRODUCTS:
                break
            bias, operands = np.asarray(constant_numpy(constant)), [other]
        else:
            break
        inner = operands[0]
    if not is_op_call(inner):
        raise InputError(f"a {type(inner).__name__} is between the conversions; expected a call of an operator")
    operands = [_value(arg, values) for arg in inner.args]
    flat = [f for o in operands for f in ([_value(f, values) for f in o.fields] if isinstance(o, relax.Tuple) else [o])]
    inputs = tuple(conversion(f, values) if _is(f, DEQUANTIZE) else None for f in flat if not _is_number(f))
    weights, is_transposed = None, False
    if inner.op.name in _PRODUCTS:
        moved = operands[1]
        while _is(moved, "relax.reshape") or _swaps_the_last_axes(moved):
            is_transposed = is_transposed != _swaps_the_last_axes(moved)
            moved = _value(moved.args[0], values)
        if _is(moved, DEQUANTIZE):
            found = conversion(moved, values)
            inputs = (inputs[0], found, *inputs[2:])
            weights = found if is_constant(found.tensor) else None
    return QuantizedGroup(inner, inputs, output, weights, is_transposed, bias, clip)


def _swaps_the_last_axes(expr: Any) -> bool:
    if not _is(expr, "relax.permute_dims"):
        return False
    rank = len(expr.args[0].ty.shape)
    axes = list(range(rank))[::-1] if expr.attrs.axes is None else [int(axis) % rank for axis in expr.attrs.axes]
    return axes == [*range(rank - 2), rank - 1, rank - 2]


def conversion(call: Any, values: ByIdentity[Any]) -> QuantizedTensor:
    """The integers that a dequantize reads, or that a quantize makes."""
    scales, zero_points = (_numbers(arg, values) for arg in call.args[1:3])
    axis = None if scales is None or scales.ndim == 0 else _axis(call)
    if _is(call, QUANTIZE):
        return QuantizedTensor(call, str(call.attrs.out_dtype), scales, zero_points, axis)
    tensor = _value(call.args[0], values)
    if not is_constant(tensor):
        tensor = call.args[0]
    return QuantizedTensor(tensor, dtype_of(call.args[0].ty), scales, zero_points, axis)


def _axis(call: Any) -> int:
    return int(call.attrs.axis) % max(len(call.args[0].ty.shape), 1)


def _numbers(expr: Any, values: ByIdentity[Any]) -> np.ndarray | None:
    """The numbers of a scale or zero point; one alone has shape ()."""
    expr = _value(expr, values)
    if not is_constant(expr):
        return None
    found = np.asarray(constant_numpy(expr))
    return found.reshape(()) if found.size == 1 else found


def _number(expr: Any) -> float:
    if is_constant(expr):
        return float(constant_numpy(expr))
    while hasattr(expr, "value"):  # of a number of TVM's
        expr = expr.value
    return float(expr)


def _is_number(expr: Any) -> bool:
    return not isinstance(getattr(expr, "ty", None), relax.TensorType)


def _bounds(name: str, operands: Sequence[Any]) -> tuple[float, float] | None:
    if name == "relax.nn.relu":
        return 0.0, np.inf
    return (_number(operands[1]), _number(operands[2])) if name == "relax.clip" else None
