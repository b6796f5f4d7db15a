"""A vendor's runner in C (examples/c_runner): beside Python, and in its place."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core import _native

pytestmark = pytest.mark.native
SOURCE = Path(__file__).parents[2] / "examples" / "c_runner" / "acme_runner.c"
X = np.array([[1.0, -2.0], [0.5, 4.0]], "float32")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The example, as its first lines say that it is compiled; C++ takes it, too."""
    path = tmp_path_factory.mktemp("runner") / "libtvm_byoc_runner_c_npu.so"
    strict = ["-Wall", "-Wextra", "-Werror", "-I", str(_native.INCLUDE), str(SOURCE)]
    subprocess.run(["c++", "-x", "c++", "-fsyntax-only", *strict], check=True)
    subprocess.run(["cc", "-std=c99", "-shared", "-fPIC", "-o", path, f"-Wl,-soname,{path.name}", *strict], check=True)
    return path


@pytest.fixture
def saved(library, tmp_path):
    """A function: the file of a model whose only call is a region of the runner's."""
    byoc.register_annotate_compiler("c_npu", ["relax.abs"])

    def get(compatibility="acme 1", data=np.float32(3).tobytes(), dtype="float32", after=None):
        @byoc.register_codegen("c_npu", override=True)
        def codegen(functions, options, names):
            symbols = [str(f.attrs["global_symbol"]) for f in functions]
            return [byoc.blob_module("c_npu", symbol, data, compatibility) for symbol in symbols]

        x = relax.Var("x", relax.TensorType(X.shape, dtype))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                value = builder.emit(relax.op.abs(x))
                result = builder.emit_output(after(value) if after else value)
            builder.emit_func_output(result)
        byoc.compile(builder.get(), ["c_npu", "dnnl"], policy=byoc.RegionPolicy()).export_library(tmp_path / "m.so")
        return tmp_path / "m.so"

    byoc.register_blob_runner("c_npu", library=library, options={"device": 0})
    yield get
    byoc.unregister_compiler("c_npu")


@pytest.fixture
def without_python(library):
    """As in a program that has no Python: the native library finds no function that opens bytes."""
    ctypes.CDLL(str(library))  # found by its name from here on
    name = "tvm_byoc_dnnl.OpenBlob"
    in_python = _native.function(name)
    tvm_ffi.registry.remove_global_func(name)
    yield
    tvm_ffi.register_global_func(name, in_python)


def test_it_computes_a_region(saved):
    np.testing.assert_array_equal(byoc.load(saved())(X), X + 3)


def test_its_error_names_the_region(saved):
    run = byoc.load(saved())
    with pytest.raises(byoc.VendorError, match=r"region 'c_npu_0' of 'c_npu': run raised .*out of range at 0"):
        run(X + 1000)
    np.testing.assert_array_equal(run(X), X + 3)


@pytest.mark.parametrize(
    ("compatibility", "data", "options", "message"),
    [
        ("acme 2", b"1234", {}, "for another setting: made for acme 2, and here is acme 1"),
        ("acme 1", b"12", {}, 'cannot be loaded: RuntimeError: 2 bytes with the options {"device": 0}'),
        ("acme 1", b"1234", {"device": 9}, '4 bytes with the options {"device": 9}'),
    ],
)
def test_a_refusal_is_an_error_of_loading(saved, compatibility, data, options, message):
    path = saved(compatibility, data)
    with pytest.raises(byoc.ArtifactError, match=re.escape(message)):
        byoc.load(path, options={"c_npu": options})


def test_what_is_not_optimal_is_a_warning(saved, caplog):
    byoc.load(saved("acme 1.5"))
    assert "works here, but is not optimal: made for acme 1.5" in caplog.text


def test_a_program_without_python_finds_it_by_its_name(saved, without_python):
    run = byoc.load(saved())
    np.testing.assert_array_equal(run(X), X + 3)
    with pytest.raises(RuntimeError, match="region c_npu_0 of compiler c_npu: run: the sum is out of range at 0"):
        run(X + 1000)


@pytest.mark.parametrize(
    ("compatibility", "data", "message"),
    [
        ("acme 2", b"1234", "for another setting: made for acme 2"),
        ("acme 1", b"12", "cannot be loaded: 2 bytes with the options {}"),
    ],
)
def test_a_program_without_python_is_refused_in_the_same_way(saved, without_python, compatibility, data, message):
    path = saved(compatibility, data)
    with pytest.raises(byoc.ArtifactError, match=re.escape(message)):
        byoc.load(path)


def test_the_runtime_without_tvm_says_why_it_cannot_run_it(saved):
    with pytest.raises(byoc.UnsupportedError, match="region c_npu_0 is run by its vendor's own code"):
        byoc.load(saved(after=relax.op.exp), runtime="native")


def test_an_element_type_that_c_does_not_have_is_an_error(saved):
    run = byoc.load(saved(dtype="int16"))
    with pytest.raises(byoc.VendorError, match="has no dtype for a tensor of 16 bits"):
        run(X.astype("int16"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "cannot load the runner"),
        ("int nothing;", "does not export tvm_byoc_blob_runner"),
        ("static const int r[16] = {7}; const void* tvm_byoc_blob_runner(void) { return r; }", "version 7 of"),
        ("static const int r[16] = {1}; const void* tvm_byoc_blob_runner(void) { return r; }", "is NULL"),
    ],
)
def test_a_library_that_is_no_runner_is_an_error_of_loading(saved, tmp_path, source, message):
    path = saved()
    if source is not None:
        (tmp_path / "r.c").write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "r.so", tmp_path / "r.c"], check=True)
    byoc.register_blob_runner("c_npu", library=tmp_path / "r.so")
    with pytest.raises(byoc.ArtifactError, match=message):
        byoc.load(path)


@pytest.mark.parametrize(
    "parts", [{}, {"check": bool}, {"check": bool, "library": "x"}, {"check": bool, "load": bool, "library": "x"}]
)
def test_a_runner_is_functions_or_a_library(parts):
    with pytest.raises(byoc.InputError, match="expects check= and load=, or library="):
        byoc.register_blob_runner("c_npu_other", **parts)


@pytest.mark.parametrize("first", ["memory", "runner"])
def test_a_runner_in_c_has_no_memory_of_a_device(library, first):
    steps = [
        lambda: byoc.register_namespace("c_npu", memory=byoc.DeviceMemory),
        lambda: byoc.register_blob_runner("c_npu", library=library),
    ]
    one, other = steps if first == "memory" else steps[::-1]
    try:
        one()
        with pytest.raises(TypeError, match="memory= of 'c_npu' is for a runner in Python"):
            other()
    finally:
        byoc.unregister_compiler("c_npu")
