"""Finding the native library: what is said when something is missing, and what importing the package does not do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.core.errors import NativeLibraryError
from tvm_byoc_dnnl.patterns import dnnl as vendor
from tvm_byoc_dnnl.runtime import native

MISSING = "{}: cannot open shared object file: No such file or directory"


@pytest.fixture
def unloaded(monkeypatch, tmp_path):
    """As in a fresh process, with a library file that exists."""
    library = tmp_path / "libtvm_byoc_dnnl.so"
    library.write_bytes(b"not a library")
    monkeypatch.setattr(_native, "_handle", None)
    monkeypatch.setattr(_native, "LIBRARY", library)
    return library


def fail_with(monkeypatch, message: str) -> list[str]:
    """Make the dynamic linker fail with `message`. Returns attempts."""
    attempts: list[str] = []

    def cdll(path: str) -> object:
        attempts.append(Path(path).name)
        raise OSError(message)

    monkeypatch.setattr(_native.ctypes, "CDLL", cdll)
    return attempts


def test_library_not_built(unloaded):
    unloaded.unlink()
    with pytest.raises(NativeLibraryError, match=r"not built.*does not exist.*pip install") as error:
        _native.load()
    assert str(unloaded) in str(error.value)
    assert not _native.available()


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        pytest.param(MISSING.format("libgomp.so.1"), "libgomp1", id="no_gomp"),
        pytest.param("undefined symbol: _ZN3tvm3ffi5ErrorE TVMFFIError", "apache-tvm-ffi", id="other_tvm_ffi"),
        pytest.param("file too short", "reinstall", id="anything_else"),
    ],
)
def test_each_failure_has_its_cure(unloaded, monkeypatch, message, cure):
    attempts = fail_with(monkeypatch, message)
    with pytest.raises(NativeLibraryError) as error:
        _native.load()
    for part in (str(unloaded), message, "Searched: ", cure):
        assert part in str(error.value)
    assert attempts == ["libtvm_byoc_dnnl.so"]
    assert isinstance(error.value, ImportError)


@pytest.mark.native
def test_a_library_that_another_version_left():
    with pytest.raises(
        NativeLibraryError, match=r"libtvm_byoc_dnnl\.so has no function .*Newer.* another version.*make build"
    ):
        _native.function("tvm_byoc_dnnl.Newer")


def test_a_runtime_that_another_version_left(monkeypatch):
    monkeypatch.setattr(native.ctypes, "CDLL", lambda _path: object())
    with pytest.raises(NativeLibraryError, match=r"has no function tvm_byoc_abi; install the package again"):
        native.Library(Path("libtvm_byoc_runtime.so"))


@pytest.mark.parametrize(
    ("message", "dnnl", "cure"),
    [
        pytest.param(MISSING.format("libdnnl.so.3"), MISSING.format("libdnnl.so.3"), "onednn-cpu-gomp", id="no_dnnl"),
        pytest.param("undefined symbol: dnnl_new_function", None, "3.2 or newer", id="old_dnnl"),
        pytest.param(MISSING.format("libdnnl.so.3"), MISSING.format("libgomp.so.1"), "libgomp1", id="dnnl_has_no_gomp"),
    ],
)
def test_each_failure_of_the_engine_has_its_cure(monkeypatch, message, dnnl, cure):
    attempts = []

    def cdll(path: str | None) -> object:
        if path is None:  # this process, whose dlopen maps the library first
            return SimpleNamespace(dlopen=lambda _path, _mode: None)
        attempts.append(Path(path).name)
        if dnnl is not None:
            raise OSError(dnnl)
        return object()

    monkeypatch.setattr(vendor.ctypes, "CDLL", cdll)
    advice = _native.engine_help("dnnl", message)
    assert attempts == ["libdnnl.so.3"]  # mapped by its path, so that the next attempt finds it by its name
    for part in ("Searched: ", "libdnnl.so.3", cure):
        assert part in advice


def test_an_engine_of_which_no_vendor_knows(monkeypatch):
    advice = _native.engine_help("npu", "libnpu.so.1: cannot open")
    assert "Searched: " in advice
    assert "reinstall" in advice


# What another vendor's model needs is libtvm_byoc_dnnl.so; the folder has neither oneDNN nor its engine.
_WITHOUT_DNNL = """
import ctypes, sys, numpy as np, tvm
from tvm import relax
ctypes.CDLL(sys.argv[1])
vm = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[2]), tvm.cpu())
x = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), np.maximum(x + x, 0))
print(any("libdnnl" in line for line in open("/proc/self/maps")))
try:
    tvm.runtime.load_module(sys.argv[3])
except Exception as error:
    print(error)
"""


@pytest.mark.native
def test_another_vendors_model_needs_no_onednn(tmp_path):
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.nn.relu(bb.emit(relax.op.add(x, x))))
        bb.emit_func_output(out)
    for compiler in ("ccompiler", "dnnl"):
        byoc.compile(bb.get(), compiler=compiler).export_library(tmp_path / f"{compiler}.so")
    lib = shutil.copy(_native.LIBRARY, tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DNNL, lib, tmp_path / "ccompiler.so", tmp_path / "dnnl.so"],
        capture_output=True,
        text=True,
        env=os.environ | {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert ran.returncode == 0, ran.stderr
    mapped, refused = ran.stdout.strip().split("\n", 1)
    assert mapped == "False"
    for part in (str(tmp_path / "libtvm_byoc_engine_dnnl.so"), "No such file", "LD_LIBRARY_PATH"):
        assert part in refused


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
    code = (
        "import re, tvm_byoc_dnnl; maps = open('/proc/self/maps').read(); "
        r"print(bool(re.search(r'/lib(dnnl|tvm_byoc)\w*\.so', maps)))"
    )
    env = os.environ | {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}  # `import tvm` loads it where the package is installed
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert ran.stdout.split()[-1] == "False"


@pytest.mark.native
def test_functions_are_registered():
    for name in ("ModuleCreate", "Probe", "EngineInfo", "Info", "UseCaches"):
        assert callable(_native.function(f"tvm_byoc_dnnl.{name}"))
