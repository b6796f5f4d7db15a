"""Products of bytes to which an integer is added, read as real numbers alone: computed in float32.

    astype(astype(product, int32) + astype(b, int32), float32)        b: a float32 that is a whole number
    product + b

A float32 that is a whole number is that integer, and the sum of two is rounded once, as the integer is when it becomes
a float32. Only a bias that an int32 cannot say is another number: here it stays what it is.
"""

from __future__ import annotations

from typing import Any

from ..core.tvm_fast import items
from .rewrite import Rules, Scope

_ROUNDED = ("relax.ceil", "relax.floor", "relax.round", "relax.trunc")
_SUMS = ("relax.add", "relax.subtract")
_VIEWS = ("relax.broadcast_to", "relax.expand_dims", "relax.permute_dims", "relax.reshape", "relax.squeeze")
_PRODUCTS = ("relax.matmul", *(f"relax.nn.conv{d}d" for d in (1, 2, 3)))


def _real(scope: Scope, whole: Any) -> Any:
    """An int32 as the float32 that it was converted from, or ``None``; at the leaves of sums and views."""
    array = scope.const(whole)
    if array is not None:
        real = array.astype("float32")
        return scope.constant(real) if (real.astype("float64") == array).all() else None
    call = scope.call(whole, "relax.astype", *_VIEWS)
    if call is None or scope.dtype(whole) != "int32":
        return None
    source, *others = items(call.args)
    if call.op.name == "relax.astype":
        source = _unguarded(scope, source)
        return source if _is_whole(scope, source) else None
    inner = _real(scope, source)
    return None if inner is None else scope.emit(scope.with_args(call, inner, *others))


def _unguarded(scope: Scope, source: Any) -> Any:
    """``source``, or x of ``where(|x| < 2³¹, x, -2³¹)``: what C leaves open is the lowest integer for importers."""
    where = scope.call(source, "relax.where")
    if where is None:
        return source
    condition, inside, outside = items(where.args)
    less = scope.call(condition, "relax.less")
    size = None if less is None else scope.call(less.args[0], "relax.abs")
    is_guard = size is not None and size.args[0].same_as(inside) and scope.scalar(outside) == -(2.0**31)
    return inside if is_guard and scope.scalar(less.args[1]) == 2.0**31 else source


def _is_whole(scope: Scope, real: Any) -> bool:
    if scope.dtype(real) != "float32":
        return False
    if scope.call(real, *_ROUNDED) is not None:
        return True
    product = scope.call(real, *_PRODUCTS)
    return product is not None and all(_is_unscaled(scope, operand) for operand in items(product.args))


def _is_unscaled(scope: Scope, operand: Any) -> bool:
    """Whether an operand is integers less their zero point."""
    while (view := scope.call(operand, *_VIEWS)) is not None:
        operand = view.args[0]
    dequantize = scope.call(operand, "relax.dequantize")
    scale = None if dequantize is None else scope.const(dequantize.args[1])
    return scale is not None and bool((scale == 1).all())


def _sum(scope: Scope, astype: Any) -> Any:
    whole = astype.args[0]
    if scope.dtype(astype) != "float32" or scope.dtype(whole) != "int32":
        return None
    call = scope.call(whole, *_SUMS)
    if call is None or not scope.only_inside([whole], astype):
        return None
    made = [scope.call(operand, "relax.astype") for operand in items(call.args)]
    if not any(each is not None and scope.call(each.args[0], *_PRODUCTS) is not None for each in made):
        return None
    operands = []
    for operand in items(call.args):
        operands.append(real := _real(scope, operand))
        if real is None:
            return None
    return scope.with_args(call, *operands)


RULES: Rules = {"relax.astype": [_sum]}
