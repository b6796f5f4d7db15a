"""Finds and loads the native library, on first use and once; and the engines beside it, when they are asked for.

Checks and loads the libraries that it or a vendor's compiler made.

The number of threads of single calls, whatever the rest of the process uses.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import errors
from .errors import ArtifactError, NativeLibraryError
from .files import opened
from .machine import few_spins

#: our library
LIBRARY = Path(__file__).resolve().parents[1] / "lib" / "libtvm_byoc_dnnl.so"
#: C headers that emitted source may include
INCLUDE = LIBRARY.parent / "include"
_ENGINE = "libtvm_byoc_engine_{}.so"
#: advice for an error that names libgomp
OPENMP_CURE = "the OpenMP runtime libgomp.so.1 is missing: apt-get install libgomp1 (or your system's package)"

_TRIES = 25  # to load a file that is replaced meanwhile
_lock = threading.RLock()
_handle: ctypes.CDLL | None = None
_available: set[str] = set()


def load() -> None:
    """Load the native library once; `NativeLibraryError` names the paths that were searched and the cure."""
    global _handle
    if _handle is not None:
        return
    with _lock:
        if _handle is None:
            with few_spins():
                handle = _load()
            _handle = handle


def is_loaded() -> bool:
    return _handle is not None


def available() -> bool:
    try:
        load()
    except NativeLibraryError:
        return False
    return True


def function(name: str) -> Callable[..., Any]:
    """A registered function of the native library; `NativeLibraryError` if it, or the library, is missing."""
    ffi = registry()
    load()
    found = ffi.get_global_func(name, allow_missing=True)
    if found is None:
        raise NativeLibraryError(
            f"{LIBRARY} has no function {name}, which this package calls: it was left by another version. "
            "Reinstall the package (pip install --force-reinstall tvm-byoc-dnnl), or in a source tree: make build"
        )
    return found


#: the errors that C++ throws by name, and those of Python behind C++: they arrive as the package's classes
_ERRORS = (
    *("Graph", "Input", "InputValue", "InputIndex", "ArgumentType", "MissingFile", "Unsupported", "Artifact"),
    *("Export", "Vendor", "NativeLibrary", "OutOfMemory", "OutOfFiles"),
)


@functools.cache
def registry() -> Any:
    """tvm_ffi, which knows our errors, and what our library asks of Python when an engine does not load."""
    import tvm_ffi

    for kind in _ERRORS:
        tvm_ffi.register_error(f"Byoc{kind}Error", getattr(errors, f"{kind}Error"))
    # It knows the exceptions that are errors. Ctrl-C inside of a pass or a hook would come out as `RuntimeError('')`,
    # and be taken for a vendor's failure on its way, and `sys.exit(7)` as `RuntimeError('7')`, which says nothing.
    for stop in (KeyboardInterrupt, SystemExit):
        tvm_ffi.register_error(stop.__name__, stop)
    tvm_ffi.register_global_func("tvm_byoc_dnnl.EngineHelp", engine_help, override=True)
    return tvm_ffi


def checksum(tensor: Any) -> int:
    """The xxHash64 of a dense tensor's bytes."""
    return int(function("tvm_byoc_dnnl.Checksum")(tensor)) % (1 << 64)


def engines() -> list[str]:
    """Names of the engines whose libraries are in the same folder as ours."""
    prefix, suffix = _ENGINE.split("{}")
    files = LIBRARY.parent.glob(_ENGINE.format("*"))
    return sorted(file.name.removeprefix(prefix).removesuffix(suffix) for file in files)


def engine_help(name: str, error: str) -> str:
    """Map the libraries that an engine needs, and say where they were searched: for ``error``, the linker's.

    The engine has the name of its vendor, whose package has a function ``find``. Our library calls this where Python
    has registered it, and `map_engines` else.
    """
    try:
        vendor = importlib.import_module(f"{__name__.partition('.')[0]}.patterns.{name}")
    except ImportError:
        return advice(error)
    return vendor.find(error)


