"""Where a library or a program asks the CPU: the addresses of the instruction CPUID."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

__all__ = ["is_loadable", "places", "run"]

_CPUID = b"\x0f\xa2"
_LOADED, _EXECUTABLE = 1, 1  # the type of a segment that is loaded, and the flag of one with code
_NOP = b"\x90" * 16
#: the distances before the two bytes from which the code is read: wherever the first of them lies inside of an
#: instruction, the others do not, and whoever reads on is soon in step with the code
_BEFORE = range(64, 80)


def is_loadable(path: Path) -> bool:
    """Whether the file is a program or a shared library for this kind of CPU."""
    with path.open("rb") as file:
        head = file.read(20)
    return head[:5] == b"\x7fELF\x02" and head[16:18] in (b"\x02\x00", b"\x03\x00")


def places(path: Path) -> list[int]:
    """The addresses of CPUID in a program or a library.

    Its two bytes also occur inside of other instructions. To read the whole code takes minutes for a library such as
    LLVM, so only what stands before each occurrence is read, from several places, and the most of them decide.
    """
    data = path.read_bytes()
    code, found = bytearray(), {}  # what is read; and by the position of the two bytes in it, their address
    for offset, address, size in _segments(data):
        for match in re.finditer(re.escape(_CPUID), memoryview(data)[offset : offset + size]):
            at = offset + match.start()
            for before in _BEFORE:
                code += data[max(at - before, offset) : at]
                found[len(code)] = address + match.start()
                code += _CPUID + _NOP
    if not found:
        return []
    agree = Counter(found[position] for position in _read(bytes(code)) if position in found)
    return sorted(address for address, count in agree.items() if count > len(_BEFORE) // 2)


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Offset in the file, address and size of each segment with code."""
    (table,) = struct.unpack_from("<Q", data, 32)
    each, count = struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, flags, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, table + i * each)
        if kind == _LOADED and flags & _EXECUTABLE:
            yield offset, address, size


def _read(code: bytes) -> Iterator[int]:
    """The positions of CPUID in bare code, as objdump reads it."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(code)
        file.flush()
        bare = ["--disassemble-all", "--target=binary", "--architecture=i386:x86-64", "--no-show-raw-insn"]
        for line in run("objdump", *bare, file.name):
            position, _, instruction = line.partition(":")
            if instruction.strip() == "cpuid":
                yield int(position, 16)


def run(*command: str | Path) -> Iterator[str]:
    """The lines that a command prints.

    Raises
    ------
    click.ClickException
        If the command is not installed, or if it fails.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise click.ClickException(f"{command[0]} is not installed; Debian has it in gcc or binutils") from error
    with process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise click.ClickException(f"{' '.join(map(str, command))} failed")
