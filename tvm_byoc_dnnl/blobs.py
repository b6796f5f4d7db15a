"""Regions as bytes of a vendor's library: the module that contains them, and the code that opens them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi

from . import _native
from .errors import ArtifactError
from .namespaces import namespace
from .regions.failure import describe
from .verdict import as_reject

__all__ = ["blob_module", "open_blob"]


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


def open_blob(compiler: str, symbol: str, compatibility: str, data: bytes) -> Callable[..., Any]:
    """The function of a blob's region; the native library calls this when the function is fetched.

    Raises
    ------
    ArtifactError
        If the vendor's package is missing, refuses the bytes, or cannot load them.
    """
    where = f"region {symbol!r} was compiled by {compiler!r}"
    try:
        runner = namespace(compiler).blob_runner
    except ValueError as error:
        raise ArtifactError(f"{where}, which is not there: {error}") from error
    if runner is None:
        raise ArtifactError(f"{where}, whose package has not called register_blob_runner({compiler!r}, ...)")
    try:
        refusal = as_reject(runner.check(compatibility), f"the check of blobs of {compiler!r}")
        run = None if refusal is not None else runner.load(data)
    except Exception as error:
        raise ArtifactError(f"{where} and cannot be loaded: {describe(error)}; compile the model again here") from error
    if refusal is not None:
        raise ArtifactError(f"{where} for another setting: {refusal.reason}; compile the model again here")
    return tvm_ffi.convert(run)
