"""Runs a compiled model, without TVM where it can.

What needs TVM is imported when a file needs it, so that others load in less time; and tvm-byoc-runtime has no more of
this package than `base` and `native`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from ..core.errors import ArtifactError, InputError, UnsupportedError, one_of
from .base import loading
from .native import Library, NativeRunner

if TYPE_CHECKING:
    from .runner import Runner


def load(
    path: str | PathLike[str],
    *,
    runtime: str = "auto",
    threads: int | None = None,
    workers: int | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Runner | NativeRunner:
    """Load a library that ``export_library`` wrote.

    Parameters
    ----------
    path : path-like
        The ``.so``.
    runtime : str, optional
        ``"native"`` runs a model of which every call is in a region without TVM, by the code that the package
        ``tvm-byoc-runtime`` has, too; ``"tvm"`` runs every model; ``"auto"`` is the first of them that can run this
        one; its runner opens the file with TVM as well when something is asked for that only `Runner` has.
    threads, workers, options : optional
        As for `Runner`.

    Raises
    ------
    InputError
        If ``threads`` or ``workers`` is not a positive number, or an option is unknown.
    MissingFileError
        If there is no such file.
    ArtifactError
        If it is no such library, is damaged, or was written by an incompatible version.
    UnsupportedError
        If ``runtime="native"`` cannot run it; the message says what needs TVM.
    OutOfFilesError, OutOfMemoryError
        If no descriptor or no memory is left.
    """
    from ..core import _native

    one_of("runtime", runtime, ("auto", "tvm", "native"))
    with loading(path) as path:
        if runtime == "native" and options is not None:
            raise InputError("options are for vendors, whose regions runtime='native' does not run; use 'tvm'")
        settings: dict[str, Any] = {"threads": threads, "workers": workers}
        if runtime == "native" or (runtime == "auto" and options is None and _native.available()):
            _native.load()
            beside = partial(load, path, runtime="tvm", **settings) if runtime == "auto" else None
            try:
                return NativeRunner(path, _library(), **settings, beside=beside)
            except (ArtifactError, UnsupportedError):  # what is damaged for both, TVM's loader says
                if runtime == "native":
                    raise
    from .._autoload import register_names

    register_names()
    from .runner import Runner

    return Runner(path, **settings, options=options)


def lightest(ex: Any) -> Runner | NativeRunner:
    """A runner of what `compile` returned: one without TVM where that is a library in a cache, which allows it."""
    from .runner import Runner

    if ex.path is not None:
        with suppress(ArtifactError, UnsupportedError):
            return NativeRunner(ex.path, _library(), threads=ex.threads, beside=partial(Runner, ex))
    return Runner(ex)


@cache
def _library() -> Library:
    from ..core import _native

    _native.map_engines()
    return Library(_native.LIBRARY)
