"""The file of an exported library: whether it is complete and unchanged.

A record with checksums is appended to it. Linkers, loaders and TVM read an ELF file from its headers and never read
that record. Weights that are plain data are left out of the first checksum: each has one of its own, which is compared
when it is read, so that a file of gigabytes is mapped and not read. The second is of those weights.

A file whose end is damaged must not pass for somebody else's library, so a symbol says inside of it that it had a
record: its name lies near the file's beginning and near its end, and its data among the weights.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tvm
import tvm_ffi

from ..core import _native
from ..core.errors import ArtifactError
from ..core.files import opened

_MAGIC = b"tvm_byoc_dnnl checksum 1"
_LENGTH = struct.Struct("<I")
_TRIES = 25  # to load a file that is replaced meanwhile
_END_BYTES = _LENGTH.size + len(_MAGIC)
#: the name of a symbol of every library that has a record
_MARK = b"tvm_byoc_dnnl_has_a_checksum"
#: the names of the symbols of plain weights begin with this
_WEIGHTS = b"tvm_byoc_weights_"

# System V ABI, chapters 4 and 5, for 64-bit files: the header's fields, a section, a symbol, a segment.
_SECTIONS_AT, _SECTIONS_SIZE = struct.Struct("<40xQ"), struct.Struct("<58xHH")
_SECTION = np.dtype("u4, u4, u8, u8, u8, u8, u4, u4, u8, u8", align=False)
_SECTION.names = "name", "type", "flags", "address", "offset", "size", "link", "info", "align", "entry"
_SYMBOL = np.dtype("u4, u1, u1, u2, u8, u8", align=False)
_SYMBOL.names = "name", "info", "other", "section", "value", "size"
_DYNAMIC_SYMBOLS, _NO_BITS = 11, 8
_SEGMENTS_AT, _SEGMENTS_COUNT = struct.Struct("<32xQ"), struct.Struct("<56xH")
_SEGMENT = np.dtype("u4, u4, u8, u8, u8, u8, u8, u8", align=False)
_SEGMENT.names = "type", "flags", "offset", "address", "physical", "size", "memory", "align"


def is_library(path: Path) -> bool:
    """Whether a file is there and begins as an ELF file does."""
    try:
        with opened(path) as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def write_mark(path: Path) -> None:
    _native.function("tvm_byoc_dnnl.WriteDataObject")(str(path), _MARK.decode(), _MARK)


def seal(path: Path) -> None:
    """Append the record to a library that was just linked; a file that is no ELF file stays as it is."""
    with path.open("r+b") as file:
        data = _mapped(file)
        if data[:4].tobytes() != b"\x7fELF":
            return
        skip = _plain_weights(data)
        checksums = {"checksum": _checksum(data, skip), "weights": _checksum_of_weights(data, skip)}
        _append(file, {"bytes": len(data), "skip": skip, **checksums})


def label(path: Path, key: str) -> None:
    """Say in the record of a sealed library what it was made from."""
    with path.open("r+b") as file:
        record = _record(_mapped(file))
        if record is None:
            raise ArtifactError(f"{path} has no record")
        file.truncate(record["bytes"])
        _append(file, {"key": key, **record})


def _append(file: BinaryIO, record: Mapping[str, Any]) -> None:
    data = json.dumps(record).encode()
    file.seek(0, os.SEEK_END)
    file.write(data + _LENGTH.pack(len(data)) + _MAGIC)


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
            _check(file, path, key)
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


def _check(file: BinaryIO, path: Path, key: str | None) -> None:
    """Refuse a file that is not a complete ELF file, or whose record has another checksum.

    Mapping a truncated library ends the process with a bus error, and a damaged one computes wrong numbers. With
    ``key``, what it must have been made from, its weights are compared with their checksum, too, and a library without
    a record is refused.
    """
    refused = f"{path} is not a library that can be loaded: "
    header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        raise ArtifactError(f"{refused}no ELF file; expected what export_library wrote")
    (sections_at,) = _SECTIONS_AT.unpack_from(header)
    entry_size, entries = _SECTIONS_SIZE.unpack_from(header)
    size, needed = os.fstat(file.fileno()).st_size, sections_at + entry_size * entries
    if size < needed:  # the section headers are at the end
        raise ArtifactError(
            f"{refused}it has {size} bytes, its header says {needed}; it was cut off, copy or export it again"
        )
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = _mapped(file)
    record = _record(data)
    if record is None:
        if mapped.find(_MARK) >= 0:
            raise ArtifactError(
                f"{refused}the record at its end is missing or damaged: it was cut off, or changed after its export "
                "(by strip, patchelf ...); copy or export it again"
            )
        if key is not None:
            raise ArtifactError(f"{refused}it has no record of what it was made from")
        if not _is_sound(data):
            raise ArtifactError(f"{refused}its headers are damaged; copy or export it again")
        return
    if not _fits(data, record, weights=key is not None):
        raise ArtifactError(
            f"{refused}it is damaged, its checksum is another than when it was exported; copy or export it again"
        )
    if key is not None and record.get("key") != key:
        raise ArtifactError(f"{refused}it was made from something else: {record.get('key')!r}, expected {key!r}")


def _is_sound(data: Any) -> bool:
    """Whether an ELF file's own tables lie within it, as far as they say what a library without a record is."""
    sections_at, (_, entries) = _SECTIONS_AT.unpack_from(data)[0], _SECTIONS_SIZE.unpack_from(data)
    try:
        sections = np.frombuffer(data, _SECTION, entries, sections_at)
        (segments_at,) = _SEGMENTS_AT.unpack_from(data)
        segments = np.frombuffer(data, _SEGMENT, _SEGMENTS_COUNT.unpack_from(data)[0], segments_at)
    except (ValueError, struct.error):
        return False
    kept = sections[(sections["type"] != 0) & (sections["type"] != _NO_BITS)]
    ends = [table["offset"].astype(object) + table["size"].astype(object) for table in (kept, segments)]
    inside = all(end <= len(data) for table in ends for end in table)
    return inside and len(segments) > 0 and (not len(sections) or _DYNAMIC_SYMBOLS in sections["type"])


