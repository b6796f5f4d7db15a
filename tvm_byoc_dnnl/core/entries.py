"""A folder of entries, each found by the content of all that it was made from; and what says that content.

Imports nothing of TVM: a model that is there already is found without it.
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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from .errors import ArtifactError, ExportError, InputError
from .files import opened, read, written
from .machine import cpu_fields, own_version, version_of

if TYPE_CHECKING:
    import onnx

_logger = logging.getLogger("tvm_byoc_dnnl")
_ENGINE = __name__.partition(".")[0]
_BLOCK, _MOST_THREADS = 1 << 18, 8
_Entry = TypeVar("_Entry")
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "onnx", "numpy", "ml_dtypes", "torch", "gguf")
#: the group of entry points by which vendors are found
ENTRY_POINTS = "tvm_byoc_dnnl.vendors"
#: what LLVM tells CPUs apart by, under the names that kernels give it
_CPU = (
    *("vendor_id", "cpu family", "model", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
)


def content_key(parts: Iterable[bytes | str]) -> str:
    """A name for bytes and texts; of one part its SHA-256, under which files of measured times know their workloads."""
    digest, lengths = sha256(), []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(data)
        lengths.append(len(data))
    if len(lengths) > 1:
        digest.update(repr(lengths).encode())
    return digest.hexdigest()


class CacheFolder:
    """A folder of entries, made if it does not exist.

    An entry is used if it is a file of this user (or of root), and says itself that it was made from this key. A folder
    to which others can write is not used: whoever can write to it decides what is run.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self.path = Path(folder).absolute()
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (OSError, TypeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cache_dir is {str(folder)!r}, which is no folder: {reason}") from error

    def is_own(self) -> bool:
        if (reason := _stranger(self.path.stat())) is not None:
            _warn_once(f"the folder {self.path} is not used as a cache, because {reason}")
        return reason is None

    def data(self, name: str, load: Callable[[bytes], _Entry]) -> _Entry | None:
        """An entry of bytes, if it is as `keep` wrote it."""

        def loaded(file: BinaryIO) -> _Entry:
            label, _, data = file.read().partition(b"\n")
            if label != _label(name, data):
                raise ArtifactError("it was made from something else")
            return load(data)

        return self.found(self.path / name, loaded)

    def keep(self, name: str, data: bytes) -> None:
        try:
            with written(self.path / name, follow=False) as aside:
                aside.write_bytes(_label(name, data) + b"\n" + data)
        except (ExportError, OSError) as error:
            _logger.warning("%s is not kept in %s: %s", name, self.path, error)

    def found(self, path: Path, load: Callable[[BinaryIO], _Entry]) -> _Entry | None:
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

    def say(self, what: str, path: Path) -> None:
        sizes = {}
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
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


def software() -> dict[str, Any]:
    """The content of this package, and the versions of what it uses."""
    return {
        "package": [own_version(), *own_files()],
        "versions": {name: version_of(name) for name in _PACKAGES} | {"python": sys.version},
    }


@functools.cache
def own_files() -> tuple[str, ...]:
    """The content of this package: its version stays the same while it is developed."""
    folder = Path(__file__).parents[1]
    libraries = sorted((folder / "lib").glob("*.so"))
    return source_of(_ENGINE), content_key(read(library, "a library of this package") for library in libraries)


def source_of(package: str) -> str:
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


def compilers_for_source() -> list[Any]:
    """The compilers for C and C++ that source is compiled with: their files, as they say no version without running."""
    names = [os.environ.get("CC", ""), os.environ.get("CXX", "")]
    found: list[Any] = [*names]
    commands = (*(name.partition(" ")[0] for name in names), "g++", "gcc", "clang++", "clang", "c++", "cc")
    for file in filter(None, map(shutil.which, commands)):
        with contextlib.suppress(OSError):
            about = os.stat(os.path.realpath(file))
            found.append([about.st_size, about.st_mtime_ns])
    return found


def surroundings() -> str:
    """What a key says of its surroundings, as far as that is known without TVM.

    It is all where no block changes a compilation and only this package has registered something. Empty where another
    distribution registers something of its own.
    """
    from importlib.metadata import entry_points  # takes long to import

    found = [entry for group in (ENTRY_POINTS, "tvm.backends") for entry in entry_points(group=group)]
    if any(entry.value.partition(".")[0] != _ENGINE for entry in found):
        return ""
    cpu = {name: cpu_fields().get(name) for name in _CPU}
    return json.dumps([software(), compilers_for_source(), cpu], sort_keys=True)


def file_parts(path: Path, ranges: Iterable[tuple[int, int]] = ((0, -1),)) -> Iterable[bytes]:
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


def onnx_file_parts(path: Path) -> Iterable[bytes]:
    import onnx

    data = read(path, "an .onnx file")
    yield data
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception:  # importing it gives the error
        return
    for name, ranges in external_ranges(path, proto).items():
        yield from file_parts(path.parent / name, ranges)


def external_ranges(path: Path, model: onnx.ModelProto) -> dict[str, list[tuple[int, int]]]:
    """The files beside a model that hold its tensors, with offset and length of each; below 0 it is all the rest."""
    found: dict[str, list[tuple[int, int]]] = {}
    for place in ({e.key: e.value for e in t.external_data} for t in _tensors(model) if t.data_location == t.EXTERNAL):
        name = place.get("location", "")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(
                f"cannot read `{path}`: its weights lie in {name!r}; expected a file in the same folder or below it"
            )
        try:
            found.setdefault(name, []).append((int(place.get("offset", 0)), int(place.get("length", -1))))
        except ValueError as error:
            raise InputError(f"cannot read `{path}`: the place of its weights is {place}; {error}") from error
    return found


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    if message.DESCRIPTOR.full_name == "onnx.TensorProto":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from _tensors(part)
