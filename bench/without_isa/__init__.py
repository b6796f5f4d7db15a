"""A run in which every engine takes the CPU for one with fewer instructions than it has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from .places import places, run

__all__ = ["HIDDEN", "SETS", "VARIABLES", "environment", "has"]

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
