"""Finds and loads the native library, on first use and once."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import NativeLibraryError

__all__ = ["INCLUDE", "available", "dnnl_path", "function", "load", "spins_for_long"]

_LIBRARY = Path(__file__).resolve().parent / "lib" / "libtvm_byoc_dnnl.so"
#: oneDNN's C headers, of the version that our library was built with
INCLUDE = _LIBRARY.parent / "include"
_DNNL = "libdnnl.so.3"
_DNNL_WHEEL = "onednn-cpu-gomp"
_DNNL_CURE = f"pip install {_DNNL_WHEEL}==2023.2.0"
#: versions of the library that do what ours was built for: from, below
_DNNL_VERSIONS = ((3, 2), (4, 0))

_SPINS = "GOMP_SPINCOUNT"
_FEW_SPINS = "1000"
_GOMP = re.compile(r"/libgomp\.so[^/\n]*$", re.M)

_lock = threading.RLock()
_handle: ctypes.CDLL | None = None
_spins_for_long = False


def load() -> None:
    """Load the native library if it is not loaded yet. Safe to call from any thread, any number of times.

    Raises
    ------
    NativeLibraryError
        Naming what was searched and the cure, if our library, libdnnl or libgomp is missing or unloadable.
    """
    global _handle
    if _handle is not None:
        return
    with _lock:
        if _handle is None:
            with _few_spins():
                handle = _load()
            _check_dnnl()
            _handle = handle


def available() -> bool:
    """Whether the native library can be loaded here."""
    try:
        load()
    except NativeLibraryError:
        return False
    return True


def function(name: str) -> Callable[..., Any]:
    """A function of the native library by its registered name, e.g. ``"tvm_byoc_dnnl.Probe"``."""
    import tvm_ffi

    load()
    return tvm_ffi.get_global_func(name)


def spins_for_long() -> bool:
    """Whether the threads of OpenMP spin for milliseconds here: somebody had loaded libgomp before us."""
    return _spins_for_long


def dnnl_path() -> Path:
    """The file of the oneDNN library that this process uses.

    Raises
    ------
    NativeLibraryError
        If the native library cannot be loaded, or oneDNN is not a file of its own.
    """
    load()
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if path.rsplit("/", 1)[-1].startswith("libdnnl.so"):
            return Path("/" + path)
    raise NativeLibraryError(
        f"oneDNN is not a shared library of its own in this process; expected one called {_DNNL}. Build "
        f"{_LIBRARY.name} against a shared oneDNN to use source output"
    )


@contextmanager
def _few_spins() -> Iterator[None]:
    """While libgomp is loaded inside, its threads are told to spin for some 10 µs before they sleep.

    By default they spin for milliseconds at the end of each parallel loop, also when another process has the core that
    the last thread of the team needs: a call then takes ten times as long. libgomp reads the variable when it is
    loaded, and never again: so it need not stay set for the processes that this one starts, and it comes too late
    where somebody else has loaded libgomp.
    """
    global _spins_for_long
    if _SPINS in os.environ or "OMP_WAIT_POLICY" in os.environ:  # the user has decided
        yield
        return
    _spins_for_long = bool(_GOMP.search(Path("/proc/self/maps").read_text()))
    os.environ[_SPINS] = _FEW_SPINS
    try:
        yield
    finally:
        del os.environ[_SPINS]


def _load() -> ctypes.CDLL:
    import tvm_ffi  # noqa: F401  (maps libtvm_ffi.so, which our library needs)

    if not _LIBRARY.is_file():
        raise NativeLibraryError(
            f"the native library is not built: {_LIBRARY} does not exist. Install the package with pip "
            "(pip install . builds it), or in a source tree: cmake -S . -B build && cmake --build build && "
            "cmake --install build --prefix ."
        )
    try:
        return ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        first = error
    searched = _preload_dnnl()
    try:
        return ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        raise NativeLibraryError(_explain(error, first, searched)) from error


def _check_dnnl() -> None:
    """Whatever libdnnl the linker found, or somebody mapped before us: its version must be one that we know."""
    import tvm_ffi

    info = tvm_ffi.get_global_func("tvm_byoc_dnnl.Info", allow_missing=True)
    if info is None:
        return
    version = json.loads(info())["dnnl_version"]
    least, below = _DNNL_VERSIONS
    if not least <= tuple(map(int, version.split(".")))[:2] < below:
        mapped = re.findall(r"\S*/libdnnl\S*$", Path("/proc/self/maps").read_text(), re.M)
        raise NativeLibraryError(
            f"oneDNN {version} is loaded ({', '.join(sorted(set(mapped)))}), expected {_dots(least)} or newer, below "
            f"{_dots(below)}: {_DNNL_CURE}, and keep other versions of {_DNNL} off LD_LIBRARY_PATH and LD_PRELOAD"
        )


def _dots(version: tuple[int, int]) -> str:
    return str(version[0]) if version[1] == 0 else ".".join(map(str, version))


def _preload_dnnl() -> list[str]:
    """Map libdnnl from wherever pip put it, so that the linker finds it by its name. Returns what was tried."""
    try:
        wheel = importlib.metadata.distribution(_DNNL_WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return [f"the wheel {_DNNL_WHEEL} (not installed)"]
    searched = [f"the run path of {_LIBRARY.name}"]
    for file in wheel.files or ():
        if file.name != _DNNL:
            continue
        path = Path(str(wheel.locate_file(file))).resolve()
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            searched.append(f"{path} ({error})")
        else:
            searched.append(str(path))
    return searched


def _explain(error: OSError, first: OSError, searched: list[str]) -> str:
    """One message: what cannot be loaded, why, what was searched, what to do."""
    text = f"{error} {first}"
    if "libgomp" in text or any("libgomp" in place for place in searched):
        cure = "the OpenMP runtime libgomp.so.1 is missing: apt-get install libgomp1 (or your system's package)"
    elif "libtvm_ffi" in text or "tvm3ffi" in text or "TVMFFI" in text:
        cure = (
            "this build and the installed apache-tvm-ffi do not fit together: reinstall the package "
            "(pip install --force-reinstall --no-cache-dir tvm-byoc-dnnl)"
        )
    elif "dnnl" in text:
        cure = f"oneDNN ({_DNNL}, 3.2 or newer) is missing or too old: {_DNNL_CURE}"
    else:
        cure = "reinstall the package: pip install --force-reinstall tvm-byoc-dnnl"
    return f"cannot load {_LIBRARY}: {error}. Searched: {', '.join(searched)}. {cure}"
