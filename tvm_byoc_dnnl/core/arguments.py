"""An argument of a call as the tensor that compiled code takes: dense, aligned, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi

from .errors import InputError

#: the alignment that TVM's generated code assumes of a tensor's first byte
_ALIGNMENT = 64
_CPU = 1  # kDLCPU


def as_tensor(
    value: Any, name: str, expected: str, with_gaps: bool = False, aligned: bool = True
) -> tvm.runtime.Tensor:
    """``value`` as a tensor; in place where it can be, or a copy.

    Parameters
    ----------
    value : Any
        A NumPy array, what NumPy makes an array of, or anything with ``__dlpack__``.
    name, expected : str
        For messages: ``input 'x'``, ``float32[1, 3, 224, 224]``.
    with_gaps : bool
        Leave a tensor in place whose last axis is dense; compiled code must know of its strides.
    aligned : bool
        Whether the first byte must lie at a multiple of 64; otherwise dense NumPy arrays are left in place as well.

    Raises
    ------
    InputError
        If it is not a tensor of numbers in the memory of the CPU; the message says what it is.
    """
    in_place = with_gaps or (not aligned and isinstance(value, np.ndarray) and value.flags.c_contiguous and value.size)
    if in_place and isinstance(value, np.ndarray) and value.dtype.isnative and value.dtype.kind in "fiub":
        value = tvm_ffi.from_dlpack(np.asarray(_Writable(value)))
    if isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__dlpack__"):
        return as_copy(_array(value, name, expected))
    device = int(value.__dlpack_device__()[0])
    if device != _CPU:
        raise InputError(f"{name} is on a device of DLPack's type {device}, expected {expected} on the CPU")
    if not isinstance(value, tvm.runtime.Tensor):
        value = _from_dlpack(value, name, expected)
    dense = value.is_contiguous() or (with_gaps and value.shape[-1:] != () and value.strides[-1] == 1)
    if dense and (not aligned or value.data_ptr() % _ALIGNMENT == 0):
        return value
    return tvm.runtime.tensor(np.ascontiguousarray(np.asarray(_Memory(value))).view(str(value.dtype)))


def as_view(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """A tensor as a read-only array of the same memory."""
    return np.asarray(_Memory(tensor)).view(str(tensor.dtype))


def as_copy(array: np.ndarray) -> tvm.runtime.Tensor:
    """A copy of a dense array. NumPy makes it in half the time that TVM needs."""
    # NumPy gives an empty array the strides of one with gaps; of a float8, it says that it is one of its own floats
    if array.dtype.kind not in "fiu" or array.dtype.isbuiltin != 1 or not array.size:
        return tvm.runtime.tensor(array)
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % _ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return tvm_ffi.from_dlpack(copy)


def _array(value: Any, name: str, expected: str) -> np.ndarray:
    """A dense array of numbers."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise InputError(f"{name} is {_described(value)} that makes no array, expected {expected}") from None
    try:
        known = array.dtype.isnative and tvm.runtime.DataType(array.dtype.name)
    except (TypeError, ValueError):
        known = None
    if not known:
        what = f"an array of {array.dtype}" if isinstance(value, np.ndarray) else _described(value)
        cure = f"; convert it with .astype({array.dtype.newbyteorder('=').name!r})" if not array.dtype.isnative else ""
        raise InputError(f"{name} is {what}, expected {expected} as a NumPy array or anything with __dlpack__{cure}")
    return np.ascontiguousarray(array).reshape(array.shape)  # which makes one dim of none


def _from_dlpack(value: Any, name: str, expected: str) -> tvm.runtime.Tensor:
    try:
        return tvm_ffi.from_dlpack(value)
    except Exception as error:
        first = error
    try:
        return tvm.runtime.tensor(_array(np.from_dlpack(value), name, expected))  # read-only memory
    except Exception:
        said = (str(first).strip() or type(first).__name__).splitlines()[-1]
        raise InputError(f"{name} is {_described(value)} that cannot be read ({said}), expected {expected}") from first


def _described(value: Any) -> str:
    if value is None:
        return "None"
    text = repr(value)
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}" + (f" ({text})" if len(text) <= 40 else "")


class _Memory:
    """A tensor's bytes for NumPy, which does not know all of the types: numbers without a sign of the same width."""

    def __init__(self, tensor: tvm.runtime.Tensor) -> None:
        self._tensor = tensor  # kept alive
        width = np.dtype(str(tensor.dtype)).itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * width for stride in tensor.strides),
            "typestr": f"<u{width}",
        }


class _Writable:
    """An array's memory without its protection against writing: DLPack cannot say that memory is read-only."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array  # kept alive
        self.__array_interface__ = {
            **array.__array_interface__,
            "strides": array.strides,
            "data": (array.__array_interface__["data"][0], False),
        }
