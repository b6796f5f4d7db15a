"""Runs models that tvm-byoc-dnnl has compiled, where every call of them is in a region: with NumPy, without TVM."""

from __future__ import annotations

from functools import cache
from os import PathLike
from pathlib import Path

from .core.errors import (
    ArtifactError,
    ByocError,
    InputError,
    InputIndexError,
    MissingFileError,
    NativeLibraryError,
    OutOfMemoryError,
    UnsupportedError,
)
from .core.tensor_info import TensorInfo
from .runtime.base import loading
from .runtime.native import Library, NativeRunner

__all__ = [
    "ArtifactError",
    "ByocError",
    "InputError",
    "InputIndexError",
    "MissingFileError",
    "NativeLibraryError",
    "NativeRunner",
    "OutOfMemoryError",
    "TensorInfo",
    "UnsupportedError",
    "load",
]


@cache
def _library() -> Library:
    return Library(Path(__file__).parent / "lib" / "libtvm_byoc_runtime.so")


def load(path: str | PathLike[str], *, threads: int | None = None, workers: int | None = None) -> NativeRunner:
    """Load a library that ``export_library`` of tvm-byoc-dnnl wrote.

    Parameters
    ----------
    path : path-like
        The ``.so``.
    threads : int, optional
        Threads of each call; by default OpenMP's own number.
    workers : int, optional
        Calls of `NativeRunner.submit` that run at the same time.

    Raises
    ------
    InputError
        If ``threads`` or ``workers`` is not a positive number.
    MissingFileError, ArtifactError
        If there is no such file, or it is damaged or of another version.
    UnsupportedError
        If the model needs TVM; the message says for what.
    NativeLibraryError, OutOfMemoryError
        If a library cannot be loaded, or no memory is left.
    """
    with loading(path) as file:
        return NativeRunner(file, _library(), threads=threads, workers=workers)
