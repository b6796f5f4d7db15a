"""oneDNN: predicates, lowerings and fusion patterns, which `ops` registers; here is where its library lies.

A process that loads a compiled model needs no more than that.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from pathlib import Path

DNNL = "libdnnl.so.3"
WHEEL = "onednn-cpu-gomp"
_CURE = f"oneDNN ({DNNL}, 3.2 or newer) is missing or too old: pip install {WHEEL}==2023.2.0"


def find(error: str) -> str:
    """Load libdnnl from the folder where pip installed it, so that the linker finds it by its name.

    Returns
    -------
    str
        Where it was searched, and what to do about ``error``, which the linker gave before.
    """
    searched = ["the run path of our library", *_map_wheel()]
    cure = _CURE
    if "libgomp" in f"{error} {searched}":
        from ...vendor import native

        cure = native.OPENMP_CURE
    return f"Searched: {', '.join(searched)}. {cure}"


def _map_wheel() -> list[str]:
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return [f"the wheel {WHEEL} (not installed)"]
    tried = []
    for file in wheel.files or ():
        if file.name != DNNL:
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