def _mapped(file: Any) -> Any:
    """The file's bytes; they are writable because DLPack needs that, but changes would stay in this process."""
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), "uint8")


def _record(data: Any) -> dict[str, Any] | None:
    """The record after the library's end; ``None`` for a library without one, which another program may have made."""
    end = data[-_END_BYTES:].tobytes()
    if not end.endswith(_MAGIC):
        return None
    (length,) = _LENGTH.unpack_from(end)
    try:
        record = json.loads(data[-_END_BYTES - length : -_END_BYTES].tobytes())
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _fits(data: Any, record: dict[str, Any], *, weights: bool) -> bool:
    try:
        kept, skip = data[: record["bytes"]], record["skip"]
        fits = bool(_checksum(kept, skip) == record["checksum"])
        return fits and (not weights or bool(_checksum_of_weights(kept, skip) == record["weights"]))
    except (KeyError, TypeError, ValueError, OverflowError):  # the record itself is damaged
        return False


def _checksum(data: Any, skip: list[list[int]]) -> int:
    """The checksum of all bytes outside of the ranges, and of the positions of the ranges."""
    places = [0, *(place for first_and_end in skip for place in first_and_end), len(data)]
    kept = zip(places[::2], places[1::2], strict=True)
    return _native.checksum(tvm_ffi.from_dlpack(np.array([*places, *_parts(data, kept)], "uint64")))


def _checksum_of_weights(data: Any, skip: list[list[int]]) -> int:
    return _native.checksum(tvm_ffi.from_dlpack(np.array([0, *_parts(data, skip)], "uint64")))


def _parts(data: Any, ranges: Iterable[Sequence[int]]) -> list[int]:
    parts = [data[start:end] for start, end in ranges]
    return [_native.checksum(tvm_ffi.from_dlpack(part)) for part in parts if len(part)]


def _plain_weights(data: Any) -> list[list[int]]:
    """Start and end, in the file, of the weights that the library exports as data."""
    (sections_at,) = _SECTIONS_AT.unpack_from(data)
    (_, entries) = _SECTIONS_SIZE.unpack_from(data)
    sections = np.frombuffer(data, _SECTION, entries, sections_at)
    ranges: list[list[int]] = []
    for table in sections[sections["type"] == _DYNAMIC_SYMBOLS]:
        names = data[int(sections[table["link"]]["offset"]) :]
        symbols = np.frombuffer(data, _SYMBOL, int(table["size"]) // _SYMBOL.itemsize, int(table["offset"]))
        for symbol in symbols:
            if names[symbol["name"] :][: len(_WEIGHTS)].tobytes() == _WEIGHTS:
                home = sections[symbol["section"]]
                start = int(symbol["value"]) - int(home["address"]) + int(home["offset"])
                ranges.append([start, start + int(symbol["size"])])
    return sorted(ranges)
