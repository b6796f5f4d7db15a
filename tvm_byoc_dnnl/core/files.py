"""Files by a name that somebody else has given: what is read is a regular file, what is written is whole or not there.

Everything in this package that opens such a file does it here. A pipe would be waited for without end, and a device may
have no end itself, so neither is opened.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from .errors import ExportError, InputError

_logger = logging.getLogger("tvm_byoc_dnnl")

_STREAM = re.compile(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/(\d+)")
_WORKSPACE = "tvm_byoc_dnnl."
_PATIENCE = 200  # hundredths of a second for the reader of a pipe to open it
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


def opened(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """A regular file, opened at once; `OSError` says what another path is. Without ``follow`` no link is opened."""
    links = 0 if follow else os.O_NOFOLLOW
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | links)
    except ValueError as error:  # a name with a null byte
        raise OSError(errno.EINVAL, str(error), repr(path)) from error
    try:
        _expect_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read(path: str | os.PathLike[str], expected: str) -> bytes:
    """The bytes of a regular file; `InputError` says why it cannot be read, and what was ``expected``."""
    try:
        with opened(path) as file:
            return file.read(os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; expected {expected}") from error


def read_text(path: str | os.PathLike[str], expected: str) -> str:
    data = read(path, expected)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: byte {error.start} is not UTF-8; expected {expected}") from error


def append(path: str | os.PathLike[str], data: bytes, end: int | None = None) -> None:
    """Add bytes to a regular file, or make it; all of them or none. What is there behind ``end`` is dropped."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        _expect_regular(os.fstat(descriptor), path)
        if end is not None:
            os.ftruncate(descriptor, end)
        before = os.fstat(descriptor).st_size
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            os.ftruncate(descriptor, before)
            raise


def _expect_regular(about: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "no file")
        raise OSError(errno.EINVAL, f"it is {kind}, expected a file", str(path))


@contextlib.contextmanager
def written(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[Path]:
    """A file to write, which becomes ``path`` when the block ends without an error; `ExportError` says why it cannot.

    Until then it is a file in a folder of its own beside ``path``, which only this user can enter. So after a failure
    the old file is still there, and a process that has mapped the old file keeps it. A device, a pipe that somebody
    reads, or standard output is written to, never replaced. Of a symbolic link, the file that it points to is replaced,
    with a warning; without ``follow`` the link is, as is anything else of this name that is no folder.
    """
    path = Path(path)
    try:
        if follow and _is_stream(path):
            with _own_folder(Path(tempfile.gettempdir()), _WORKSPACE) as folder:
                aside = folder / path.name
                yield aside
                if aside.exists():
                    with aside.open("rb") as source, _stream(path) as stream:
                        shutil.copyfileobj(source, stream)
            return
        target = path
        if follow and path.is_symlink():
            target = path.resolve()
            _logger.warning("%s is a link: what it points to, %s, is replaced", path, target)
        with _own_folder(target.parent, f".{target.stem[:40]}.") as folder:
            yield folder / target.name
            if (folder / target.name).exists():
                os.replace(folder / target.name, target)
    except OSError as error:
        raise _refusal(path, error) from error


@contextlib.contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """A folder to write files to, which are in ``path`` when the block ends without an error; see `written`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _own_folder(path, ".new.") as aside:
            yield aside
            for file in aside.rglob("*"):
                place = path / file.relative_to(aside)
                if file.is_dir():
                    place.mkdir(exist_ok=True)
                else:
                    os.replace(file, place)
    except OSError as error:
        raise _refusal(path, error) from error


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A temporary folder, removed at the end; and by the next one, where a process was killed before."""
    try:
        with _own_folder(Path(tempfile.gettempdir()), _WORKSPACE) as folder:
            yield folder
    except OSError as error:
        place = Path(error.filename or "a temporary file")
        if error.filename is not None and not place.is_relative_to(tempfile.gettempdir()):
            raise  # about another file
        raise ExportError(f"{_refusal(place, error)}, or name another folder: TMPDIR=...") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with written(path) as file:
        file.write_text(text, encoding="utf-8")


def why_not_written(path: str | os.PathLike[str]) -> str | None:
    """Why a file of this name cannot be written, as far as can be said before the work, else ``None``.

    A pipe or a device is no file, apart from what this process has open, such as ``/dev/stdout``.
    """
    path = Path(path)
    if _STREAM.fullmatch(str(path)):
        return None
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            return f"it is {_KINDS.get(stat.S_IFMT(mode), 'no file')}; expected the name of a file"
    except OSError as error:
        if error.errno != errno.ENOENT:
            return f"{error.strerror}; choose another place"
    except ValueError as error:
        return f"{error}; choose another name"
    folder = path.resolve().parent
    if not folder.is_dir():
        return f"no folder {folder}; make it first"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"you may not write to the folder {folder}; choose a place that you may write to"
    return None


def _refusal(path: Path, error: OSError) -> ExportError:
    cure = "make room there" if error.errno in _NO_ROOM else "choose a place that you may write to"
    return ExportError(f"cannot write {path}: {error.strerror or error}; {cure}")


@contextlib.contextmanager
def _own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in another one that only this user can enter; those of processes that no longer exist go."""
    _remove_leftovers(parent, prefix)
    folder = parent / _own_name(prefix)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_stream(path: Path) -> bool:
    """Whether the path names something that a file cannot replace: a device, a pipe, or a file that is open already."""
    return bool(_STREAM.fullmatch(str(path))) or (path.exists() and not path.is_file() and not path.is_dir())


def _stream(path: Path) -> IO[bytes]:
    """The stream behind a path; of a file that is open already, at its position. It waits shortly for a reader."""
    match = _STREAM.fullmatch(str(path))
    if match is not None:
        return os.fdopen(os.dup({"stdout": 1, "stderr": 2}.get(match[1]) or int(match[2])), "wb")
    for left in reversed(range(_PATIENCE)):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if not left:
                raise OSError(error.errno, "no process reads this pipe", str(path)) from error
            time.sleep(0.01)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def _own_name(prefix: str) -> str:
    return f"{prefix}{os.getpid()}-{_process_namespace()}-{secrets.token_hex(8)}"


def _process_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove the folders with names of `_own_name` whose process no longer exists."""
    named = re.compile(rf"{re.escape(prefix)}(\d{{1,9}})-{_process_namespace()}-[0-9a-f]{{16}}")
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            match = named.fullmatch(path.name)
            if match and not _runs(int(match[1])):
                shutil.rmtree(path, ignore_errors=True)  # does nothing to a link


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True
