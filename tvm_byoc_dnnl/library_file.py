"""The file of an exported library: whether it is complete and unchanged.

A record with a checksum is appended to it. Linkers, loaders and TVM read an ELF file from its headers and never read
that record. Weights that are plain data are left out of the checksum: each has one of its own, which is compared when
it is read, so that a file of gigabytes is mapped and not read.
"""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from . import _native
from .errors import ArtifactError

__all__ = ["check", "is_library", "seal"]

_MAGIC = b"tvm_byoc_dnnl checksum 1"
_LENGTH = struct.Struct("<I")
_END_BYTES = _LENGTH.size + len(_MAGIC)
#: the names of the symbols of plain weights begin with this
_WEIGHTS = b"tvm_byoc_weights_"

# System V ABI, chapter 4, for 64-bit files: the header's fields, a section, a symbol.
_SECTIONS_AT, _SECTIONS_SIZE = struct.Struct("<40xQ"), struct.Struct("<58xHH")
_SECTION = np.dtype("u4, u4, u8, u8, u8, u8, u4, u4, u8, u8", align=False)
_SECTION.names = "name", "type", "flags", "address", "offset", "size", "link", "info", "align", "entry"
_SYMBOL = np.dtype("u4, u1, u1, u2, u8, u8", align=False)
_SYMBOL.names = "name", "info", "other", "section", "value", "size"
_DYNAMIC_SYMBOLS = 11


def is_library(path: Path) -> bool:
    """Whether a file is there and begins as an ELF file does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def seal(path: Path) -> None:
    """Append the record to a library that was just linked; a file that is no ELF file stays as it is."""
    with path.open("r+b") as file:
        data = _mapped(file)
        if data[:4].tobytes() != b"\x7fELF":
            return
        skip = _plain_weights(data)
        record = json.dumps({"bytes": len(data), "skip": skip, "checksum": _checksum(data, skip)}).encode()
        file.seek(0, 2)
        file.write(record + _LENGTH.pack(len(record)) + _MAGIC)


def check(path: Path) -> None:
    """Refuse a file that is not a complete ELF file, or whose record has another checksum.

    Mapping a truncated library ends the process with a bus error, and a damaged one computes wrong numbers.

    Raises
    ------
    ArtifactError
        Saying which.
    """
    refused = f"{path} is not a library that can be loaded: "
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:4] != b"\x7fELF":
            raise ArtifactError(f"{refused}no ELF file; expected what export_library wrote")
        (sections_at,) = _SECTIONS_AT.unpack_from(header)
        entry_size, entries = _SECTIONS_SIZE.unpack_from(header)
        size, needed = path.stat().st_size, sections_at + entry_size * entries
        if size < needed:  # the section headers are at the end
            raise ArtifactError(
                f"{refused}it has {size} bytes, its header says {needed}; it was cut off, copy or export it again"
            )
        data = _mapped(file)
    record = _record(data)
    if record is not None and not _fits(data, record):
        raise ArtifactError(
            f"{refused}it is damaged, its checksum is another than when it was exported; copy or export it again"
        )


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


def _fits(data: Any, record: dict[str, Any]) -> bool:
    try:
        return bool(_checksum(data[: record["bytes"]], record["skip"]) == record["checksum"])
    except (KeyError, TypeError, ValueError):  # the record itself is damaged
        return False


def _checksum(data: Any, skip: list[list[int]]) -> int:
    """The checksum of all bytes outside of the ranges, and of the positions of the ranges."""
    places = [0, *(place for first_and_end in skip for place in first_and_end), len(data)]
    kept = [data[start:end] for start, end in zip(places[::2], places[1::2], strict=True)]
    parts = [_native.checksum(tvm_ffi.from_dlpack(part)) for part in kept if len(part)]
    return _native.checksum(tvm_ffi.from_dlpack(np.array([*places, *parts], "uint64")))


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
