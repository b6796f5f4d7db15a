"""The path of oneDNN's library, advice when it is not found, and the checks of `doctor`."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
from pathlib import Path
from typing import Any

from ...vendor import Examination, NativeLibraryError, native

_DNNL = "libdnnl.so.3"
WHEEL = "onednn-cpu-gomp"
_CURE = f"oneDNN ({_DNNL}, 3.2 or newer) is missing or too old: pip install {WHEEL}==2023.2.0"


def available() -> bool:
    """Whether oneDNN can be loaded here."""
    return native.engine_available("dnnl")


def call(name: str, *args: Any) -> Any:
    """The result of a function of the native library that asks oneDNN."""
    return native.function(f"tvm_byoc_dnnl.{name}")("dnnl", *args)


@functools.cache
def isa() -> str:
    """oneDNN's name of the instruction set that it uses here, such as ``avx512_core_bf16``."""
    return str(native.engine_info("dnnl")["isa"])


@functools.cache
def widened() -> frozenset[str]:
    """The dtypes of 16 bits that oneDNN does not have on this CPU: it computes in float32 in their place."""
    return frozenset(native.engine_info("dnnl")["computed_in_float32"])


def path() -> Path:
    """The file of the oneDNN library that this process uses.

    Raises
    ------
    NativeLibraryError
        If it cannot be loaded, or is not a file of its own.
    """
    native.engine_info("dnnl")
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.partition("/")[2]
        if file.rsplit("/", 1)[-1].startswith("libdnnl.so"):
            return Path("/" + file)
    raise NativeLibraryError(
        f"oneDNN is not a shared library of its own in this process; expected one called {_DNNL}. Build the engine "
        "against a shared oneDNN to use source output"
    )


def find(error: str) -> str:
    """Load libdnnl from the folder where pip installed it, so that the linker finds it by its name.

    Returns
    -------
    str
        Where it was searched, and what to do about ``error``, which the linker gave before.
    """
    searched = ["the run path of our library", *_map_wheel()]
    text = f"{error} {searched}"
    return f"Searched: {', '.join(searched)}. {native.OPENMP_CURE if 'libgomp' in text else _CURE}"


def _map_wheel() -> list[str]:
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return [f"the wheel {WHEEL} (not installed)"]
    tried = []
    for file in wheel.files or ():
        if file.name != _DNNL:
            continue
        path = Path(str(wheel.locate_file(file))).resolve()
        # ctypes.CDLL holds Python's lock while it loads a library; a function that it calls does not.
        ctypes.CDLL(None).dlopen(str(path).encode(), os.RTLD_NOW)
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            tried.append(f"{path} ({error})")
        else:
            tried.append(str(path))
    return tried


_VERBOSE = "prints a line per primitive, which takes longer than small primitives themselves"
_OLD_ISA = "forbids newer instructions"

EXAMINATION = Examination(
    packages=[WHEEL],
    variables={
        "ONEDNN_VERBOSE": _VERBOSE,
        "DNNL_VERBOSE": _VERBOSE,
        "ONEDNN_MAX_CPU_ISA": _OLD_ISA,
        "DNNL_MAX_CPU_ISA": _OLD_ISA,
    },
    prefixes=["ONEDNN_", "DNNL_"],
)
