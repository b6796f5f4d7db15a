"""Compiled models in a folder, found by the content of all that they depend on.

An entry is the library that ``export_library`` writes, under the name of its key. It gets that name when it is
complete, so that two processes that compile the same model write the same entry one after the other; neither waits.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from . import _native, library_file
from ._compat import constant_numpy, is_constant
from ._version import __version__
from .errors import ArtifactError, ExportError, InputError
from .files import written
from .namespaces import compilers, namespace
from .pipeline.executable import ByocExecutable

__all__ = ["CachedExecutable", "ModelCache", "key_of"]

_logger = logging.getLogger("tvm_byoc_dnnl")
_ENGINE = __name__.partition(".")[0]
_BLOCK = 1 << 20
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx")


class CachedExecutable(ByocExecutable):
    """An executable that is a library in a cache: it runs, and its export is a copy.

    Parameters
    ----------
    path : Path
        The library.
    """

    def __init__(self, path: Path) -> None:
        library_file.check(path)
        try:
            module = tvm_ffi.load_module(str(path), keep_module_alive=False)
        except ArtifactError:
            raise
        except Exception as error:
            raise ArtifactError(f"{path} cannot be loaded: {error}") from error
        super().__init__(module)
        self._path = path

    def jit(self, **kwargs: Any) -> tvm.runtime.Module:
        """The module to run; it is machine code already."""
        return self.mod

    def export_library(self, file_name: str | os.PathLike[str], **kwargs: Any) -> None:
        """Copy the library; a file of the same name is replaced as by `ByocExecutable.export_library`.

        Raises
        ------
        ExportError
            If it cannot be written, or is to be linked in another way than it was.
        """
        if any(value is not None for value in kwargs.values()) or Path(file_name).suffix == ".tar":
            asked = ", ".join(kwargs) or "an archive"
            raise ExportError(
                f"cannot export {file_name} with {asked}: the model comes from a cache, where it is linked already; "
                "compile it without cache_dir"
            )
        with written(file_name) as aside:
            shutil.copyfile(self._path, aside)


class ModelCache:
    """A folder of compiled models.

    Parameters
    ----------
    folder : path-like
        Made if it does not exist. Whoever can write to it decides what is run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cache_dir is {str(folder)!r}, which is no folder: {error.strerror}") from error

    def get(self, key: str, build: Callable[[], ByocExecutable]) -> ByocExecutable:
        """The entry of this key, built if it is not there or is damaged."""
        path = self._folder / f"{key}.so"
        if path.exists():
            try:
                found = CachedExecutable(path)
                os.utime(path)  # when it was used last, for those who tidy up
                self._say("found", path)
                return found
            except (ArtifactError, OSError) as error:
                _logger.warning("the cached model %s is not used, and compiled again: %s", path, error)
        built = build()
        try:
            built.export_library(path)
            stored = CachedExecutable(path)
        except (ArtifactError, ExportError, OSError) as error:
            _logger.warning("the compiled model is not kept in %s: %s", self._folder, error)
            return built
        self._say("stored", path)
        return stored

    def _say(self, what: str, path: Path) -> None:
        sizes = [file.stat().st_size for file in self._folder.glob("*.so")]
        _logger.info(
            "%s the compiled model %s (%.1f MB); the cache has %d, of %.1f MB",
            what,
            path,
            path.stat().st_size / 1e6,
            len(sizes),
            sum(sizes) / 1e6,
        )


def key_of(model: Any, compiler: str | Sequence[str] | None, arguments: Mapping[str, Any]) -> str:
    """A name for the content of a model, the arguments of `compile`, and the software and CPU that compile it.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto or path
        The model.
    compiler : str, sequence of str or None
        As for `compile`.
    arguments : mapping of str to object
        The other arguments that change what is compiled.

    Raises
    ------
    InputError
        If the model's content, or the source of a backend, cannot be read.
    """
    digest = hashlib.blake2b(digest_size=20)
    for part in _parts(model, compiler, arguments):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(model: Any, compiler: str | Sequence[str] | None, arguments: Mapping[str, Any]) -> Iterable[bytes]:
    yield from _model_parts(model)
    names = compilers() if compiler is None else [compiler] if isinstance(compiler, str) else list(compiler)
    database = arguments.get("database")
    facts = {
        "compiler": compiler if compiler is None else names,
        "arguments": {name: repr(value) for name, value in sorted(arguments.items()) if name != "database"},
        "package": __version__,
        "versions": {name: _version(name) for name in _PACKAGES},
        "namespaces": {name: _namespace_facts(name) for name in names},
    }
    yield json.dumps(facts, sort_keys=True).encode()
    if database is not None:
        yield from _file_parts(Path(database))


def _model_parts(model: Any) -> Iterable[bytes]:
    if isinstance(model, (str, Path)):
        yield from _onnx_file_parts(Path(model))
    elif hasattr(model, "SerializeToString"):
        try:
            yield model.SerializeToString(deterministic=True)
        except ValueError as error:  # the limit of protobuf
            raise InputError(
                f"cache_dir: the model is too large to be read in memory; give its path: {error}"
            ) from error
    else:
        yield from _module_parts(model)


def _module_parts(mod: tvm.IRModule) -> Iterable[bytes]:
    """A module as text, and its constants, of which the text has only the places (`tvm.ir.save_json` may crash)."""
    yield mod.script().encode()
    functions = sorted(((gv.name_hint, f) for gv, f in mod.functions.items()), key=lambda item: item[0])
    found: list[Any] = []
    for _, function in functions:
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, found.append)
    for expr in found:
        if is_constant(expr):
            yield constant_numpy(expr).tobytes()


def _onnx_file_parts(path: Path) -> Iterable[bytes]:
    """The bytes of an .onnx file, and of the files with its weights."""
    import onnx

    yield from _file_parts(path)
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception:  # importing it gives the error
        return
    entries = [entry for tensor in _tensors(proto.graph) for entry in tensor.external_data if entry.key == "location"]
    for location in dict.fromkeys(entry.value for entry in entries):
        yield from _file_parts(path.parent / location)


def _tensors(graph: Any) -> Iterable[Any]:
    """The tensors in an ONNX graph and in the graphs of its nodes."""
    yield from graph.initializer
    for attribute in (a for node in graph.node for a in node.attribute):
        yield from [attribute.t, *attribute.tensors]
        for inner in [attribute.g, *attribute.graphs]:
            if inner.node:
                yield from _tensors(inner)


def _file_parts(path: Path) -> Iterable[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                yield block
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _namespace_facts(name: str) -> dict[str, Any]:
    """The version of a backend: of the packages that it names, of its engine, and its own source."""
    ns = namespace(name)
    facts: dict[str, Any] = {"packages": {package: _version(package) for package in ns.doctor.packages}}
    if name in _native.engines():
        info = _native.engine_info(name)
        facts["engine"] = {key: info[key] for key in ("version", "hash", "isa")}
    owners = {ns.owner, *ns.added.values()}
    facts["source"] = {owner: _source_of(owner) for owner in sorted(owners) if owner.partition(".")[0] != _ENGINE}
    return facts


def _source_of(package: str) -> str:
    """The content of a vendor's Python files: its version stays the same while it is written."""
    module = sys.modules.get(package)
    folders = list(getattr(module, "__path__", ()))
    file = getattr(module, "__file__", None)
    files = [p for folder in folders for p in sorted(Path(folder).rglob("*.py"))] or ([Path(file)] if file else [])
    if not files:
        raise InputError(f"cache_dir: the backend of {package!r} is in no file, so that its changes cannot be seen")
    digest = hashlib.blake2b(digest_size=20)
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()
