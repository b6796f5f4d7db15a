"""Compiled models in a folder, found by the content of all that they depend on.

An entry is the library that ``export_library`` writes, under the name of its key, or the bytes that a vendor's compiler
made of a region, which serve each model that has the region. It gets that name when it is complete, so that two
processes that compile the same model write the same entry one after the other; neither waits.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import tvm
from tvm.support import cc
from tvm.target import codegen

from ..core import _native
from ..core.compilation import knowing
from ..core.errors import ArtifactError, ExportError, InputError
from ..core.files import opened, read, written
from ..core.machine import own_version, version_of
from ..frontends import LastRow
from ..frontends.gguf import SUFFIX as GGUF
from ..ir.fingerprint import content_key, fingerprint
from ..ir.relax_utils import constant_numpy, constants_in
from ..pipeline.byoc import name_of_schedules
from ..pipeline.executable import ByocExecutable, seal
from ..tuning.database import thread_count
from ..vendors.namespaces import compilers, namespace

_logger = logging.getLogger("tvm_byoc_dnnl")
_ENGINE = __name__.partition(".")[0]
_BLOCK, _MOST_THREADS = 1 << 18, 8
_Entry = TypeVar("_Entry")
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx", "numpy", "ml_dtypes", "torch", "gguf")


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


class ModelCache:
    """A folder of compiled models, made if it does not exist.

    An entry is used if it is a file of this user (or of root), and says itself that it was made from this key. A folder
    to which others can write is not used: whoever can write to it decides what is run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self._folder = Path(folder).absolute()
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cache_dir is {str(folder)!r}, which is no folder: {reason}") from error
        self._compilers: dict[str, str] = {}  # what makes the regions of each

    def get(self, key: str, build: Callable[[], ByocExecutable]) -> ByocExecutable:
        if not self._is_own():
            return build()
        path = self._folder / f"{key}.so"
        if (found := self._found(path, lambda file: CachedExecutable(path, key))) is not None:
            self._say("found", path)
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
            _logger.warning("the compiled model is not kept in %s: %s", self._folder, error)
            return built
        self._say("stored", path)
        return stored

    def region(self, compiler: str, content: str) -> tvm.runtime.Module | None:
        load = _native.function("ffi.Module.load_from_bytes.byoc_blob")
        return self._data(f"{self._region_key(compiler, content)}.region", load)

    def keep_region(self, compiler: str, content: str, module: tvm.runtime.Module) -> None:
        """Keep what a vendor's compiler made of a region; a folder that takes nothing more is a warning."""
        data = bytes(_native.function("tvm_byoc_dnnl.BlobBytes")(module))
        self._keep(f"{self._region_key(compiler, content)}.region", data)

    def text(self, path: Path, make: Callable[[], str]) -> str:
        """What is made of a file, as long as it is the same file: its content is not read to know that."""
        try:
            about = path.stat()
        except OSError:  # which making it says better
            return make()
        facts = [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]
        name = f"{content_key([json.dumps([facts, _software([])], sort_keys=True)])}.text"
        if not self._is_own():
            return make()
        if (found := self._data(name, bytes.decode)) is None:
            self._keep(name, (found := make()).encode())
        return found

    def _region_key(self, compiler: str, content: str) -> str:
        if compiler not in self._compilers:
            self._compilers[compiler] = json.dumps(_software([compiler]), sort_keys=True)
        return content_key([self._compilers[compiler], content])

    def _is_own(self) -> bool:
        if (reason := _stranger(self._folder.stat())) is not None:
            _warn_once(f"the folder {self._folder} is not used as a cache, because {reason}")
        return reason is None

    def _data(self, name: str, load: Callable[[bytes], _Entry]) -> _Entry | None:
        """An entry of bytes, if it is as `_keep` wrote it."""

        def loaded(file: BinaryIO) -> _Entry:
            label, _, data = file.read().partition(b"\n")
            if label != _label(name, data):
                raise ArtifactError("it was made from something else")
            return load(data)

        return self._found(self._folder / name, loaded)

    def _keep(self, name: str, data: bytes) -> None:
        try:
            with written(self._folder / name, follow=False) as aside:
                aside.write_bytes(_label(name, data) + b"\n" + data)
        except OSError as error:
            _logger.warning("%s is not kept in %s: %s", name, self._folder, error)

    def _found(self, path: Path, load: Callable[[BinaryIO], _Entry]) -> _Entry | None:
        try:
            with opened(path, follow=False) as file:
                if (reason := _stranger(os.fstat(file.fileno()))) is not None:
                    raise ArtifactError(reason)
                with contextlib.suppress(OSError):  # of a folder that root has filled
                    os.utime(file.fileno())  # when it was used last, for those who tidy up
                found = load(file)
        except FileNotFoundError:
            return None
        except (ArtifactError, OSError) as error:
            what = {".so": "model"}.get(path.suffix, path.suffix[1:])
            _logger.warning("the cached %s %s is not used, and made again: %s", what, path, error)
            return None
        return found

    def _say(self, what: str, path: Path) -> None:
        sizes = {}
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".so") and entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        _logger.info(
            "%s the compiled model %s (%.1f MB); the cache has %d, of %.1f MB",
            what,
            path,
            sizes.get(path.name, 0) / 1e6,
            len(sizes),
            sum(sizes.values()) / 1e6,
        )


