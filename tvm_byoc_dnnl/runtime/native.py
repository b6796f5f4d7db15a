"""Models of which every call is in a region, without TVM: NumPy and the library's C interface are all that it takes.

`tvm_byoc_runtime.h` describes that interface. The package ``tvm-byoc-runtime`` contains this file as it is.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import (
    ArtifactError,
    ByocError,
    InputError,
    InputIndexError,
    NativeLibraryError,
    OutOfMemoryError,
    UnsupportedError,
)
from ..core.machine import few_spins
from ..core.tensor_info import TensorInfo, as_array, check_symbols
from .base import BaseRunner, Company, tensor_info

_ABI = 1
_ALIGNMENT = 64
_SMALL = 1024  # numbers, with which it does not pay to align them
_TENSOR = "PiiP"  # tvm_byoc_tensor: data, dtype, rank, shape
_SIZES_KEPT = 64
_at: Callable[[Any], c_char] = c_char.from_buffer
# In the order of tvm_byoc_dtype and of tvm_byoc_status.
_DTYPES = ("float32", "float16", "bfloat16", "int32", "int8", "uint8", "bool", "float64", "int64")
_INPUT, _INDEX, _UNSUPPORTED, _MEMORY = 1, 2, 4, 6
_ERRORS = (None, InputError, InputIndexError, ArtifactError, UnsupportedError, NativeLibraryError, OutOfMemoryError)
#: what a Runner of TVM has besides
_OF_TVM = ("module", "entry", "run_tvm", "tensors", "random_tensors")


class _Described(NamedTuple):
    """Tensors of known shapes as `tvm_byoc_tensor`, but for the addresses of their data."""

    pack: Callable[..., bytes]
    fields: list[Any]
    dims: list[Any]  # which are kept alive

    @classmethod
    def of(cls, codes: Sequence[int], shapes: Sequence[Sequence[int]]) -> _Described:
        dims = [(c_int64 * len(shape))(*shape) for shape in shapes]
        fields = [f for code, d in zip(codes, dims, strict=True) for f in (0, code, len(d), ctypes.addressof(d))]
        return cls(Struct(_TENSOR * len(dims)).pack, fields, dims)

    def without_data(self) -> bytes:
        return self.pack(*self.fields)

    def at(self, addresses: list[int]) -> bytes:
        fields = self.fields.copy()
        fields[::4] = addresses
        return self.pack(*fields)


class Library:
    """The functions of the native library; a `NativeLibraryError` if it cannot be loaded, or has another interface."""

    def __init__(self, path: Path) -> None:
        try:
            with few_spins():
                self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeLibraryError(f"cannot load {path}: {error}; install the package again") from error
        model, tensors = c_void_p, c_char_p
        for name, result, arguments in (
            ("abi", c_int32, ()),
            ("last_error", c_char_p, ()),
            ("load", c_int32, (c_char_p, c_int32, ctypes.POINTER(model))),
            ("free", None, (model,)),
            ("describe", c_char_p, (model,)),
            ("shapes", c_int32, (model, tensors, c_size_t, tensors, c_size_t)),
            ("prepare", c_int32, (model, tensors, c_size_t)),
            ("run", c_int32, (model, tensors, c_size_t, tensors, c_size_t)),
            ("company", c_int32, (model, ctypes.POINTER(c_int64), ctypes.POINTER(c_int64))),
            ("check", c_int32, (c_char_p, c_char_p, c_char_p)),
            ("engine", c_int32, (c_char_p, ctypes.POINTER(c_char_p))),
            ("trim", None, ()),
        ):
            function = getattr(self._library, f"tvm_byoc_{name}", None)
            if function is None:
                raise NativeLibraryError(f"{path} has no function tvm_byoc_{name}; install the package again")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        if (abi := self.abi()) != _ABI:
            raise NativeLibraryError(f"{path} has interface {abi}, expected {_ABI}; install the package again")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def error(self, status: int) -> ByocError | RuntimeError:
        """That of the last call of this thread."""
        text = self.last_error().decode(errors="replace")
        kind = _ERRORS[status] if status < len(_ERRORS) else None
        return kind(text) if kind is not None else RuntimeError(text)

    def checked(self, file: int, path: Path, key: str) -> None:
        """Refuse an open file that is damaged, or was not made from ``key``; the error names it ``path``."""
        if status := self.check(f"/proc/self/fd/{file}".encode(), os.fsencode(path), key.encode()):
            raise self.error(status)

    def engine_info(self, name: str) -> dict[str, Any]:
        text = c_char_p()
        if status := self.engine(name.encode(), ctypes.byref(text)):
            raise self.error(status)
        return json.loads(text.value or b"{}")


class _Model:
    """A loaded model, freed with the last call that uses it."""

    def __init__(self, library: Library, path: Path, threads: int | None) -> None:
        self.library = library
        self.pointer = c_void_p()
        if status := library.load(str(path).encode(), threads or 0, ctypes.byref(self.pointer)):
            raise library.error(status)
        self.signature = json.loads(library.describe(self.pointer))

    def __del__(self) -> None:
        self.library.free(self.pointer)


class _Sizes(NamedTuple):
    """What the shapes of the inputs decide: all of the call but addresses, and shape and dtype of each result."""

    inputs: _Described
    outputs: _Described
    results: list[tuple[tuple[int, ...], np.dtype]]


class NativeRunner(BaseRunner):
    """A compiled model as a Python callable that does not use TVM; any number of threads may call it.

    It is called as `Runner` is, and gives the same numbers bit for bit.

    Parameters
    ----------
    path : Path
        A library that ``export_library`` wrote.
    library : Library
        The native library.
    threads, workers : int, optional
        As for `Runner`.
    beside : callable, optional
        Gives a `Runner` of the same file, for what only that has.

    Raises
    ------
    InputError
        If ``threads`` or ``workers`` is not a positive number.
    FileNotFoundError, ArtifactError, NativeLibraryError, OutOfMemoryError
        If the file or a library cannot be loaded.
    UnsupportedError
        If the model needs TVM.
    """

    def __init__(
        self,
        path: Path,
        library: Library,
        *,
        threads: int | None = None,
        workers: int | None = None,
        beside: Callable[[], BaseRunner] | None = None,
    ) -> None:
        super().__init__(threads, workers)
        path.stat()
        try:
            self._model = model = _Model(library, path, self.threads)
        except UnsupportedError as error:
            raise UnsupportedError(f"{path}: {error}; load it with runtime='tvm'") from error
        self.inputs = tuple(map(tensor_info, model.signature["inputs"]))
        self.outputs = tuple(map(tensor_info, model.signature["outputs"]))
        self._library, self._beside = library, beside
        self._is_tuple = model.signature["is_tuple"]
        self._is_static = all(i.is_static for i in self.inputs)
        self._dtypes = [np.dtype(i.dtype) for i in self.inputs]
        self._input_codes, self._output_codes = (
            [_DTYPES.index(info.dtype) for info in side] for side in (self.inputs, self.outputs)
        )
        self._sizes: dict[tuple[tuple[int, ...], ...], _Sizes] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_TVM:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.with_tvm, name)

    @cached_property
    def with_tvm(self) -> Any:
        """A `Runner` of the same file, which is opened when this is first asked for."""
        self._open()
        if self._beside is None:
            raise UnsupportedError("this runner was loaded to run without TVM; load the model with runtime='tvm'")
        return self._beside()

    @property
    def company(self) -> Company:
        """How the calls of its regions fared beside other programs and other calls, since the model was loaded."""
        late, narrowed = c_int64(), c_int64()
        self._check(self._library.company(self._open().pointer, late, narrowed), ())
        return Company(late.value, narrowed.value)

    def _give_back(self) -> None:
        if "with_tvm" in vars(self):
            self.with_tvm.close()
        self._library.trim()

    def _make_plans(self, model: _Model, arrays: list[np.ndarray]) -> None:
        given = _Described.of(self._input_codes, [array.shape for array in arrays])
        self._check(self._library.prepare(model.pointer, given.without_data(), len(arrays)), arrays)

    def _call(self, model: _Model, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> np.ndarray | list[np.ndarray]:
        results = self._results(model, args, kwargs)
        return results if self._is_tuple else results[0]

    def _write(self, model: _Model, given: list[np.ndarray], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for array, result in zip(given, self._results(model, args, kwargs, given), strict=True):
            if array is not result:
                np.copyto(array, result)

    def _results(
        self,
        model: _Model,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        given: list[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """In the arrays that are given, where these are dense and no inputs."""
        values = self._in_order(args, kwargs)
        arrays = [self._array(*each) for each in zip(values, self.inputs, self._dtypes, strict=True)]
        shapes = tuple([array.shape for array in arrays])
        sizes = self._sizes.get(shapes) or self._sizes_of(model, shapes, arrays)
        if given is None:
            rooms = [_empty(*each) for each in sizes.results]
        else:
            self._check_given(given, sizes.results)
            rooms = [_place(array, [*arrays, *given[:i]]) for i, array in enumerate(given)]
        results = [array for array, _ in rooms]
        status = self._library.run(
            model.pointer,
            sizes.inputs.at([_address(array) for array in arrays]),
            len(arrays),
            sizes.outputs.at([address for _, address in rooms]),
            len(rooms),
        )
        self._check(status, arrays)
        return results

    @staticmethod
    def _array(value: Any, info: TensorInfo, dtype: np.dtype) -> np.ndarray:
        """A dense array of this dtype; `_sizes_of` looks at its shape."""
        if type(value) is np.ndarray and value.dtype == dtype and value.flags.c_contiguous:
            return value
        array = as_array(value, f"input {info.name!r}", info.type_text)
        info.check(array.dtype.name, array.shape)
        return array

    def _sizes_of(self, model: _Model, shapes: tuple[tuple[int, ...], ...], arrays: Sequence[np.ndarray]) -> _Sizes:
        for info, shape in zip(self.inputs, shapes):
            info.check(info.dtype, shape)
        check_symbols(self.inputs, shapes)
        inputs = _Described.of(self._input_codes, shapes)
        outputs = _Described.of(self._output_codes, [[0] * len(info.shape or ()) for info in self.outputs])
        room = ctypes.create_string_buffer(outputs.without_data())  # whose ranks are written
        status = self._library.shapes(model.pointer, inputs.without_data(), len(arrays), room, len(self.outputs))
        self._check(status, arrays)
        results = [(tuple(dims), np.dtype(info.dtype)) for dims, info in zip(outputs.dims, self.outputs)]
        if len(self._sizes) >= _SIZES_KEPT:
            self._sizes.clear()
        self._sizes[shapes] = sizes = _Sizes(inputs, outputs, results)
        return sizes

    def _check(self, status: int, arrays: Sequence[np.ndarray]) -> None:
        if not status:
            return
        error = self._library.error(status)
        if status == _INDEX:
            raise InputIndexError(f"{error}: {self._givers_of(arrays)}; give indices that are within the axis")
        if status == _INPUT or (status == _MEMORY and not self._is_static):
            raise InputError(
                f"the sizes of the inputs do not fit the model ({error}): {self._shapes_of(arrays)}; give sizes that "
                "it was exported for"
            )
        if status == _MEMORY:
            raise OutOfMemoryError(f"the model's tensors need more memory than there is ({error})")
        raise error


def _address(array: np.ndarray) -> int:
    try:
        return ctypes.addressof(_at(array))  # a fifth of the time of what follows
    except (TypeError, ValueError):  # an array that cannot be written, is empty, or of a dtype that buffers do not have
        address: int = array.__array_interface__["data"][0]
        return address


def _place(array: np.ndarray, others: Sequence[np.ndarray]) -> tuple[np.ndarray, int]:
    """Where to write a result for this array: there, if it is dense and apart from the others."""
    is_apart = array.flags.c_contiguous and not any(np.may_share_memory(array, other) for other in others)
    return (array, _address(array)) if is_apart else _empty(array.shape, array.dtype)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray, int]:
    """An array whose memory starts where vectors are loaded fastest, unless it is small, and that address."""
    if math.prod(shape) < _SMALL:
        array = np.empty(shape, dtype)
        return array, _address(array)
    room = np.empty(math.prod(shape) * dtype.itemsize + _ALIGNMENT, np.uint8)
    address = _address(room)
    start = -address % _ALIGNMENT
    return np.ndarray(shape, dtype, room, start), address + start
