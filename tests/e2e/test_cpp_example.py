"""examples/cpp: a compiled model in a program without Python, in both outputs, with the bits that Python gets."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, const, data
from tests.isa import isa_limit
from tvm_byoc_dnnl.core._native import LIBRARY
from tvm_byoc_dnnl.patterns.dnnl import library as dnnl

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp"
CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
pytestmark = pytest.mark.skipif(CMAKE is None or shutil.which("g++") is None, reason="needs cmake and g++")


def network(x, ids, w, v):
    """Two inputs of different dtypes, two outputs, a call that stays with TVM between two regions."""
    h = relax.op.nn.relu(relax.op.matmul(relax.op.add(x, relax.op.astype(ids, "float32")), w))
    return relax.op.nn.softmax(relax.op.matmul(relax.op.cumsum(h, axis=1), v), axis=-1), h


OPERANDS = (data(33, 65), data(33, 65, dtype="int32", low=0, high=9), const(65, 129), const(129, 65))
CASE = Case(network, OPERANDS)
WHOLE = Case(lambda x, w: relax.op.nn.relu(relax.op.matmul(x, w)), (data(33, 65), const(65, 129)))
SYMBOLIC = Case(lambda x, w: relax.op.matmul(x, w), (data("n", 64), const(64, 64)), symbols={"n": 3})


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The example, built as its README says."""
    build = tmp_path_factory.mktemp("build")
    configure = [CMAKE, "-S", EXAMPLE, "-B", build, f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (configure, [CMAKE, "--build", build]):
        done = subprocess.run(list(map(str, command)), text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "run_model"


def write_data(case, folder):
    """The files of inputs and expected outputs, as arguments for the program."""
    arrays = [a for o, a in zip(case.operands, case.arrays, strict=True) if not o.constant]
    inputs = [folder / f"in{i}.bin" for i in range(len(arrays))]
    for path, array in zip(inputs, arrays, strict=True):
        array.tofile(path)
    expected = []
    for i, array in enumerate(case.run()):
        array.tofile(folder / f"out{i}.bin")
        expected += ["--expect", folder / f"out{i}.bin"]
    return expected, inputs


def run(program, *arguments, status=0, needs_library=False):
    """Output and errors; nothing of Python's is in the environment, so nothing of it can help.

    Our library finds oneDNN by itself where pip has installed both, but the tests may run from the source tree.
    """
    command = [str(program), *map(str, arguments)]
    environment = {"OMP_WAIT_POLICY": "passive", **isa_limit()}
    if needs_library:
        environment["LD_LIBRARY_PATH"] = str(dnnl.path().parent)
    done = subprocess.run(command, text=True, capture_output=True, env=environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("form", "case"),
    [
        pytest.param("source", CASE, id="source-two_regions"),
        pytest.param("source", WHOLE, id="source-offloaded_whole", marks=pytest.mark.sweep),
        pytest.param("module", CASE, id="module-two_regions"),
        pytest.param("module", WHOLE, id="module-offloaded_whole"),
        pytest.param("module, linked", WHOLE, id="linked-offloaded_whole"),
    ],
)
def test_the_program_gets_the_same_bits(program, case, form, tmp_path):
    expected, inputs = write_data(case, tmp_path)
    ex = byoc.compile(case.module, output=form.partition(",")[0])
    linked = ["-Wl,--no-as-needed", str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"]
    ex.export_library(tmp_path / "model.so", options=linked if form == "module, linked" else [])
    library = ["--library", LIBRARY] if form == "module" else []
    needs = form != "source"
    out, _ = run(program, *library, "--repeat", 3, *expected, tmp_path / "model.so", *inputs, needs_library=needs)
    outputs = case.run()
    for i, array in enumerate(outputs):
        assert f"output {i}: float32 [{', '.join(map(str, array.shape))}], as expected\n" in out
    assert np.ptp(outputs[0]) > 0

    # what it compares with matters
    np.zeros_like(outputs[0]).tofile(tmp_path / "out0.bin")
    out, _ = run(program, *library, *expected, tmp_path / "model.so", *inputs, status=1, needs_library=needs)
    assert "output 0" in out and "differs from" in out


LARGE = Case(lambda x, w: relax.op.nn.relu(relax.op.matmul(x, w)), (data(256, 512), const(512, 512)))
#: of the constructor of libgomp
_NOT_OURS = "leak:libgomp\nleak:unknown module\n"


@pytest.mark.slow
def test_the_library_may_go_before_the_threads_do(tmp_path):
    """LeakSanitizer looks at every thread after the model's library was closed, when the program ends."""
    configure = [CMAKE, "-S", EXAMPLE, "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}"]
    for command in ([*configure, "-DCMAKE_CXX_FLAGS=-fsanitize=leak"], [CMAKE, "--build", tmp_path]):
        subprocess.run(list(map(str, command)), capture_output=True, check=True)
    expected, inputs = write_data(LARGE, tmp_path)
    byoc.compile(LARGE.module, output="source").export_library(tmp_path / "model.so")
    (tmp_path / "known").write_text(_NOT_OURS)
    sanitizer = {"LSAN_OPTIONS": f"suppressions={tmp_path / 'known'}:fast_unwind_on_malloc=0", "OMP_NUM_THREADS": "4"}
    sanitizer |= isa_limit()
    command = [tmp_path / "run_model", "--repeat", "20", *expected, tmp_path / "model.so", *inputs]
    done = subprocess.run(list(map(str, command)), env=sanitizer, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mistakes_are_messages(program, tmp_path):
    _, inputs = write_data(CASE, tmp_path)
    byoc.compile(CASE.module, output="source").export_library(tmp_path / "model.so")
    for arguments, message in [
        ([], "usage:"),
        (["--what", "x"], "unknown option --what"),
        ([tmp_path / "model.so", inputs[0]], "the model has 2 inputs, got 1 files"),
        ([tmp_path / "model.so", inputs[0], tmp_path / "model.so"], "is int32 [33, 65], 8580 bytes"),
        ([tmp_path / "model.so", inputs[0], tmp_path / "none.bin"], "cannot read"),
        (["--library", "/nowhere.so", tmp_path / "model.so", *inputs], "/nowhere.so"),
    ]:
        _, err = run(program, *arguments, status=2)
        assert err.startswith("run_model: ") and message in err

    byoc.compile(SYMBOLIC.module).export_library(tmp_path / "symbolic.so")
    symbolic = ["--library", LIBRARY, tmp_path / "symbolic.so", inputs[0]]
    _, err = run(program, *symbolic, status=2, needs_library=True)
    assert "has a symbolic shape" in err

    byoc.compile(CASE.module).export_library(tmp_path / "module.so")  # without its library
    _, err = run(program, tmp_path / "module.so", *inputs, status=2)
    assert "a loader of that name is not registered" in err
