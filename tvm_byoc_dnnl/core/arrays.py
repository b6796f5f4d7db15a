"""An argument of a call as a dense NumPy array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import InputError

_CPU = 1  # kDLCPU
#: dtypes of fewer than 8 bits → what their numbers are kept in, one to a byte; TVM packs them in another order
STORED = {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8", "float4_e2m1fn": "uint8"}


def as_stored(array: np.ndarray) -> np.ndarray:
    """An array; numbers of fewer than 8 bits as they are kept: integers as those of 8 bits, others by their codes."""
    dtype = STORED.get(str(array.dtype))
    if dtype is None:
        return array
    return array.astype(dtype) if "int" in str(array.dtype) else array.view(dtype)


def as_array(value: Any, name: str, expected: str) -> np.ndarray:
    """``value`` as a dense array; in place where it can be, or a copy. The arguments are those of `as_tensor`."""
    if not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack__"):
        check_device(value, name, expected)
        try:
            value = np.from_dlpack(value)
        except Exception as error:
            raise unreadable(value, name, expected, error) from error
    return dense(value, name, expected, lambda dtype: dtype.kind in "fiub")


def unreadable(value: Any, name: str, expected: str, error: Exception) -> InputError:
    said = (str(error).strip() or type(error).__name__).splitlines()[-1]
    return InputError(f"{name} is {described(value)} that cannot be read ({said}), expected {expected}")


def check_device(value: Any, name: str, expected: str) -> None:
    """Raise `InputError` for what DLPack gives out of the memory of a device."""
    device = int(value.__dlpack_device__()[0])
    if device != _CPU:
        raise InputError(f"{name} is on a device of DLPack's type {device}, expected {expected} on the CPU")


def dense(value: Any, name: str, expected: str, is_known: Callable[[np.dtype], bool]) -> np.ndarray:
    """A dense array of numbers, kept as `as_stored` says; `InputError` for what is none, or of an unknown dtype."""
    try:
        array = as_stored(np.asarray(value))
    except ValueError:  # lists of different lengths
        raise InputError(f"{name} is {described(value)} that makes no array, expected {expected}") from None
    if not (array.dtype.isnative and is_known(array.dtype)):
        what = f"an array of {array.dtype}" if isinstance(value, np.ndarray) else described(value)
        cure = f"; convert it with .astype({array.dtype.newbyteorder('=').name!r})" if not array.dtype.isnative else ""
        raise InputError(f"{name} is {what}, expected {expected} as a NumPy array or anything with __dlpack__{cure}")
    return np.ascontiguousarray(array).reshape(array.shape)  # which makes one dim of none


def described(value: Any) -> str:
    if value is None:
        return "None"
    text = repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" + (f" ({text})" if len(text) <= 40 else "")
