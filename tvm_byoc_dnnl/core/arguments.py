"""An argument of a call as the tensor that compiled code takes: dense, aligned, on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi

from .tensor_info import check_device, dense, unreadable

#: the alignment that TVM's generated code assumes of a tensor's first byte
_ALIGNMENT = 64


def as_tensor(
    value: Any, name: str, expected: str, with_gaps: bool = False, aligned: bool = True
) -> tvm.runtime.Tensor:
    """``value`` (of NumPy, DLPack, or what NumPy makes an array of) as a tensor; in place where it can be, or a copy.

    ``name`` and ``expected`` are for messages: ``input 'x'``, ``float32[1, 3, 224, 224]``. ``with_gaps`` leaves a
    tensor in place whose last axis is dense; compiled code must know of its strides. Without ``aligned``, dense NumPy
    arrays that do not begin at a multiple of 64 are left in place as well. `InputError` says what is no tensor of
    numbers on the CPU.
    """
    in_place = with_gaps or (not aligned and isinstance(value, np.ndarray) and value.flags.c_contiguous and value.size)
    if in_place and isinstance(value, np.ndarray) and value.dtype.isnative and value.dtype.kind in "fiub":
        value = tvm_ffi.from_dlpack(np.asarray(_Writable(value)))
    if isinstance(value, (np.ndarray, np.generic)) or not hasattr(value, "__dlpack__"):
        return as_copy(dense(value, name, expected, _is_known))
    check_device(value, name, expected)
    if not isinstance(value, tvm.runtime.Tensor):
        value = _from_dlpack(value, name, expected)
    is_dense = value.is_contiguous() or (with_gaps and value.shape[-1:] != () and value.strides[-1] == 1)
    if is_dense and (not aligned or value.data_ptr() % _ALIGNMENT == 0):
        return value
    return tvm.runtime.tensor(np.ascontiguousarray(np.asarray(_Memory(value))).view(str(value.dtype)))


def as_view(tensor: tvm.runtime.Tensor) -> np.ndarray:
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


def _is_known(dtype: np.dtype) -> bool:
    try:
        return bool(tvm.runtime.DataType(dtype.name))
    except (TypeError, ValueError):
        return False


def _from_dlpack(value: Any, name: str, expected: str) -> tvm.runtime.Tensor:
    try:
        return tvm_ffi.from_dlpack(value)
    except Exception as error:
        first = error
    try:
        return tvm.runtime.tensor(dense(np.from_dlpack(value), name, expected, _is_known))  # read-only memory
    except Exception:
        raise unreadable(value, name, expected, first) from first


class _Memory:
    """A tensor's bytes for NumPy, which does not know all of the types: numbers without a sign of the same width."""

    def __init__(self, tensor: tvm.runtime.Tensor) -> None:
        self._tensor = tensor  # kept alive
        width = np.dtype(str(tensor.dtype)).itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
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
