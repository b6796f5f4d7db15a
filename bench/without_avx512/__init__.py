"""A run in which every engine takes the CPU for one with AVX2 only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

__all__ = ["HIDDEN", "environment"]

#: set in the environment of such a run
HIDDEN = "BYOC_WITHOUT_AVX512"
_CPUID = b"\x0f\xa2"
#: what the C library uses by itself: it asks the CPU before any library can be changed
_OF_GLIBC = ["AVX512F", "AVX512VL", "AVX512BW", "AVX512CD", "AVX512DQ"]


def environment(libraries: Iterable[Path], folder: Path) -> dict[str, str]:
    """Variables for a process in which CPUID answers without AVX-512 and AMX wherever these libraries ask.

    Parameters
    ----------
    libraries : Iterable[Path]
        Shared libraries. What others ask the CPU is answered as always.
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
    list(_run(os.environ.get("CC", "cc"), "-O2", "-Wall", "-shared", "-fPIC", source, "-o", audit))
    rows = [tuple(line.split("\t")) for line in known.read_text().splitlines()] if known.is_file() else []
    places = {(path, changed): found for path, changed, found in rows}
    for library in {path.resolve() for path in libraries}:
        key = str(library), str(library.stat().st_mtime_ns)
        if key not in places:
            places[key] = " ".join(_places(library))
    known.write_text("".join(f"{path}\t{changed}\t{found}\n" for (path, changed), found in places.items()))
    now = ((path, found) for (path, changed), found in places.items() if found and _changed(path) == changed)
    sites.write_text("".join(f"{path}\t{found}\n" for path, found in now))
    return {
        "BYOC_CPUID_SITES": str(sites),
        "LD_AUDIT": str(audit),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join(f"-{name}" for name in _OF_GLIBC),
        HIDDEN: "1",
    }


def _changed(path: str) -> str | None:
    """When a file was changed, in nanoseconds; none without the file."""
    return str(os.stat(path).st_mtime_ns) if os.path.exists(path) else None


def _places(library: Path) -> Iterator[str]:
    """The addresses of CPUID in a library, hexadecimal."""
    if _CPUID not in library.read_bytes():
        return
    click.echo(f"CPUID is searched in {library.name}", err=True)
    for line in _run("objdump", "--disassemble", "--no-show-raw-insn", library):
        address, _, instruction = line.partition(":")
        if instruction.strip() == "cpuid":
            yield address.strip()


def _run(*command: str | Path) -> Iterator[str]:
    """The lines that a command prints."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError as error:
        raise click.ClickException(f"{command[0]} is not installed; Debian has it in gcc or binutils") from error
    with process:
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise click.ClickException(f"{' '.join(map(str, command))} failed")
