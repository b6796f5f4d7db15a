"""Arithmetic on integers: shifts out of range and powers, which machines leave open, and products of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import Node, Value

__all__ = ["integer_power"]


@operator("BitShift", since=11)
def _bit_shift(e: Emit, node: Node, data: Value, *, direction: Any = None) -> Any:
    """A shift by the width or more, or by less than 0, moves every bit out; machines shift by the remainder."""
    x, by = e.broadcast(data, node.needed(1))
    if direction not in ("LEFT", "RIGHT"):
        raise node.wrong(f"has the direction {direction}; expected LEFT or RIGHT")
    call = relax.op.left_shift if direction == "LEFT" else relax.op.right_shift
    dtype = np.dtype(x.dtype)
    bits, zero = e.const(dtype.itemsize * 8, x.dtype), e.const(0, x.dtype)
    known = by.known if by.is_constant else None
    if known is not None and ((known >= 0) & (known < dtype.itemsize * 8)).all():
        return e.call(call, x, by)
    inside = by < bits
    emptied = zero
    if dtype.kind == "i":
        inside = inside & (by >= zero)
        if direction == "RIGHT":
            emptied = e.where(x < zero, e.const(-1, x.dtype), zero)
    shifted = e.call(call, x, e.where(inside, by, zero))
    return e.where(inside, shifted, emptied)


def integer_power(e: Emit, base: Value, exponent: Value) -> Value:
    """Powers of integers by squaring, exact and with the overflow of integers.

    With an exponent below 0, 1 and -1 have their inverse, and every other number has 0.
    """
    dtype = np.dtype(base.dtype)
    known = exponent.known if exponent.is_constant else None
    is_signed, bits = dtype.kind == "i", dtype.itemsize * 8
    # The lowest bit of an exponent below 0 says whether the inverse of -1 is -1, as it does above.
    highest = max(1, int(known.max(initial=0))) if known is not None else (1 << (bits - is_signed)) - 1
    one, zero, square = e.const(1, base.dtype), e.const(0, base.dtype), base
    result: Value | None = None
    for bit in range(highest.bit_length()):
        mask = e.const(np.array(1 << bit, dtype))
        skipped = e.equal(exponent & mask, zero)
        factor = e.where(skipped, one, square)
        result = factor if result is None else result * factor
        if bit + 1 < highest.bit_length():
            square = square * square
    assert result is not None
    if not is_signed or (known is not None and not (known < 0).any()):
        return result
    below = exponent < zero
    units = (e.equal(base, e.const(unit, base.dtype)) for unit in (1, -1))
    is_unit = e.logical_or(*units)
    vanishes = below & ~is_unit
    return e.where(vanishes, zero, result)


@operator("MatMulInteger16", domain="com.microsoft")
def _product(e: Emit, a: Value, b: Value) -> Any:
    wide = "uint32" if a.dtype == b.dtype == "uint16" else "int32"
    return e.matmul(e.cast(a, wide), e.cast(b, wide))
