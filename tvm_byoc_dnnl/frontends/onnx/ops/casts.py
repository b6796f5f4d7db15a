"""Casts. Where C leaves the result open, it is what a machine with x86's instructions gives, as in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper
from tvm import te, tirx

from ....core.tensor_info import STORED
from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .computed import computed


def _target(node: Node) -> str:
    if node.op == "CastLike":
        return node.needed(1).dtype
    to = node.attr("to")
    kind = helper.TensorProto.DataType.Value(to) if isinstance(to, str) else to  # before version 6 it is a name
    return str(helper.tensor_dtype_to_np_dtype(kind))


@operator("Cast", "CastLike")
def _cast(e: Emit, node: Node, x: Value, *, round_mode: str = "up", saturate: int = 1) -> Any:
    dtype = _target(node)
    if x.dtype == dtype:
        return x
    if "object" in (x.dtype, dtype) or not x.dtype:
        raise node.refused(f"casts {x.dtype or 'what has no dtype'} to {dtype}; strings are no numbers here")
    if is_short_float(x.dtype):
        x = from_short_float(e, x)
    elif x.dtype in STORED:
        x = Value(e.tensor(x))
    if dtype.startswith("float8_e8"):
        return to_power(e, e.cast(x, "float32"), dtype, bool(saturate), round_mode)
    if is_short_float(dtype):
        return to_short_float(e, e.cast(x, "float32"), dtype, bool(saturate))
    if dtype in STORED:
        return _to_few_bits(e, x, dtype)
    return _plain(e, x, dtype)


def _plain(e: Emit, x: Value, dtype: str) -> Value:
    is_cut = "float" in x.dtype and "float" not in dtype and dtype != "bool"
    return _to_integer(e, x, dtype) if is_cut else e.cast(x, dtype)


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
    is_large = (x >= 2.0**63) & (x < 2.0**64)  # those that integers with a sign do not have
    large = e.cast(e.where(is_large, x, e.const(limit, x.dtype)), dtype)
    return e.where(is_large, large, whole)


def _to_few_bits(e: Emit, x: Value, dtype: str) -> Value:
    """The lowest bits of an integer, kept as an integer of 8 bits."""
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    whole = _plain(e, x, "int32")
    low = whole & e.const((1 << bits) - 1, "int32")
    if not dtype.startswith("u"):
        half = e.const(1 << (bits - 1), "int32")
        low = (low ^ half) - half
    return Value(e.tensor(e.cast(low, STORED[dtype])), dtype=dtype)


# ---- real numbers of 8 and 4 bits: TVM converts them through integers, so a table says what each code is ----


#: dtype → codes that it has; the upper half of them are the numbers below 0
_CODES = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 256),
    "float4_e2m1fn": 16,
}


def is_short_float(dtype: str) -> bool:
    return dtype in _CODES


def _numbers(dtype: str, count: int) -> np.ndarray:
    return np.arange(count, dtype="uint8").view(np.dtype(dtype)).astype("float32")


def from_short_float(e: Emit, x: Value) -> Value:
    """The numbers of a dtype of 16 bits or fewer as float32."""
    if not is_short_float(x.dtype):
        return e.cast(x, "float32")
    table = _numbers(x.dtype, _CODES[x.dtype])

    def compute(data: Any, numbers: Any) -> Any:
        return te.compute(
            data.shape, lambda *i: numbers(tirx.reinterpret("uint8", data(*i)).astype("int64")), name="from_float8"
        )

    return computed(e, "from_float8", compute, x, e.const(table))


def wide_float(e: Emit, x: Value) -> Value:
    """Real numbers of a dtype that TVM asks for NaN and infinities; the values are the same."""
    return x if x.dtype in ("float16", "float32", "float64") else from_short_float(e, x)


def to_short_float(e: Emit, x: Value, dtype: str, saturates: bool) -> Value:
    """Numbers in float32, rounded half to even; what is too large is the largest number, or an infinity or NaN."""
    sign = _CODES[dtype] // 2
    every = _numbers(dtype, sign)
    finite = every[np.isfinite(every)].astype("float64")
    last = len(finite) - 1
    beyond = 2 * finite[-1] - finite[-2]
    bounds = ((np.append(finite[1:], beyond) + finite) / 2).astype("float32")
    odd = np.arange(last + 1) % 2 == 1
    bounds[odd] = np.nextafter(bounds[odd], np.float32(0))  # halves go to the even one: these are passed
    is_unsigned_zero = dtype.endswith("uz")
    has_nan = sign == 128
    nan = sign if is_unsigned_zero or not has_nan else 0x7F
    over = last if saturates or not has_nan else 0x7C if dtype == "float8_e5m2" else nan
    code_dtype = STORED.get(dtype, dtype)

    def compute(data: Any, steps: Any) -> Any:
        step = te.reduce_axis((0, last + 1), "step")

        def count(*i: Any) -> Any:
            return te.sum(
                tirx.Select(tirx.abs(data(*i)) > steps(step), tirx.const(1, "int32"), tirx.const(0, "int32")), step
            )

        counts = te.compute(data.shape, count, name="counts")

        def element(*i: Any) -> Any:
            code, value = counts(*i), data(*i)
            code = tirx.Select(code > last, tirx.const(over, "int32"), code)
            below = tirx.reinterpret("uint32", value) >= tirx.const(1 << 31, "uint32")
            has_sign = tirx.all(below, tirx.any(code > 0, not is_unsigned_zero), code < sign)
            code = tirx.Select(has_sign, code + sign, code)
            code = tirx.Select(tirx.isnan(value), tirx.const(nan, "int32"), code)
            return tirx.reinterpret(code_dtype, code.astype("uint8"))

        return te.compute(data.shape, element, name="to_float8")

    made: Value = computed(e, "to_float8", compute, x, e.const(bounds))
    return made if code_dtype == dtype else Value(made.expr, dtype=dtype)


def to_power(e: Emit, x: Value, dtype: str, saturates: bool, mode: str) -> Value:
    """The magnitudes of numbers in float32 as powers of two: the next one ``up``, ``down`` or the ``nearest``."""

    def compute(data: Any) -> Any:
        def element(*i: Any) -> Any:
            bits = tirx.reinterpret("uint32", data(*i)) & tirx.const(0x7FFFFFFF, "uint32")
            power, rest = bits >> tirx.const(23, "uint32"), bits & tirx.const(0x7FFFFF, "uint32")
            half = tirx.const(1 << 22, "uint32")
            rises: Any = {"up": rest > 0, "down": tirx.const(False)}.get(mode)
            if rises is None:  # half to even, where 0 counts as even
                rises = tirx.any(rest > half, tirx.all(rest == half, power > 0))
            if saturates:
                rises = tirx.all(rises, power < 254)
            raised = power + rises.astype("uint32")
            code = tirx.Select(power == 255, power, raised)
            return tirx.reinterpret(dtype, code.astype("uint8"))

        return te.compute(data.shape, element, name="to_power")

    return computed(e, "to_power", compute, x)
