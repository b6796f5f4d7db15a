"""The file of an exported library: whether it is complete and unchanged.

A record with checksums is appended to it, which `codegen_src/native/library_record.h` describes, makes and compares.
"""

from __future__ import annotations

import os
from pathlib import Path

import tvm

from ..core import _native
from ..core.errors import ArtifactError
from ..core.files import opened

_TRIES = 25  # to load a file that is replaced meanwhile


def is_library(path: Path) -> bool:
    """Whether a file is there and begins as an ELF file does."""
    try:
        with opened(path) as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def write_mark(path: Path) -> None:
    """Write an object file to link into a library that `seal` will be called for."""
    _native.function("tvm_byoc_dnnl.WriteMark")(str(path))


def seal(path: Path, key: str = "") -> None:
    """Append the record to a library, or give it one that says what it was made from; other files stay as they are."""
    size, record = _native.function("tvm_byoc_dnnl.LibraryRecord")(str(path), key)
    if record:
        with path.open("r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(record)


def load(path: Path, key: str | None = None) -> tvm.runtime.Module:
    """Check a library, and load what was checked; ``key`` is what it must have been made from.

    Raises
    ------
    OSError
        If there is no such file, or it is none.
    ArtifactError
        If it is no library that can be loaded, or is damaged; or is replaced while it is loaded.
    """
    _native.load()
    for _ in range(_TRIES):
        with opened(path, follow=key is None) as file:
            before = _identity(os.fstat(file.fileno()))
            # of what was opened, under whatever name
            _native.function("tvm_byoc_dnnl.CheckLibrary")(f"/proc/self/fd/{file.fileno()}", str(path), key or "")
        try:
            module = _native.function("tvm_byoc_dnnl.LoadLibrary")(str(path.resolve()))
        except ArtifactError:
            raise
        except Exception as error:
            raise ArtifactError(
                f"{path} is not a library that can be loaded here: {error}; export the model again with this version"
            ) from error
        if _identity(path.stat()) == before:  # else it may be another file that was loaded
            return module
    raise ArtifactError(f"{path} is replaced again and again while it is loaded; load it when it is complete")


def _identity(about: os.stat_result) -> tuple[int, ...]:
    return about.st_dev, about.st_ino, about.st_size
