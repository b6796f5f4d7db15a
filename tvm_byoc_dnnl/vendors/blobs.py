"""Regions as bytes of a vendor's library: the module that contains them, and the code that opens them again."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import tvm
import tvm_ffi

from ..core import _native
from ..core.compilation import current
from ..core.errors import ArtifactError, InputError, VendorError, takes
from ..core.verdict import Reject, Works, as_reject, describe, with_options
from . import BlobRunner, defaults
from .devices import SUFFIXES, Held, resident, running
from .namespaces import checked_values, claim_namespace, namespace, options_of
from .registry import check_functions, check_options

#: names of layers and their seconds, or what returns them
LayerTimes = Sequence[tuple[str, float]] | Callable[[], Sequence[tuple[str, float]]]

_logger = logging.getLogger("tvm_byoc_dnnl")

_Bytes = np.ndarray
#: what results hold before the first call; the second is not the first at any byte
_PATTERNS = (0xB7, 0x48)


class Opening:
    """What the regions have in common that are opened together: a user's options, and the memory of each device.

    With ``is_described`` a region that this machine cannot open is an error of its call; ``layers`` gets the names of
    layers and their seconds while a model is profiled.
    """

    def __init__(
        self,
        options: Mapping[str, Mapping[str, Any]],
        *,
        is_described: bool = False,
        layers: list[tuple[str, float]] | None = None,
    ) -> None:
        self.options = options
        self.is_described = is_described
        self.layers = layers
        self._memories: WeakValueDictionary[Any, Held] = WeakValueDictionary()

    def memory(self, make: Callable[[Any], Any], options: Mapping[str, Any]) -> Held:
        """The memory that ``make(options)`` makes once; it is there for as long as a region holds it."""
        if (held := self._memories.get(make)) is None:
            held = self._memories[make] = Held(make(options))
        return held


_WITHOUT_A_RUNNER = Opening({})


def _opening() -> Opening:
    return current().opening or _WITHOUT_A_RUNNER


@takes(compiler=str, symbol=str, data=bytes, compatibility=str)
def blob_module(compiler: str, symbol: str, data: bytes, compatibility: str) -> tvm.runtime.Module:
    """A runtime module of one region that a library has compiled to bytes, for a vendor's codegen to return.

    ``export_library`` saves it, with a checksum. It runs in every Python process in which the vendor's package is
    installed, through `register_blob_runner`; a program without Python gets an error that says so.

    Parameters
    ----------
    compiler : str
        The namespace.
    symbol : str
        The region's ``global_symbol``.
    data : bytes
        The library's own form of the region, constants included.
    compatibility : str
        Words on what the library needs to load it: its version, the instruction set. They are checked before.

    Raises
    ------
    NativeLibraryError
        If the native library of this package cannot be loaded.
    """
    return _native.function("tvm_byoc_dnnl.BlobModuleCreate")(symbol, compiler, compatibility, data)


def layer_times(times: LayerTimes) -> None:
    """Say, from inside of a blob's ``run``, how long the layers of this call took; `profile` shows them.

    Parameters
    ----------
    times : sequence of (str, float), or callable
        Names of layers and seconds, in the order in which they ran; or a function that returns this, which is called
        only if somebody profiles. In any other call it has no effect.
    """
    if (heard := _opening().layers) is not None:
        heard += [(str(name), float(seconds)) for name, seconds in (times() if callable(times) else times)]


def checked_run_options(options: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """A user's options for opened regions, if all names and types are right; raises `InputError` otherwise."""
    checked: dict[str, dict[str, Any]] = {}
    for name, given in options_of(options).items():
        runner = namespace(name).blob_runner
        if runner is None:
            raise InputError(f"{name!r} is no compiler whose regions take options when they are loaded")
        checked[name] = checked_values(name, runner.options, given)
    return checked