def _label(name: str, data: bytes) -> bytes:
    return f"{name} {sha256(data).hexdigest()}".encode()


def _stranger(about: os.stat_result) -> str | None:
    if about.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user (id {about.st_uid})"
    if about.st_mode & stat.S_IWOTH:
        return "every user may write to it; take that away (chmod o-w)"
    return None


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning("%s", message)


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
        "machine": [str(codegen.llvm_get_system_cpu()), _compiler_facts()],
    }
    yield json.dumps(facts, sort_keys=True).encode()
    if database is not None:  # its times are for a number of threads
        yield f"threads {thread_count()}".encode()
        yield from _file_parts(Path(database))


def _software(names: Sequence[str]) -> dict[str, Any]:
    return {
        "package": [own_version(), *_own_files()],
        "versions": {name: version_of(name) for name in _PACKAGES} | {"python": sys.version},
        "namespaces": {name: _namespace_facts(name) for name in names},
    }


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


def _compiler_facts() -> list[Any]:
    """The compilers for C and C++ that source is compiled with: their files, as they say no version without running."""
    names = [os.environ.get("CC", ""), os.environ.get("CXX", "")]
    found: list[Any] = [*names]
    for command in (cc.get_cc(), shutil.which((names[0].split() or ["cc"])[0])):
        with contextlib.suppress(OSError):
            about = os.stat(os.path.realpath(command or ""))
            found.append([about.st_size, about.st_mtime_ns])
    return found


@functools.cache
def _own_files() -> tuple[str, ...]:
    """The content of this package: its version stays the same while it is developed."""
    folder = Path(__file__).parents[1]
    libraries = sorted((folder / "lib").glob("*.so"))
    return _source_of(_ENGINE), content_key(read(library, "a library of this package") for library in libraries)


def _model_parts(model: Any) -> Iterable[bytes]:
    if isinstance(model, LastRow):
        yield f"the last row of {model.output}".encode()
    if isinstance(model, os.PathLike):
        model = Path(model)
    if isinstance(model, (str, Path)) and Path(model).suffix == GGUF:
        yield from _file_parts(Path(model))
    elif isinstance(model, (str, Path)):
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
    for constant in (c for _, function in functions for c in constants_in(function)):
        yield constant_numpy(constant).tobytes()


def _onnx_file_parts(path: Path) -> Iterable[bytes]:
    import onnx

    from ..frontends.onnx.file import external_ranges

    data = read(path, "an .onnx file")
    yield data
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception:  # importing it gives the error
        return
    for name, ranges in external_ranges(path, proto).items():
        yield from _file_parts(path.parent / name, ranges)


def _file_parts(path: Path, ranges: Iterable[tuple[int, int]] = ((0, -1),)) -> Iterable[bytes]:
    """Digests of the blocks of a regular file in ranges of offset and length, each byte once; a length below 0 is all
    the rest."""
    try:
        with opened(path) as file, ThreadPoolExecutor(_MOST_THREADS) as pool:
            size, done, blocks = os.fstat(file.fileno()).st_size, 0, []
            for offset, end in sorted((o, size if n < 0 else min(size, o + n)) for o, n in ranges):
                blocks += [(at, min(_BLOCK, end - at)) for at in range(max(done, offset), end, _BLOCK)]
                done = max(done, end)
            yield from pool.map(lambda b: sha256(os.pread(file.fileno(), b[1], b[0])).digest(), blocks)
    except (OSError, ValueError) as error:  # also of an offset below 0
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _namespace_facts(name: str) -> dict[str, Any]:
    """The version of a backend: of the packages that it names, of its engine, its own source and what it registered."""
    ns = namespace(name)
    facts: dict[str, Any] = {"packages": {package: version_of(package) for package in ns.doctor.packages}}
    if name in _native.engines():
        info = _native.engine_info(name)
        facts["engine"] = {key: info.get(key) for key in ("version", "hash", "isa", "machine")}
    owners = {ns.owner, *ns.added.values()}
    facts["source"] = {owner: _source_of(owner) for owner in sorted(owners) if owner.partition(".")[0] != _ENGINE}
    facts["parts"] = {part: fingerprint(value, name, strict=False) for part, value in vars(ns).items()}
    facts["variables"] = {name: os.environ[name] for name in sorted(ns.doctor.variables) if name in os.environ}
    return facts


def _source_of(package: str) -> str:
    """The content of a vendor's Python files: its version stays the same while it is written."""
    module = sys.modules.get(package)
    folders = list(getattr(module, "__path__", ()))
    file = getattr(module, "__file__", None)
    files = [p for f in folders for p in sorted(Path(f).rglob("*")) if p.is_file()] or ([Path(file)] if file else [])
    if not files:
        raise InputError(f"cache_dir: the backend of {package!r} is in no file, so that its changes cannot be seen")
    return content_key(_source_part(path) for path in files if "__pycache__" not in path.parts)


def _source_part(path: Path) -> bytes | str:
    """A Python file's content; what is known at once of tables and libraries, which may be large."""
    if path.suffix == ".py":
        return read(path, "a Python file")
    about = path.stat()
    return f"{path.name} {about.st_size} {about.st_mtime_ns}"
