"""The values of Relax constants as NumPy arrays, and constants made of arrays."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tvm
from tvm import relax

from .tvm_compat import constant_tensor, tensor_constant

_STRIP = 16  # columns of a transposed matrix that are copied at a time: of float32, a cache line of each row
_MANY = 1 << 19  # elements of a matrix that several threads transpose


def constant_numpy(expr: Any) -> np.ndarray:
    """The value of a Relax constant as a NumPy array; a read-only view where NumPy knows the dtype."""
    tensor = constant_tensor(expr)
    try:
        view = np.from_dlpack(tensor)
    except RuntimeError:  # bfloat16 and the float8 types
        return tensor.numpy()
    view.flags.writeable = False
    return view


def make_constant(array: np.ndarray, dtype: str | None = None) -> relax.Expr:
    """A Relax constant of ``array`` (C-contiguous; converted to ``dtype`` when given), by one copy."""
    array = np.asarray(array)
    name = dtype or str(array.dtype)
    tensor = tvm.runtime.empty(array.shape, name)
    try:
        target = np.from_dlpack(tensor)
    except RuntimeError:
        return relax.const(array, name)
    if array.ndim == 2 and array.strides[0] < array.strides[1]:  # in strips, whose rows stay in cache

        def copy(start: int) -> None:
            target[:, start : start + _STRIP] = array[:, start : start + _STRIP]

        with ThreadPoolExecutor(os.cpu_count() if array.size >= _MANY else 1) as pool:
            list(pool.map(copy, range(0, array.shape[1], _STRIP)))
    else:
        target[...] = array
    return tensor_constant(tensor)


def product_constant(a: np.ndarray, b: np.ndarray) -> relax.Expr:
    """A Relax constant of ``a * b``, in the shape and dtype of ``a``, without a copy; NumPy must know the dtype."""
    tensor = tvm.runtime.empty(a.shape, str(a.dtype))
    np.multiply(a, b, out=np.from_dlpack(tensor))
    return tensor_constant(tensor)


def scale_constant(constant: Any, factors: np.ndarray) -> None:
    target = np.from_dlpack(constant_tensor(constant))
    np.multiply(target, factors, out=target)
