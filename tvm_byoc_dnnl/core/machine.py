"""This machine: which CPU it has, what other processes take of it, how its OpenMP waits, what its terminal shows, and
which versions of packages are installed.

Imports nothing of tvm, so that it can be used before tvm is imported.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

# LLVM only guesses a CPU, by its instructions, where it does not know the model.
#: vendor and family → the last model of a range → LLVM's name for the CPUs in it
_AMD: dict[tuple[str, int], dict[int, str]] = {
    ("AuthenticAMD", 0x17): {0x2F: "znver1", 0xFF: "znver2"},
    ("AuthenticAMD", 0x19): {0x0F: "znver3", 0x1F: "znver4", 0x5F: "znver3", 0xFF: "znver4"},
    ("AuthenticAMD", 0x1A): {0xFF: "znver5"},
}
#: model of family 6 → LLVM's name
_INTEL = {
    0x3F: "haswell",
    0x4F: "broadwell",
    0x55: "skylake-avx512",
    0x56: "broadwell",
    0x6A: "icelake-server",
    0x6C: "icelake-server",
    0x8F: "sapphirerapids",
    0xAD: "graniterapids",
    0xAE: "graniterapids-d",
    0xAF: "sierraforest",
    0xCF: "emeraldrapids",
}
_SKYLAKE = 0x55
#: by stepping, those that share the number of Skylake
_SINCE_SKYLAKE = {5: "cascadelake", 6: "cascadelake", 7: "cascadelake", 10: "cooperlake", 11: "cooperlake"}


@cache
def cpu_fields() -> Mapping[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def cpu_name() -> str:
    return cpu_fields().get("model name") or platform.processor() or platform.machine()


def cpu_kind() -> str:
    """The microarchitecture by LLVM's name for it, or the numbers of one that is not known here."""
    return kind_of(cpu_fields())


def kind_of(fields: Mapping[str, str]) -> str:
    try:
        vendor = fields["vendor_id"]
        family, model, stepping = (int(fields[name]) for name in ("cpu family", "model", "stepping"))
    except (KeyError, ValueError):
        return platform.machine()
    if (vendor, family) == ("GenuineIntel", 6):
        kind = _SINCE_SKYLAKE.get(stepping) if model == _SKYLAKE else None
        kind = kind or _INTEL.get(model)
    else:
        kind = next((kind for last, kind in _AMD.get((vendor, family), {}).items() if model <= last), None)
    return kind or f"{vendor} family {family} model {model}"


#: Share of this process's cores; if other processes use more than this, measured times are not reliable.
QUIET = 0.1
# Fields of a row of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal (by other virtual machines).
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)


class Neighbours:
    """A block; ``share``, at its end, is that of the usable cores which other processes and virtual machines took."""

    share: float = 0.0

    def __enter__(self) -> Neighbours:
        self._start = _sample()
        return self

    def __exit__(self, *_: object) -> None:
        busy, own, wall = (after - before for before, after in zip(self._start, _sample(), strict=True))
        cores = len(os.sched_getaffinity(0))
        self.share = min(max((busy - own) / (wall * cores), 0.0), 1.0)

    @property
    def quiet(self) -> bool:
        return self.share <= QUIET


def _sample() -> tuple[float, float, float]:
    """Seconds: of work on the usable cores, of this process's work, of the clock."""
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        rows = []
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = sum(int(row[1:][i]) for row in rows if row and row[0] in usable for i in _BUSY_FIELDS)
    return ticks / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()


_SPINS = "GOMP_SPINCOUNT"
_FEW_SPINS = "10000"
_GOMP = re.compile(r"/libgomp\.so[^/\n]*$", re.M)

_loaded_here = False  # inside of few_spins
_spins_for_long = False


def spins_for_long() -> bool:
    """Whether the threads of OpenMP spin for milliseconds here, because libgomp was loaded before this package."""
    return _spins_for_long


@contextmanager
def few_spins() -> Iterator[None]:
    """While libgomp is loaded inside, by whomever, its threads are told to spin for some 100 µs before they sleep.

    By default they spin for milliseconds at the end of each parallel loop, and the last thread of the team may wait for
    their core. libgomp reads the variable when it is loaded and never again, so it need not stay set.
    """
    global _loaded_here, _spins_for_long
    if _SPINS in os.environ or "OMP_WAIT_POLICY" in os.environ:  # the user has decided, or a caller of this one
        yield
        return
    was_loaded = _is_loaded()
    _spins_for_long = was_loaded and not _loaded_here
    os.environ[_SPINS] = _FEW_SPINS
    try:
        yield
    finally:
        del os.environ[_SPINS]
        _loaded_here |= not was_loaded and _is_loaded()


def _is_loaded() -> bool:
    return bool(_GOMP.search(Path("/proc/self/maps").read_text()))


@contextmanager
def progress(message: str, *, at_prompt: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on a terminal which work is being done; the value changes the message.

    A program has no prompt. Messages of functions that are called there as well are for a prompt, or a notebook, alone.
    """
    is_shown = at_prompt == hasattr(sys, "ps1")
    if not is_shown or not sys.stderr.isatty():
        if is_shown and at_prompt:
            print(message, file=sys.stderr)
        yield lambda message: None
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False, markup=False).status(message) as status:
        yield status.update


@cache
def version_of(distribution: str) -> str:
    """The version of a distribution, ``""`` where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes long to import

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def own_version() -> str:
    """The version of this package; one that says so of a source tree on PYTHONPATH."""
    return version_of("tvm-byoc-dnnl") or "0.0.0+source"
