"""Computes of operators in which TVM takes a NaN for a number: here, as in ONNX, it stays, and is equal to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from ..ir.tvm_compat import dtype_of


def relu(attrs: Any, data: te.Tensor) -> te.Tensor:
    if "float" not in dtype_of(data):
        return topi.nn.relu(data)
    zero = tirx.const(0, dtype_of(data))
    return te.compute(data.shape, lambda *at: tirx.Select(data[at] < zero, zero, data[at]), tag=topi.tag.ELEMWISE)


def _in_range(bound: Any, dtype: str) -> Any:
    """A bound that is a number, or the nearest that an integer of this dtype can be."""
    value = getattr(bound, "value", None)
    if value is None or dtype == "bool":
        return bound
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return bound if low <= value <= high else tirx.const(low if value < low else high, dtype)


def clip(attrs: Any, data: te.Tensor, least: Any, most: Any) -> te.Tensor:
    if "float" not in dtype_of(data):
        return topi.clip(data, *(_in_range(bound, dtype_of(data)) for bound in (least, most)))
    low, high = (tirx.Cast(dtype_of(data), bound) for bound in (least, most))

    def one(*at: Any) -> Any:
        lowered = tirx.Select(data[at] > high, high, data[at])
        return tirx.Select(lowered < low, low, lowered)

    return te.compute(data.shape, one, tag=topi.tag.ELEMWISE)


def _is_nan(tensor: te.Tensor, at: Sequence[Any]) -> Any:
    """TVM cannot ask it of bfloat16."""
    return tirx.isnan(tirx.Cast("float32", tensor[at]) if dtype_of(tensor) == "bfloat16" else tensor[at])


def of_two(binary: Callable[[Any, Any], Any], scalar: Callable[[Any, Any], Any]) -> Callable[..., te.Tensor]:
    def compute(attrs: Any, first: te.Tensor, second: te.Tensor) -> te.Tensor:
        usual = binary(first, second)
        if "float" not in dtype_of(usual):
            return usual

        def one(*at: Any) -> Any:
            here, there = (_broadcast_index(operand, at) for operand in (first, second))
            x, y = first[here], second[there]
            return tirx.Select(_is_nan(first, here), x, scalar(x, y))

        return te.compute(usual.shape, one, tag=topi.tag.BROADCAST)

    return compute


def _broadcast_index(operand: te.Tensor, at: Sequence[Any]) -> tuple[Any, ...]:
    own = at[len(at) - len(operand.shape) :]
    return tuple(
        0 if isinstance(size, tirx.IntImm) and size == 1 else i for size, i in zip(operand.shape, own, strict=True)
    )


def extreme(reduced: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    def compute(attrs: Any, data: te.Tensor) -> te.Tensor:
        how = None if attrs.axis is None else [int(axis) for axis in attrs.axis], bool(attrs.keepdims)
        found = reduced(data, *how)
        if "float" not in dtype_of(data):
            return found
        zero = tirx.const(0, dtype_of(data))
        lost = te.compute(data.shape, lambda *at: tirx.Select(_is_nan(data, at), data[at], zero), name="lost")
        lost = topi.sum(lost, *how)
        return te.compute(found.shape, lambda *at: tirx.Select(_is_nan(lost, at), lost[at], found[at]), name="kept")

    return compute


def not_equal(attrs: Any, first: te.Tensor, second: te.Tensor) -> te.Tensor:
    usual = topi.not_equal(first, second)
    if "float" not in dtype_of(first):
        return usual

    def one(*at: Any) -> Any:
        nans = [_is_nan(operand, _broadcast_index(operand, at)) for operand in (first, second)]
        return tirx.any(usual[at], *nans)

    return te.compute(usual.shape, one, tag=topi.tag.BROADCAST)
