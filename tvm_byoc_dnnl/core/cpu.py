"""Which CPU this is. LLVM only guesses it, by its instructions, where it does not know the model."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

__all__ = ["cpu_fields", "cpu_kind", "cpu_name", "kind_of"]

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
    """What the kernel says of a core."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def cpu_name() -> str:
    """The name under which the CPU is sold, as the kernel has it."""
    return cpu_fields().get("model name") or platform.processor() or platform.machine()


def cpu_kind() -> str:
    """The microarchitecture by LLVM's name for it, or the numbers of one that is not known here."""
    return kind_of(cpu_fields())


def kind_of(fields: Mapping[str, str]) -> str:
    """The microarchitecture of a CPU of which the kernel says this."""
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
