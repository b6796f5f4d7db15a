"""What a call of a model takes and returns, with as little Python as possible for usual arrays: dense, aligned tensors
on the CPU.

Behind a run of the model this code is no longer in the processor's caches, and each line costs several times what a
loop measures. So what can be known of an input is computed once, and an array that fits is not examined further. All
other values take the way with all checks and messages.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..core.arguments import as_copy, as_tensor, as_view
from ..core.tensor_info import TensorInfo, check_symbols

#: what NumPy raises at a dtype that DLPack knows and NumPy does not
_NOT_OF_NUMPY = (BufferError, RuntimeError, TypeError, ValueError)


class Views:
    """Read-only arrays of tensors, which are taken back as these tensors."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[Any, Any, tuple[Any, ...]]] = {}  # by the address of the array

    def array(self, tensor: tvm.runtime.Tensor) -> np.ndarray:
        """The same memory as an array."""
        try:
            array = np.from_dlpack(tensor)
            array.flags.writeable = False
        except _NOT_OF_NUMPY:
            return as_view(tensor)
        key, tensors = id(array), self._tensors
        alive = weakref.ref(array, lambda _: tensors.pop(key, None))
        tensors[key] = (alive, tensor, (array.shape, array.strides, array.dtype))
        return array

    def tensor(self, array: np.ndarray) -> tvm.runtime.Tensor | None:
        """The tensor that this array is all of."""
        found = self._tensors.get(id(array))
        if found is None or found[0]() is not array or found[2] != (array.shape, array.strides, array.dtype):
            return None
        return found[1]


class InputPlan:
    """How the values of one input become tensors.

    Parameters
    ----------
    info : TensorInfo
        The input.
    aligned : bool
        Whether the first byte must lie at a multiple of 64.
    views : Views, optional
        Where this input may come from, if compiled code knows of its strides.
    """

    def __init__(self, info: TensorInfo, aligned: bool, views: Views | None) -> None:
        self._info, self._aligned, self._views = info, aligned, views
        self._name, self._text = f"input {info.name!r}", info.type_text
        is_usual = info.shape is not None and re.fullmatch(r"u?int\d+|float(16|32|64)", info.dtype)
        self._dtype = np.dtype(info.dtype) if is_usual else np.dtype("V0")  # which no array has
        self._shape = info.shape if info.is_static else None
        self._rank = len(info.shape or ())
        self._axes = [axis for axis, size in enumerate(info.shape or ()) if isinstance(size, int)]
        self._sizes = [(info.shape or ())[axis] for axis in self._axes]

    def tensor(self, value: Any) -> tvm.runtime.Tensor:
        """``value`` as a tensor of the input's dtype and sizes; in place where it can be, or a copy.

        Raises
        ------
        InputError
            If it is no such tensor.
        """
        if type(value) is np.ndarray and value.dtype == self._dtype and self._fits(value.shape):
            if self._views is not None:
                seen = self._views.tensor(value)
                if seen is not None:
                    return seen
            else:
                flags = value.flags
                if flags.c_contiguous and value.size:
                    if self._aligned:
                        return as_copy(value)
                    if flags.writeable:
                        return tvm_ffi.from_dlpack(value)
        tensor = as_tensor(value, self._name, self._text, self._views is not None, self._aligned)
        self._info.check(str(tensor.dtype), tuple(int(d) for d in tensor.shape))
        return tensor

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self._shape is not None:
            return shape == self._shape
        if len(shape) != self._rank:
            return False
        return [shape[axis] for axis in self._axes] == self._sizes


class SymbolPlan:
    """Compares the sizes of the dims that have one name."""

    def __init__(self, inputs: Sequence[TensorInfo]) -> None:
        self._inputs = inputs
        first: dict[str, tuple[int, int]] = {}
        pairs: dict[int, list[tuple[int, int, int]]] = {}
        for index, info in enumerate(inputs):
            for axis, name in enumerate(info.shape or ()):
                if isinstance(name, str) and name.isidentifier():
                    of, at = first.setdefault(name, (index, axis))
                    if (of, at) != (index, axis):
                        pairs.setdefault(index, []).append((axis, of, at))
        self._pairs = list(pairs.items())

    def check(self, tensors: Sequence[tvm.runtime.Tensor]) -> None:
        """Refuse inputs that have different sizes where the model has one open dim.

        Raises
        ------
        InputError
            If two dims of one name differ.
        """
        if not self._pairs:
            return
        shapes = [tuple(tensor.shape) for tensor in tensors]
        for index, others in self._pairs:
            shape = shapes[index]
            for axis, of, at in others:
                if shape[axis] != shapes[of][at]:
                    check_symbols(self._inputs, shapes)


def as_array(result: Any) -> Any:
    """A copy of a tensor, or of each one in a list."""
    if not isinstance(result, tvm.runtime.Tensor):
        return [as_array(r) for r in result]
    try:
        return np.from_dlpack(result).copy()
    except _NOT_OF_NUMPY:
        return result.numpy()
