"""A run in which every engine takes the CPU for one with fewer instructions than it has."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

__all__ = ["HIDDEN", "SETS", "VARIABLES", "environment", "has", "is_loadable", "places"]

#: set in the environment of such a run, to the name of what is hidden
HIDDEN = "BYOC_WITHOUT_ISA"
#: what a process of such a run needs in its environment
VARIABLES = ("BYOC_CPUID_SITES", "GLIBC_TUNABLES", "LD_AUDIT", HIDDEN)
#: what can be hidden: Linux's name of it, and the names of what glibc uses by itself, because it asks the CPU before
#: any library can be changed. AVX-512 takes AMX with it, since there is no CPU with AMX alone.
SETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "avx512": ("avx512f", ("AVX512F", "AVX512VL", "AVX512BW", "AVX512CD", "AVX512DQ")),
    "amx": ("amx_tile", ()),
}

#: pytest's handler of SIGILL would take the place of ours
_KEEPS_SIGILL = "-p no:faulthandler"
#: beside an auditing library the loader keeps too little memory of threads for the runtimes of sanitizers
_ROOM = "glibc.rtld.optional_static_tls=1000000"


def has(hidden: str) -> bool:
    """Whether this CPU has what would be hidden."""
    return SETS[hidden][0] in Path("/proc/cpuinfo").read_text().split()


def environment(hidden: str, libraries: Iterable[Path], folder: Path) -> dict[str, str]:
    """Variables for a process in which CPUID answers without an instruction set wherever these libraries ask.

    Parameters
    ----------
    hidden : str
        A key of `SETS`: ``avx512`` hides AVX-512 and AMX, ``amx`` hides AMX only.
    libraries : Iterable[Path]
        Shared libraries and programs. What others ask the CPU is answered as always. A process must leave the signal
        SIGILL alone, as pytest does here.
    folder : Path
        Where cpuid.c is compiled, and where the places of CPUID are kept for the next run.

    Returns
    -------
    dict[str, str]
        To be added to the environment.

    Raises
    ------
    click.ClickException
        If there is no C compiler or no ``objdump``, or if one of them fails.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    audit, known, sites = (folder / name for name in ("libcpuid.so", "known", "sites"))
    source = Path(__file__).with_name("cpuid.c")
    list(run(os.environ.get("CC", "cc"), "-O2", "-Wall", "-shared", "-fPIC", source, "-o", audit))
    rows = [tuple(line.split("\t")) for line in known.read_text().splitlines()] if known.is_file() else []
    found = {(path, changed): addresses for path, changed, addresses in rows if _changed(path) == changed}
    for library in {path.resolve() for path in libraries} - {audit}:
        key = str(library), str(_changed(str(library)))
        if key not in found:
            found[key] = " ".join(f"{address:x}" for address in places(library))
    known.write_text("".join(f"{path}\t{changed}\t{at}\n" for (path, changed), at in found.items()))
    sites.write_text("".join(f"{path}\t{at}\n" for (path, _), at in found.items() if at))
    variables = {"BYOC_CPUID_SITES": str(sites), "LD_AUDIT": str(audit), HIDDEN: hidden}
    variables["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} {_KEEPS_SIGILL}".strip()
    tunables = [_ROOM]
    if of_glibc := SETS[hidden][1]:
        tunables.append("glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in of_glibc))
    variables["GLIBC_TUNABLES"] = ":".join(tunables)
    return variables


def _changed(path: str) -> str | None:
    """When a file was changed, in nanoseconds; none without the file."""
    return str(os.stat(path).st_mtime_ns) if os.path.exists(path) else None


# ---- where a library or a program asks the CPU: the addresses of the instruction CPUID ---------------

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
