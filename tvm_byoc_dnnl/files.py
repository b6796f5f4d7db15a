"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .errors import ExportError

__all__ = ["write_text", "written", "written_folder"]

_logger = logging.getLogger("tvm_byoc_dnnl")

_STREAM = re.compile(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/(\d+)")
_WORKSPACE = "tvm_byoc_dnnl."
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write, which becomes ``path`` when the block ends without an error.

    Until then it is a file in the same folder. So after a failure the old file is still there, and a process that has
    mapped the old file keeps it. A device, a pipe or standard output is written to, never replaced; a symbolic link
    stays, and the file that it points to is replaced, with a warning.

    Raises
    ------
    ExportError
        If it cannot be written; the message says why.
    """
    path = Path(path)
    try:
        if _is_stream(path):
            with tempfile.TemporaryDirectory() as folder:
                aside = Path(folder, path.name)
                yield aside
                if aside.exists():
                    with aside.open("rb") as source, _opened(path) as stream:
                        shutil.copyfileobj(source, stream)
            return
        target = path
        if path.is_symlink():
            target = path.resolve()
            _logger.warning("%s is a link: what it points to, %s, is replaced", path, target)
        _remove_leftovers(target.parent, f".{target.stem}.", target.suffix)
        aside = target.with_name(_own_name(f".{target.stem}.", target.suffix))
        try:
            yield aside
            if aside.exists():
                os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise _refusal(path, error) from error


@contextlib.contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """A folder to write files to, which are in ``path`` when the block ends without an error; see `written`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path, prefix=".") as aside:
            yield Path(aside)
            for file in Path(aside).iterdir():
                os.replace(file, path / file.name)
    except OSError as error:
        raise _refusal(path, error) from error


def _refusal(path: Path, error: OSError) -> ExportError:
    cure = "make room there" if error.errno in _NO_ROOM else "choose a place that you may write to"
    return ExportError(f"cannot write {path}: {error.strerror or error}; {cure}")


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A temporary folder, removed at the end; and by the next one, where a process was killed before."""
    parent = Path(tempfile.gettempdir())
    _remove_leftovers(parent, _WORKSPACE, "")
    folder = parent / _own_name(_WORKSPACE, "")
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file; see `written`."""
    with written(path) as file:
        file.write_text(text, encoding="utf-8")


def _is_stream(path: Path) -> bool:
    """Whether the path names something that a file cannot replace: a device, a pipe, or a file that is open already."""
    return bool(_STREAM.fullmatch(str(path))) or (path.exists() and not path.is_file() and not path.is_dir())


def _opened(path: Path) -> IO[bytes]:
    """The stream behind a path; of a file that is open already, where its position is."""
    match = _STREAM.fullmatch(str(path))
    if match is None:
        return path.open("wb")
    return os.fdopen(os.dup({"stdout": 1, "stderr": 2}.get(match[1]) or int(match[2])), "wb")


def _own_name(prefix: str, suffix: str) -> str:
    """A new name that contains the id of the process that uses it."""
    return f"{prefix}{os.getpid()}-{_process_namespace()}-{secrets.token_hex(4)}{suffix}"


def _process_namespace() -> int:
    """The namespace in which ids of processes are unique."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _remove_leftovers(folder: Path, prefix: str, suffix: str) -> None:
    """Remove the files with names of `_own_name` whose process no longer exists."""
    named = re.compile(rf"{re.escape(prefix)}(\d+)-{_process_namespace()}-[0-9a-f]{{8}}{re.escape(suffix)}")
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = named.fullmatch(path.name)
            if match and not _runs(int(match[1])):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True