def map_engines() -> None:
    """Map the engines, so that our library has them where it calls no Python."""
    for name in engines():
        try:
            ctypes.CDLL(str(LIBRARY.parent / _ENGINE.format(name)))
        except OSError as error:  # whoever loads it next says why, if it is missing still
            engine_help(name, str(error))


def engine_info(name: str) -> dict[str, Any]:
    """Facts about an engine and its library, which are loaded for it; `NativeLibraryError` names paths and cure."""
    return json.loads(function("tvm_byoc_dnnl.EngineInfo")(name))


def engine_available(name: str) -> bool:
    if name not in _available:
        try:
            engine_info(name)
        except NativeLibraryError:
            return False
        _available.add(name)
    return True


def _load() -> ctypes.CDLL:
    _map_ffi()
    if not LIBRARY.is_file():
        raise NativeLibraryError(
            f"the native library is not built: {LIBRARY} does not exist. Install the package with pip "
            "(pip install . builds it), or in a source tree: cmake -S . -B build && cmake --build build && "
            "cmake --install build --prefix ."
        )
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise NativeLibraryError(f"cannot load {LIBRARY}: {error}. {advice(str(error))}") from error


def _map_ffi() -> None:
    """Map libtvm_ffi.so, which our library needs: the package around it imports PyTorch where that is installed."""
    if "tvm_ffi" in sys.modules:
        return
    spec = find_spec("tvm_ffi")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        with suppress(OSError):  # it lies elsewhere
            ctypes.CDLL(str(Path(folder, "lib", "libtvm_ffi.so")), ctypes.RTLD_GLOBAL)
            return
    import tvm_ffi  # noqa: F401


def advice(error: str) -> str:
    """The paths where our libraries were searched, and what to do."""
    if "libgomp" in error:
        cure = OPENMP_CURE
    elif "libtvm_ffi" in error or "tvm3ffi" in error or "TVMFFI" in error:
        cure = (
            "this build and the installed apache-tvm-ffi do not fit together: reinstall the package "
            "(pip install --force-reinstall --no-cache-dir tvm-byoc-dnnl)"
        )
    else:
        cure = "reinstall the package: pip install --force-reinstall tvm-byoc-dnnl"
    return f"Searched: {LIBRARY.parent} and its run path. {cure}"


def load_library(path: Path, key: str | None = None) -> Any:
    """Check a library, and load what was checked; ``key`` is what it must have been made from.

    Raises `OSError` if there is no such file, or it is none; `ArtifactError` if it is no library that can be loaded, or
    is damaged, or is replaced while it is loaded.
    """
    load()
    for _ in range(_TRIES):
        with opened(path, follow=key is None) as file:
            before = _identity(os.fstat(file.fileno()))
            # of what was opened, under whatever name
            function("tvm_byoc_dnnl.CheckLibrary")(f"/proc/self/fd/{file.fileno()}", str(path), key or "")
        try:
            module = function("tvm_byoc_dnnl.LoadLibrary")(str(path.resolve()))
        except ArtifactError:
            raise
        except Exception as error:
            raise ArtifactError(
                f"{path} is not a library that can be loaded here: {error}; export the model again with this version"
            ) from error
        if _identity(path.stat()) == before:  # else it may be another file that was loaded
            return module
    raise ArtifactError(f"{path} is replaced again and again while it is loaded; load it when it is complete")


def _identity(about: os.stat_result) -> tuple[int, ...]:
    return about.st_dev, about.st_ino, about.st_size


def regions(modules: Iterable[Any], having: str = "plans") -> dict[str, Any]:
    """Symbol → runtime module, of the regions among these modules and their imports that have such a function."""
    found: dict[str, Any] = {}
    for module in modules:
        if module.implements_function(having):
            found[str(module["get_symbol"]())] = module
        found |= regions(module.imports, having)
    return found


def limited(call: Callable[..., Any], threads: int | None) -> Callable[..., Any]:
    """The call; while it runs, the parallel loops that its thread starts use so many threads."""
    if threads is None:
        return call
    return functools.partial(function("tvm_byoc_dnnl.CallWithThreads"), threads, call)
