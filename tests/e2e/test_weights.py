"""Weights of an exported model: beside the code and of any size, packed once, and never twice in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.weights_models import TOKENS, weighty_model
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.ir.relax_utils import make_constant

ROWS = 3000
TOKEN_NUMBERS = np.arange(TOKENS) * 17

# Memory is that of a process which has compiled nothing; a small model first, since the libraries' own part is none
# of the weights'.
MEASURE = """
import json, sys, numpy as np, tvm_byoc_dnnl as byoc
warm, path, inputs, outputs = sys.argv[1:]
def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
byoc.load(warm)(np.arange(7))
before = memory("VmRSS")
run = byoc.load(path)
loaded = memory("VmRSS")
np.save(outputs, run(np.load(inputs)))
print(json.dumps({"loaded": loaded - before, "run": memory("VmRSS") - before, "peak": memory("VmHWM") - before}))
"""


def in_a_fresh_process(path: Path, value: np.ndarray, folder: Path) -> tuple[dict[str, int], np.ndarray]:
    """Bytes by which the memory grew, and the result."""
    warm = folder / "warm.so"
    byoc.compile(weighty_model(64, 1, 100)[0]).export_library(str(warm))
    np.save(folder / "x.npy", value)
    command = [sys.executable, "-c", MEASURE, *map(str, (warm, path, folder / "x.npy", folder / "y.npy"))]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1]), np.load(folder / "y.npy")


def kinds(module: tvm.runtime.Module) -> list[str]:
    return [module.kind, *(kind for imported in module.imports for kind in kinds(imported))]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    """2.3 MB of a region's weights and 3 MB of the host's."""
    path = tmp_path_factory.mktemp("weights") / "m.so"
    byoc.compile(weighty_model(256, 9, ROWS)[0]).export_library(str(path))
    return path


@pytest.fixture(scope="module")
def reference():
    return weighty_model(256, 9, ROWS)[1]


def test_weights_are_in_the_file_once(exported, reference):
    weights = 4 * 256 * (9 * 256 + ROWS)
    assert weights < exported.stat().st_size < weights + 50_000
    run = byoc.load(exported)
    assert_right(run(TOKEN_NUMBERS), reference(TOKEN_NUMBERS))
    assert "byoc_weights" in kinds(run.module)
    assert "const_loader" not in kinds(run.module)


def test_before_export_the_weights_are_tvms_tensors(reference):
    run = byoc.Runner(byoc.compile(weighty_model(256, 9, ROWS)[0]))
    assert_right(run(TOKEN_NUMBERS), reference(TOKEN_NUMBERS))


def test_tvm_compiles_exports_and_loads_the_same(tmp_path, reference):
    mod = byoc.partition(weighty_model(256, 9, ROWS)[0])
    tvm.compile(mod, "llvm", relax_pipeline="byoc").export_library(str(tmp_path / "m.so"))
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "m.so")), tvm.cpu())
    got = vm["main"](tvm.runtime.tensor(TOKEN_NUMBERS)).numpy()
    assert_right(got, reference(TOKEN_NUMBERS))


def test_memory_after_loading(tmp_path):
    """68 MB of packed weights, each a little over two huge pages, and 25 MB that the host reads rows of."""
    width, layers, rows = 1030, 16, 6000
    mod, reference = weighty_model(width, layers, rows)
    weights = 4 * width * (width * layers + rows)
    byoc.compile(mod).export_library(str(tmp_path / "m.so"))
    grown, got = in_a_fresh_process(tmp_path / "m.so", TOKEN_NUMBERS, tmp_path)
    assert_right(got, reference(TOKEN_NUMBERS))
    assert grown["loaded"] <= 1.15 * weights, grown
    assert grown["run"] <= 1.15 * weights, grown
    assert grown["peak"] <= 1.3 * weights, grown


def test_a_flipped_bit_in_a_weight_is_one_clear_error(tmp_path):
    mod, _ = weighty_model(256, 2, seed=5)
    byoc.compile(mod).export_library(str(tmp_path / "whole.so"))
    data = bytearray((tmp_path / "whole.so").read_bytes())
    data[len(data) // 2] ^= 4  # nearly all of it is weights
    (tmp_path / "m.so").write_bytes(data)
    for _ in range(2):  # a failure leaves nothing half initialised
        with pytest.raises(byoc.ArtifactError, match=r"weights are damaged: constant .* checksum"):
            byoc.load(tmp_path / "m.so")
    x = np.ones((TOKENS, 256), "float32")
    want = weighty_model(256, 2, seed=5)[1](x)
    # The same weights by the same name, once sound and once not, in one process.
    sound = byoc.load(tmp_path / "whole.so", runtime="tvm")  # mapped for as long as the name refers to it
    assert_right(sound(x), want)
    assert_right(byoc.load(tmp_path / "m.so", runtime="tvm")(x), want)


def test_weights_of_no_loaded_library_are_one_clear_error(exported):
    run = byoc.load(exported)
    weights = next(m for m in run.module.imports if m.kind == "byoc_weights")
    data = bytearray(_native.function("tvm_byoc_dnnl.ModuleBytes")(weights))
    assert _native.function("ffi.Module.load_from_bytes.byoc_weights")(bytes(data)).kind == "byoc_weights"
    other = byoc.compile(weighty_model(64, 1)[0]).mod
    unexported = _native.function("tvm_byoc_dnnl.ModuleBytes")(
        next(m for m in other.imports if m.kind == "byoc_weights")
    )
    with pytest.raises(byoc.ArtifactError, match="exports tvm_byoc_weights_"):
        _native.function("ffi.Module.load_from_bytes.byoc_weights")(unexported)


def test_tied_weights_are_stored_once(tmp_path):
    """A table that the host looks rows up in is a region's matrix, too."""
    table = np.random.default_rng(6).standard_normal((256, 256)).astype("float32")
    x = relax.Var("x", relax.TensorType((TOKENS,), "int64"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.take(make_constant(table), x, axis=0))
            y = bb.emit(relax.op.nn.relu(y))
            y = bb.emit_output(relax.op.matmul(y, make_constant(table.copy())))
        bb.emit_func_output(y)
    byoc.compile(bb.get()).export_library(tmp_path / "m.so")
    run = byoc.load(tmp_path / "m.so")
    want = np.maximum(table[TOKEN_NUMBERS], 0) @ table
    assert_right(run(TOKEN_NUMBERS), want)
    assert (tmp_path / "m.so").stat().st_size < 1.2 * table.nbytes


def test_models_without_weights_have_no_module_for_them():
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.nn.relu(x))
        bb.emit_func_output(y)
    assert "byoc_weights" not in kinds(byoc.compile(bb.get()).mod)


