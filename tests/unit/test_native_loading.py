"""Finding the native library: what is said when something is missing, and what importing the package does not do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tvm_byoc_dnnl import _native
from tvm_byoc_dnnl.errors import NativeLibraryError

MISSING = "{}: cannot open shared object file: No such file or directory"


@pytest.fixture
def unloaded(monkeypatch, tmp_path):
    """As in a fresh process, with a library file that exists."""
    library = tmp_path / "libtvm_byoc_dnnl.so"
    library.write_bytes(b"not a library")
    monkeypatch.setattr(_native, "_handle", None)
    monkeypatch.setattr(_native, "_LIBRARY", library)
    return library


def fail_with(monkeypatch, message: str, dnnl: str | None = None) -> list[str]:
    """Make the dynamic linker fail for our library with `message`, and for libdnnl with `dnnl`. Returns attempts."""
    attempts: list[str] = []

    def cdll(path: str) -> object:
        attempts.append(Path(path).name)
        if Path(path).name == "libtvm_byoc_dnnl.so":
            raise OSError(message)
        if dnnl is not None:
            raise OSError(dnnl)
        return object()

    monkeypatch.setattr(_native.ctypes, "CDLL", cdll)
    return attempts


def test_library_not_built(unloaded):
    unloaded.unlink()
    with pytest.raises(NativeLibraryError, match=r"not built.*does not exist.*pip install") as error:
        _native.load()
    assert str(unloaded) in str(error.value)
    assert not _native.available()


@pytest.mark.parametrize(
    ("message", "dnnl", "cure"),
    [
        pytest.param(MISSING.format("libdnnl.so.3"), MISSING.format("libdnnl.so.3"), "onednn-cpu-gomp", id="no_dnnl"),
        pytest.param("undefined symbol: dnnl_new_function", None, "3.2 or newer", id="old_dnnl"),
        pytest.param(MISSING.format("libgomp.so.1"), None, "libgomp1", id="no_gomp"),
        pytest.param(MISSING.format("libdnnl.so.3"), MISSING.format("libgomp.so.1"), "libgomp1", id="dnnl_has_no_gomp"),
        pytest.param("undefined symbol: _ZN3tvm3ffi5ErrorE TVMFFIError", None, "apache-tvm-ffi", id="other_tvm_ffi"),
        pytest.param("file too short", None, "reinstall", id="anything_else"),
    ],
)
def test_each_failure_has_its_cure(unloaded, monkeypatch, message, dnnl, cure):
    attempts = fail_with(monkeypatch, message, dnnl)
    with pytest.raises(NativeLibraryError) as error:
        _native.load()
    for part in (str(unloaded), message, "Searched: ", cure):
        assert part in str(error.value)
    assert attempts[0] == attempts[-1] == "libtvm_byoc_dnnl.so"  # as it is, and again after libdnnl
    assert isinstance(error.value, ImportError)


def test_dnnl_is_found_through_its_wheel(unloaded, monkeypatch):
    """The first attempt fails as if the run path did not reach libdnnl; mapping it by path cures that."""
    mapped: list[str] = []

    def cdll(path: str) -> object:
        name = Path(path).name
        if name == "libtvm_byoc_dnnl.so" and not mapped:
            raise OSError(MISSING.format("libdnnl.so.3"))
        mapped.append(name)
        return object()

    monkeypatch.setattr(_native.ctypes, "CDLL", cdll)
    _native.load()
    assert mapped == ["libdnnl.so.3", "libtvm_byoc_dnnl.so"]


def test_loaded_once_by_many_threads(unloaded, monkeypatch):
    loads: list[str] = []
    monkeypatch.setattr(_native.ctypes, "CDLL", lambda path: loads.append(path) or object())
    threads = [threading.Thread(target=_native.load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _native.load()
    assert loads == [str(unloaded)]


def test_importing_the_package_loads_nothing_native():
    code = "import tvm_byoc_dnnl; print(any('dnnl' in line for line in open('/proc/self/maps') if '.so' in line))"
    env = os.environ | {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}  # `import tvm` loads it where the package is installed
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert ran.stdout.split()[-1] == "False"


@pytest.mark.native
def test_functions_are_registered():
    for name in ("ModuleCreate", "Probe", "Info", "UseOpenMPForTVM"):
        assert callable(_native.function(f"tvm_byoc_dnnl.{name}"))
