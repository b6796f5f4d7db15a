"""Casts. Where C leaves the result open, it is what a machine with x86's instructions gives, as in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import STORED, Node, Value
from .float8 import from_short_float, is_short_float, to_power, to_short_float
from .shapes import few

_SIZES = ("int64", "int32", "float32", "float64")  # what open sizes may be cast to: they are whole numbers in all
_PLAIN = ("bool", "int32", "int64", "float32", "float64")  # that NumPy casts as ONNX does


def _target(node: Node) -> str:
    if node.op == "CastLike":
        return node.needed(1).dtype
    to = node.attr("to")
    kind = helper.TensorProto.DataType.Value(to) if isinstance(to, str) else to  # before version 6 it is a name
    return str(helper.tensor_dtype_to_np_dtype(kind))


def _cast_value(node: Node) -> Any:
    x, dtype = node.needed(0), _target(node)
    if x.dtype == dtype:
        return x
    if x.is_constant:
        known = few(x)
        return known[0].astype(dtype) if known is not None and {x.dtype, dtype} <= set(_PLAIN) else None
    if x.known is None or dtype not in _SIZES:
        return None
    return Value(known=np.asarray(x.known), dtype=dtype)


@operator("Cast", "CastLike", value=_cast_value)
def _cast(e: Emit, node: Node, x: Value, *, round_mode: str = "up", saturate: int = 1) -> Any:
    dtype = _target(node)
    saturates = bool(saturate)
    if "object" in (x.dtype, dtype) or not x.dtype:
        raise node.refused(f"casts {x.dtype or 'what has no dtype'} to {dtype}; strings are no numbers here")
    if is_short_float(x.dtype):
        x = from_short_float(e, x)
    elif x.dtype in STORED:
        x = Value(e.tensor(x))
    if dtype.startswith("float8_e8"):
        return to_power(e, e.cast(x, "float32"), dtype, saturates, round_mode)
    if is_short_float(dtype):
        return to_short_float(e, e.cast(x, "float32"), dtype, saturates)
    if dtype in STORED:
        return _to_few_bits(e, x, dtype)
    return _plain(e, x, dtype)


def _plain(e: Emit, x: Value, dtype: str) -> Value:
    if "float" not in x.dtype:
        return e.cast(x, dtype)
    return e.cast(x, dtype) if "float" in dtype or dtype == "bool" else _to_integer(e, x, dtype)


def _to_integer(e: Emit, x: Value, dtype: str) -> Value:
    """Real numbers as integers: through signed ones of 32 or 64 bits, of which the lowest is for what they cannot say.

    Of these the bits that a narrower dtype does not have are dropped.
    """
    if x.dtype in ("float16", "bfloat16"):
        x = e.cast(x, "float32")
    bits = 64 if dtype in ("int64", "uint64", "uint32") else 32
    limit = float(2 ** (bits - 1))
    is_inside = abs(x) < limit
    inside = e.where(is_inside, x, e.const(-limit, x.dtype))
    whole = e.cast(e.cast(inside, f"int{bits}"), dtype)
    if dtype != "uint64":
        return whole
    is_large = e.logical_and(*(e.call(f, x, v) for f, v in _UPPER_HALF))
    large = e.cast(e.where(is_large, x, e.const(limit, x.dtype)), dtype)
    return e.where(is_large, large, whole)


#: the integers of 64 bits without a sign that those with a sign do not have
_UPPER_HALF = ((relax.op.greater_equal, 2.0**63), (relax.op.less, 2.0**64))


def _to_few_bits(e: Emit, x: Value, dtype: str) -> Value:
    """The lowest bits of an integer, kept as an integer of 8 bits."""
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    whole = _plain(e, x, "int32")
    low = whole & e.const((1 << bits) - 1, "int32")
    if not dtype.startswith("u"):
        half = e.const(1 << (bits - 1), "int32")
        low = (low ^ half) - half
    return Value(e.tensor(e.cast(low, STORED[dtype])), dtype=dtype)