def test_a_constant_that_is_returned_belongs_to_the_caller(tmp_path):
    """It is no view of the file, which cannot be written to."""
    value = np.arange(1 << 15, dtype="float32")
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.sin(x))
        bb.emit_func_output(relax.Tuple([y, make_constant(value)]))
    byoc.compile(bb.get()).export_library(str(tmp_path / "m.so"))
    run = byoc.load(tmp_path / "m.so")
    result = run.run_tvm(tvm.runtime.tensor(np.zeros(4, "float32")))[1]
    np.from_dlpack(result)[:] = 1
    np.testing.assert_array_equal(result.numpy(), 1)


@pytest.mark.large
def test_more_than_2_gb_of_weights(tmp_path):
    """2.4 GB, of which the host reads 0.4: what TVM's own data sections cannot link."""
    width, layers, rows = 4096, 30, 25_000
    weights = 4 * width * (width * layers + rows)
    assert weights > 2.3e9
    mod, reference = weighty_model(width, layers, rows)
    want = reference(TOKEN_NUMBERS)
    byoc.compile(mod).export_library(str(tmp_path / "m.so"))
    del mod, reference
    grown, got = in_a_fresh_process(tmp_path / "m.so", TOKEN_NUMBERS, tmp_path)
    (tmp_path / "m.so").unlink()
    assert_right(got, want)
    assert grown["run"] <= 1.15 * weights, grown
    print(f"weights {weights}, memory grew by {grown}")
