"""Runs a compiled model, without TVM where it can.

What needs TVM is imported when a file needs it, so that others load in less time; and tvm-byoc-runtime has no more of
this package than `base` and `native`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..core.errors import ArtifactError, ByocError, InputError, UnsupportedError, one_of
from ..core.machine import version_of
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


class CachedModel:
    """A model of a cache, found again by a process that has not imported TVM; each other finds it by `compile`.

    The key of an entry asks TVM for what surrounds a call, and vendors for what they registered. A process that has not
    imported TVM has changed neither: a note in the folder, found by what is known there, names the entry, or says why
    the model is refused.
    """

    def __init__(self, folder: str | PathLike[str], model: str | bytes, asked: Any) -> None:
        from ..core import _native
        from ..core.entries import CacheFolder, surroundings

        self._folder, self._model = CacheFolder(folder), model
        self._note = ""  #: its name, if there may be one
        with suppress(ByocError):  # which compiling says better
            if _native.available() and self._folder.is_own() and (around := surroundings()):
                engines = {name: _library().engine_info(name) for name in _native.engines()}
                self._facts = json.dumps([around, engines, asked], sort_keys=True)
                self._note = self._name()

    def _name(self) -> str:
        from ..core.entries import content_key, onnx_file_parts

        kind = type(self._model).__name__
        parts = [self._model] if isinstance(self._model, bytes) else onnx_file_parts(Path(self._model))
        return f"{content_key([self._facts, kind, *parts])}.note"

    def runner(self, threads: int | None) -> Runner | NativeRunner | None:
        """Its runner; ``None`` where nothing is known. Raises `UnsupportedError` if that is known of it."""
        is_asked = self._note and "tvm" not in sys.modules
        note = self._folder.data(self._note, json.loads) if is_asked else None
        if note is None or note["read"] != _read_by(note["read"]):
            return None
        if note["refused"]:
            raise UnsupportedError(note["refused"])
        path = self._folder.path / f"{note['key']}.so"

        def opened(file: BinaryIO) -> Runner | NativeRunner:
            _library().checked(file.fileno(), path, note["key"])
            return load(path, threads=threads)

        found = self._folder.found(path, opened)
        if found is not None:
            self._folder.say("found", path)
        return found

    def remember(self, found: Mapping[str, str | None], reads: Mapping[str, Iterable[str]]) -> None:
        """Note the ``key`` of the entry that `compile` has found or made, or why the model was ``refused``; ``reads``
        are the variables and packages that its key reads. For processes in which only this package has changed what a
        compilation does."""
        with suppress(ByocError):  # of a file that is gone
            if self._note and self._name() == self._note:  # it is no other now
                note = {"key": None, "refused": None, **found, "read": _read_by(reads)}
                self._folder.keep(self._note, json.dumps(note).encode())


def _read_by(names: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str | None]]:
    """What these variables and packages are here."""
    return {
        "variables": {name: os.environ.get(name) for name in names["variables"]},
        "packages": {name: version_of(name) for name in names["packages"]},
    }


@cache
def _library() -> Library:
    from ..core import _native

    _native.map_engines()
    return Library(_native.LIBRARY)
