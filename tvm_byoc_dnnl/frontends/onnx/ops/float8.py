"""Real numbers of 8 and 4 bits: TVM converts them through integers, so a table says what each of the codes is."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from ..emit import Emit, np_dtype
from ..value import STORED, Value
from .computed import computed

__all__ = ["from_short_float", "is_short_float", "to_power", "to_short_float"]

#: dtype → codes that it has; the upper half of them are the numbers below 0
_CODES = {
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 256),
    "float4_e2m1fn": 16,
}


def is_short_float(dtype: str) -> bool:
    """Whether a dtype is one of ONNX's that have 8 bits, or 4."""
    return dtype in _CODES


def _numbers(dtype: str, count: int) -> np.ndarray:
    """The numbers of the first codes."""
    return np.arange(count, dtype="uint8").view(np_dtype(dtype)).astype("float32")


def from_short_float(e: Emit, x: Value) -> Value:
    """The numbers as float32."""
    table = _numbers(x.dtype, _CODES[x.dtype])

    def compute(data: Any, numbers: Any) -> Any:
        return te.compute(
            data.shape, lambda *i: numbers(tirx.reinterpret("uint8", data(*i)).astype("int64")), name="from_float8"
        )

    made: Value = computed(e, "from_float8", compute, x, e.const(table))
    return made


def to_short_float(e: Emit, x: Value, dtype: str, saturates: bool) -> Value:
    """Numbers in float32, rounded half to even; what is too large is the largest number, or an infinity or NaN."""
    sign = _CODES[dtype] // 2
    every = _numbers(dtype, sign)
    finite = every[np.isfinite(every)].astype("float64")
    last = len(finite) - 1
    beyond = 2 * finite[-1] - finite[-2]
    bounds = (np.append(finite[1:], beyond) + finite) / 2
    bounds = bounds.astype("float32")
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

    made: Value = computed(e, "to_power", compute, x)
    return made
