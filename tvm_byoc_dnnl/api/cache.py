"""Compiled models in a folder, found by the content of all that they depend on.

An entry is the library that ``export_library`` writes, under the name of its key, or the bytes that a vendor's compiler
made of a region, which serve each model that has the region. It gets that name when it is complete, so that two
processes that compile the same model write the same entry one after the other; neither waits.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.target import codegen

from ..core import _native
from ..core.compilation import knowing
from ..core.entries import (
    CacheFolder,
    compilers_for_source,
    content_key,
    file_parts,
    onnx_file_parts,
    software,
    source_of,
)
from ..core.errors import ArtifactError, ExportError, InputError
from ..core.files import opened, written
from ..core.machine import version_of
from ..frontends import DecoderFile
from ..frontends.gguf import SUFFIX as GGUF
from ..ir.fingerprint import fingerprint
from ..ir.relax_utils import constant_numpy, constants_in
from ..pipeline.byoc import name_of_schedules
from ..pipeline.executable import ByocExecutable, seal
from ..tuning.database import thread_count
from ..vendors.namespaces import compilers, namespace

_logger = logging.getLogger("tvm_byoc_dnnl")
_ENGINE = __name__.partition(".")[0]


class CachedExecutable(ByocExecutable):
    """An executable that is a library in a cache, made from ``key``: it runs, and its export is a copy."""

    path: Path

    def __init__(self, path: Path, key: str) -> None:
        module = _native.load_library(path, key)
        super().__init__(module)
        self.path = path

    def jit(self, **kwargs: Any) -> tvm.runtime.Module:
        return self.mod

    def export_library(self, file_name: str | os.PathLike[str], **kwargs: Any) -> None:
        """Copy the library; `ExportError` if it is to be linked in another way than it was."""
        if any(value is not None for value in kwargs.values()) or Path(file_name).suffix == ".tar":
            asked = ", ".join(kwargs) or "an archive"
            raise ExportError(
                f"cannot export {file_name} with {asked}: the model comes from a cache, where it is linked already; "
                "compile it without cache_dir"
            )
        with written(file_name) as aside, opened(self.path, follow=False) as entry, aside.open("wb") as copy:
            shutil.copyfileobj(entry, copy)


class ModelCache(CacheFolder):
    """A folder of compiled models, and of the regions that vendors' compilers made."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__(folder)
        self._compilers: dict[str, str] = {}  # what makes the regions of each

    def get(self, key: str, build: Callable[[], ByocExecutable]) -> ByocExecutable:
        if not self.is_own():
            return build()
        path = self.path / f"{key}.so"
        if (found := self.found(path, lambda file: CachedExecutable(path, key))) is not None:
            self.say("found", path)
            return found
        with knowing(kept=self):
            built = build()
        try:
            with written(path, follow=False) as aside:
                built.export_library(aside)
                seal(aside, key)
                aside.chmod(aside.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
            stored = CachedExecutable(path, key)
        except (ArtifactError, ExportError, OSError) as error:
            _logger.warning("the compiled model is not kept in %s: %s", self.path, error)
            return built
        self.say("stored", path)
        return stored

    def region(self, compiler: str, content: str) -> tvm.runtime.Module | None:
        load = _native.function("ffi.Module.load_from_bytes.byoc_blob")
        return self.data(f"{self._region_key(compiler, content)}.region", load)

    def keep_region(self, compiler: str, content: str, module: tvm.runtime.Module) -> None:
        """Keep what a vendor's compiler made of a region; a folder that takes nothing more is a warning."""
        data = bytes(_native.function("tvm_byoc_dnnl.ModuleBytes")(module))
        self.keep(f"{self._region_key(compiler, content)}.region", data)

    def text(self, path: Path, make: Callable[[], str]) -> str:
        """What is made of a file, as long as it is the same file: its content is not read to know that."""
        try:
            about = path.stat()
        except OSError:  # which making it says better
            return make()
        facts = [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]
        name = f"{content_key([json.dumps([facts, _software([])], sort_keys=True)])}.text"
        if not self.is_own():
            return make()
        if (found := self.data(name, bytes.decode)) is None:
            self.keep(name, (found := make()).encode())
        return found

    def _region_key(self, compiler: str, content: str) -> str:
        if compiler not in self._compilers:
            self._compilers[compiler] = json.dumps(_software([compiler]), sort_keys=True)
        return content_key([self._compilers[compiler], content])


def key_of(model: Any, compiler: str | Sequence[str] | None, arguments: Mapping[str, Any]) -> str:
    """A name for all that a compiled model depends on; `InputError` if the content of one cannot be read."""
    return content_key(_parts(model, compiler, arguments))


def _parts(model: Any, compiler: str | Sequence[str] | None, arguments: Mapping[str, Any]) -> Iterable[bytes]:
    yield from _model_parts(model)
    names = compilers() if compiler is None else [compiler] if isinstance(compiler, str) else list(compiler)
    database = arguments.get("database")
    facts = {
        "compiler": compiler if compiler is None else names,
        "arguments": {n: fingerprint(v, f"the argument {n}") for n, v in arguments.items() if n != "database"},
        **_software(names),
        "context": _context(),
        "machine": [str(codegen.llvm_get_system_cpu()), compilers_for_source()],
    }
    yield json.dumps(facts, sort_keys=True).encode()
    if database is not None:  # its times are for a number of threads
        yield f"threads {thread_count()}".encode()
        yield from file_parts(Path(database))


def is_plain() -> bool:
    """Whether no block changes a compilation here, and only this package has registered something."""
    with tvm.transform.PassContext():
        usual = _context()
    owners = {owner for name in compilers() for owner in namespace(name).owners}
    is_ours = all(owner.partition(".")[0] == _ENGINE for owner in owners)
    return is_ours and _context() == {**usual, "target": str(None), "schedules": ""}


def _software(names: Sequence[str]) -> dict[str, Any]:
    return {**software(), "namespaces": {name: _namespace_facts(name) for name in names}}


def _context() -> dict[str, Any]:
    """What the `with` blocks around a call of `compile` change."""
    passes = tvm.transform.PassContext.current()
    return {
        "level": passes.opt_level,
        "passes": [list(map(str, names or ())) for names in (passes.required_pass, passes.disabled_pass)],
        "config": {str(k): fingerprint(v, f"the config {k} of TVM's PassContext") for k, v in passes.config.items()},
        "target": str(tvm.target.Target.current(allow_none=True)),
        "schedules": name_of_schedules(),
    }


def _model_parts(model: Any) -> Iterable[bytes]:
    if isinstance(model, DecoderFile):
        yield f"the last row of {model.logits}, caches {model.cache_dtype}".encode()
    if isinstance(model, os.PathLike):
        model = Path(model)
    if isinstance(model, (str, Path)) and Path(model).suffix == GGUF:
        yield from file_parts(Path(model))
    elif isinstance(model, (str, Path)):
        yield from onnx_file_parts(Path(model))
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
    for constant in (c for _, function in functions for c in constants_in(function)):
        yield constant_numpy(constant).tobytes()


def _namespace_facts(name: str) -> dict[str, Any]:
    """The version of a backend: of the packages that it names, of its engine, its own source and what it registered."""
    ns = namespace(name)
    facts: dict[str, Any] = {"packages": {package: version_of(package) for package in ns.doctor.packages}}
    if name in _native.engines():
        info = _native.engine_info(name)
        facts["engine"] = {key: info.get(key) for key in ("version", "hash", "isa", "machine")}
    facts["source"] = {owner: source_of(owner) for owner in sorted(ns.owners) if owner.partition(".")[0] != _ENGINE}
    facts["parts"] = {part: fingerprint(value, name, strict=False) for part, value in vars(ns).items()}
    facts["variables"] = {name: os.environ[name] for name in sorted(ns.doctor.variables) if name in os.environ}
    return facts