def open_blob(
    compiler: str, symbol: str, compatibility: str, data: bytes, results: int = -1
) -> Mapping[str, Callable[..., Any]]:
    """The functions of a blob's region, by what follows its name; the native library calls this when one is fetched."""
    try:
        return tvm_ffi.convert(_opened(compiler, symbol, compatibility, data, results))
    except ArtifactError:
        if not _opening().is_described:
            raise

    def later(suffix: str) -> Callable[..., Any]:
        return lambda *values: _opened(compiler, symbol, compatibility, data, results)[suffix](*values)

    return tvm_ffi.convert({suffix: later(suffix) for suffix in SUFFIXES})


def _opened(
    compiler: str, symbol: str, compatibility: str, data: bytes, results: int
) -> Mapping[str, Callable[..., Any]]:
    where = f"region {symbol!r} was compiled by {compiler!r}"
    try:
        ns = namespace(compiler)
    except ValueError as error:
        raise ArtifactError(f"{where}, which is not there: {error}") from error
    if (runner := ns.blob_runner) is None:
        raise ArtifactError(f"{where}, whose package has not called register_blob_runner({compiler!r}, ...)")
    opening, held = _opening(), None
    try:
        answer = runner.check(compatibility)
        if isinstance(answer, Works):
            _logger.warning("%s; it works here, but is not optimal: %s", where, answer.reason)
        refusal = None if isinstance(answer, Works) else as_reject(answer, f"the check of blobs of {compiler!r}")
        options = {**defaults(runner.options), **opening.options.get(compiler, {})}
        if refusal is None and ns.functions.memory is not None:
            held = opening.memory(ns.functions.memory, options)
        run: Any = runner.load(data, options, held and held.memory) if refusal is None else None
        if refusal is None and not callable(run):
            expected = "run(*arguments, *results)" if held is None else "run(*buffers)"
            raise TypeError(f"load returned {run!r}; expected a function {expected}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ArtifactError(f"{where} and cannot be loaded: {describe(error)}; compile the model again here") from error
    if refusal is not None:
        raise ArtifactError(f"{where} for another setting: {refusal.reason}; compile the model again here")
    where = f"region {symbol!r} of {compiler!r}"
    return {"": _checked(run, where, results)} if held is None else resident(run, held, where, results)


def _checked(run: Callable[..., None], where: str, results: int) -> Callable[..., None]:
    """``run`` with errors that say whose they are (``where``).

    Until one call was right, it is also checked for arguments that are written to, and for results that are not.
    ``results`` is -1 where their number is not known, and the first call is as any other.
    """
    lock, is_new = threading.Lock(), results >= 0

    def call(*tensors: Any) -> None:
        nonlocal is_new
        if is_new:
            with lock:
                is_first, is_new = is_new, False
            if is_first:
                try:
                    return _first(lambda: _run(run, where, tensors), where, *_split(tensors, results))
                except BaseException:
                    is_new = True  # until one call was right
                    raise
        return _run(run, where, tensors)

    return call


def _run(run: Callable[..., Any], where: str, tensors: Sequence[Any]) -> None:
    with running(f"{where}: run"):
        returned = run(*tensors)
    if returned is not None:
        raise VendorError(
            f"{where}: run returned {_shown(returned)}; expected None: it writes the results into its last tensors, as "
            "in np.copyto(np.from_dlpack(tensors[-1]), result)"
        )


def _shown(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{type(value).__name__}" if shape is None else f"{type(value).__name__} {dtype}{list(shape)}"


def _split(tensors: Sequence[Any], results: int) -> tuple[list[_Bytes], list[tuple[_Bytes, int]]]:
    """The bytes of the arguments; those of the results, and how many of them an element has."""
    is_tensor = [hasattr(t, "data_ptr") for t in tensors]  # else the sizes of a shape
    first = len(tensors) - results
    arguments = [_bytes(t) for t, known in zip(tensors[:first], is_tensor, strict=False) if known]
    return arguments, [(_bytes(t), _width(t)) for t in tensors[first:]]


def _width(tensor: Any) -> int:
    dtype = tvm.DataType(str(tensor.dtype))
    return -(-dtype.bits * dtype.lanes // 8)


def _bytes(tensor: Any) -> _Bytes:
    size = int(np.prod(tensor.shape, dtype=np.int64)) * _width(tensor)
    if not size:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(tensor.data_ptr()))


def _first(call: Callable[[], None], where: str, arguments: list[_Bytes], results: list[tuple[_Bytes, int]]) -> None:
    before = [argument.copy() for argument in arguments]
    left = _left(call, results, _PATTERNS[0])
    if any(mask.any() for mask in left):  # by a result that is such a number, too; but not again
        left = [a & b for a, b in zip(left, _left(call, results, _PATTERNS[1]), strict=True)]
    for number, (old, new) in enumerate(zip(before, arguments, strict=True)):
        if not np.array_equal(old, new):
            raise VendorError(f"{where}: run wrote to argument {number}; expected it to write to its last tensors only")
    for number, mask in enumerate(left):
        if mask.any():
            raise VendorError(
                f"{where}: run did not write {int(mask.sum())} of the {mask.size} elements of result {number}; "
                "expected every element of every result to be written before it returns"
            )


def _left(call: Callable[[], None], results: list[tuple[_Bytes, int]], pattern: int) -> list[np.ndarray]:
    """For each result, the elements that still hold the pattern after a call."""
    for result, _ in results:
        result[...] = pattern
    call()
    return [(result.reshape(-1, width) == pattern).all(1) for result, width in results]


def register_blob_runner(
    compiler: str,
    check: Callable[[str], bool | Reject | Works] | None = None,
    load: Callable[..., Callable[..., None]] | None = None,
    *,
    library: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    extend: bool = False,
) -> None:
    """Register how a namespace runs the regions that its codegen made by `blob_module`.

    Both functions are called when a model is loaded, before its first call, and also in the process that compiled it.

    Parameters
    ----------
    check : callable
        ``check(compatibility) -> True | Works | Reject``: whether this process can load bytes that were made with these
        words. `Works` says that they can be loaded, and would be better if they were compiled here, which is a warning.
        The reason of a refusal becomes an `ArtifactError`; ``load`` is not called then.
    load : callable
        ``load(data) -> run``, or ``load(data, options) -> run``, and ``run(*tensors)`` writes the results: it gets the
        region's arguments and then its results, all of them TVM tensors on the CPU. Any number of threads may call it.
        In a namespace with ``memory``, it is ``load(data, options, memory) -> run``, and ``run(*buffers)`` gives the
        buffer of the result, or a list of several.
    library : path-like, optional
        In the place of both: a shared library with a runner in C, as ``tvm_byoc_runner.h`` describes it. A program
        without Python finds the same runner as ``libtvm_byoc_runner_<compiler>.so``.
    options : mapping, optional
        Options of loading and their defaults, such as ``{"device": 0}``; a user sets them by
        ``byoc.load(path, options={compiler: {"device": 1}})``.
    compiler, extend
        As in `register_annotate_compiler`.

    Raises
    ------
    InputError
        If there is neither a library nor both functions, or all of them.
    TypeError
        For a library in a namespace with a memory of its own.
    """
    who = f"register_blob_runner({compiler!r})"
    if library is not None and check is None and load is None:
        check, load = _in_c(os.fspath(library))
    elif library is not None or check is None or load is None:
        raise InputError(f"{who} expects check= and load=, or library=")
    check_functions(who, check=check, load=load)
    check_options(who, options or {}, {})
    ns = claim_namespace(compiler, extend)
    ns.blob_runner = BlobRunner(check, with_options(load, 3), dict(options or {}), is_in_c=library is not None)
    ns.check_parts()


def _in_c(library: str) -> tuple[Callable[[str], Any], Callable[..., Any]]:
    def check(compatibility: str) -> bool | Reject | Works:
        fit, reason = _native.function("tvm_byoc_dnnl.RunnerCheck")(library, compatibility)
        return (True, Works(str(reason)), Reject(str(reason)))[int(fit)]

    def load(data: bytes, options: Mapping[str, Any], _memory: None) -> Callable[..., None]:
        return _native.function("tvm_byoc_dnnl.RunnerLoad")(library, data, json.dumps(dict(options)))

    return check, load
