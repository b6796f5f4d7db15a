"""Numbers of 8 bits: TVM converts them through integers, so a table says what each of the 256 is."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from ..emit import Emit, np_dtype
from ..value import Value
from .computed import computed

__all__ = ["from_float8", "is_float8", "to_float8"]

_DTYPES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def is_float8(dtype: str) -> bool:
    """Whether a dtype is one of ONNX's that have a sign and 8 bits."""
    return dtype in _DTYPES


def from_float8(e: Emit, x: Value) -> Value:
    """The numbers as float32."""
    table = np.arange(256, dtype="uint8").view(np_dtype(x.dtype)).astype("float32")

    def compute(data: Any, numbers: Any) -> Any:
        return te.compute(
            data.shape, lambda *i: numbers(tirx.reinterpret("uint8", data(*i)).astype("int64")), name="from_float8"
        )

    made: Value = computed(e, "from_float8", compute, x, e.const(table))
    return made


def to_float8(e: Emit, x: Value, dtype: str, saturates: bool) -> Value:
    """Numbers in float32, rounded half to even; what is too large is the largest number, or an infinity or NaN."""
    every = np.arange(128, dtype="uint8").view(np_dtype(dtype)).astype("float32")
    finite = every[np.isfinite(every)].astype("float64")
    last = len(finite) - 1
    beyond = 2 * finite[-1] - finite[-2]
    bounds = (np.append(finite[1:], beyond) + finite) / 2
    bounds = bounds.astype("float32")
    odd = np.arange(last + 1) % 2 == 1
    bounds[odd] = np.nextafter(bounds[odd], np.float32(0))  # halves go to the even one: these are passed
    is_unsigned_zero = dtype.endswith("uz")
    nan = 0x80 if is_unsigned_zero else 0x7F
    over = last if saturates else 0x7C if dtype == "float8_e5m2" else nan

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
            has_sign = tirx.all(below, tirx.any(code > 0, not is_unsigned_zero), code < 128)
            code = tirx.Select(has_sign, code + 128, code)
            code = tirx.Select(tirx.isnan(value), tirx.const(nan, "int32"), code)
            return tirx.reinterpret(dtype, code.astype("uint8"))

        return te.compute(data.shape, element, name="to_float8")

    made: Value = computed(e, "to_float8", compute, x, e.const(bounds))
    return made
