"""A library built on one CPU and run on another: instruction sets limited by oneDNN's ONEDNN_MAX_CPU_ISA.

Each process has its own limit, since oneDNN reads it once. What is not there on this machine is left out by oneDNN
itself: a limit is an upper one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.harness import assert_right

LEVELS = ("SSE41", "AVX2", "AVX512_CORE", "DEFAULT")

# Convolutions whose channels fill no vector, a matmul, a layer norm and a pool: each has its own packed layouts.
BUILD = """
import sys, numpy as np
from tvm import relax
import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.ir.relax_utils import make_constant

rng = np.random.default_rng(0)

def const(*shape):
    return make_constant((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype("float32"))

x = relax.Var("x", relax.TensorType((2, 3, 17, 19), "float32"))
bb = relax.BlockBuilder()
with bb.function("main", [x]):
    with bb.dataflow():
        y = bb.emit(relax.op.nn.conv2d(x, const(20, 3, 3, 3), padding=1, strides=2))
        y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(y, const(1, 20, 1, 1)))))
        z = bb.emit(relax.op.nn.conv2d(y, const(40, 5, 1, 1), groups=4))
        y = bb.emit(relax.op.nn.conv2d(y, const(20, 1, 3, 3), padding=1, groups=20))
        y = bb.emit(relax.op.nn.max_pool2d(bb.emit(relax.op.concat([y, z], 1)), (3, 3), strides=2))
        y = bb.emit(relax.op.reshape(y, (2, 60 * 4 * 4)))
        y = bb.emit(relax.op.matmul(y, const(960, 37)))
        y = bb.emit(relax.op.nn.layer_norm(y, const(37), const(37), axes=[-1]))
        y = bb.emit_output(relax.op.nn.softmax(y))
    bb.emit_func_output(y)
ex = byoc.compile(bb.get())
for path in sys.argv[1:]:
    ex.export_library(path)
"""

RUN = """
import sys, numpy as np, tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core import _native
inputs, outputs, *libraries = sys.argv[1:]
isa = _native.engine_info("dnnl")["isa"]
np.savez(outputs, *(byoc.load(path)(np.load(inputs)) for path in libraries), isa=isa)
"""


def run(code: str, level: str, *args: Path) -> None:
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": level}
    ran = subprocess.run([sys.executable, "-c", code, *map(str, args)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, f"{level}: {ran.stderr[-2000:]}"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> dict[str, Path]:
    """One library per level that it was built at."""
    folder = tmp_path_factory.mktemp("isa")
    paths = {level: folder / f"{level}.so" for level in LEVELS}
    for level, path in paths.items():
        run(BUILD, level, path)
    return paths


@pytest.fixture(scope="module")
def results(libraries, tmp_path_factory) -> dict[tuple[str, str], np.ndarray]:
    """By the level that it was built at, and the one that it ran at; ``("isa", level)`` says what that was."""
    folder = tmp_path_factory.mktemp("results")
    np.save(folder / "x.npy", np.random.default_rng(1).standard_normal((2, 3, 17, 19)).astype("float32"))
    found = {}
    for level in LEVELS:
        run(RUN, level, folder / "x.npy", folder / f"{level}.npz", *libraries.values())
        arrays = np.load(folder / f"{level}.npz")
        found |= {(built, level): arrays[f"arr_{i}"] for i, built in enumerate(LEVELS)}
        found["isa", level] = arrays["isa"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("built", LEVELS)
@pytest.mark.parametrize("ran", LEVELS)
def test_built_on_one_cpu_runs_on_another(results, built, ran):
    got, want = results[built, ran], results["DEFAULT", "DEFAULT"]
    assert got.shape == (2, 37)
    assert_right(got, want, 1e-4, least=0.01, elementwise=True)
    assert_right(got.sum(-1), np.ones(2, "float32"), 1e-5)


@pytest.mark.slow
def test_the_levels_are_not_all_the_same(results):
    """Or the test above says nothing: oneDNN chooses other implementations, with other layouts."""
    levels = {str(results["isa", level]) for level in LEVELS}
    assert len(levels) >= 2, levels


HALVES = """
import sys, ml_dtypes, numpy as np
from tvm import relax
import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.ir.relax_utils import make_constant

what, folder = sys.argv[1:]
rng = np.random.default_rng(0)
weights = rng.standard_normal((64, 32)).astype("float32")
given = rng.standard_normal((2, 64)).astype("float32")
wanted = np.maximum(given @ weights, 0)
for dtype, precision in (("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16")):
    path = f"{folder}/{dtype}.so"
    if what == "build":
        x = relax.Var("x", relax.TensorType((2, 64), dtype))
        bb = relax.BlockBuilder()
        with bb.function("main", [x]):
            with bb.dataflow():
                y = bb.emit_output(relax.op.nn.relu(relax.op.matmul(x, make_constant(weights, dtype))))
            bb.emit_func_output(y)
        byoc.compile(bb.get(), precision=precision).export_library(path)
    else:
        got = byoc.load(path)(given.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))
        assert got.dtype == dtype
        error = np.abs(got.astype("float32") - wanted).max() / wanted.max()
        isa = byoc.core._native.engine_info("dnnl")["isa"]
        low = dtype == "bfloat16" or (precision == "bfloat16" and isa.startswith("avx512"))
        assert (1e-3 if low else 0) <= error < (1e-2 if low else 1e-3 if dtype == "float16" else 1e-5), (dtype, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("built", "ran"), [("DEFAULT", "SSE41"), ("DEFAULT", "AVX2"), ("AVX2", "DEFAULT")])
def test_a_dtype_that_the_cpu_lacks_is_computed_in_float32(tmp_path, built, ran):
    """One file: bfloat16 needs AVX-512, float16 a newer CPU still; others compute in float32 in their place."""
    run(HALVES, built, Path("build"), tmp_path)
    run(HALVES, ran, Path("run"), tmp_path)
