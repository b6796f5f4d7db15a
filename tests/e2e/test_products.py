"""Products with constant weights by the packed kernel: where it is used, and that it is right.

Expected values are NumPy's in float64; the error is a share of the largest result.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.isa import isa

pytestmark = pytest.mark.skipif(isa() in ("sse41", "avx"), reason="the kernel needs AVX2")

_erf = np.vectorize(math.erf)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + _erf(x / math.sqrt(2))) / 2


def constants(columns: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    weights = (rng.standard_normal((depth, columns)) / math.sqrt(depth)).astype("float32")
    return weights, rng.standard_normal(columns).astype("float32")


def network(rows: int, columns: int, depth: int, *, transposed: bool = False, residual: bool = False) -> tvm.IRModule:
    """gelu(x w + b), or x w + b + z."""
    weights, bias = constants(columns, depth)
    x = relax.Var("x", relax.TensorType((1, rows, depth), "float32"))
    z = relax.Var("z", relax.TensorType((1, rows, columns), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, z] if residual else [x]):
        with builder.dataflow():
            stored = relax.const(np.ascontiguousarray(weights.T) if transposed else weights)
            w = builder.emit(relax.op.permute_dims(stored)) if transposed else stored
            y = builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, w)), relax.const(bias)))
            out = builder.emit_output(relax.op.add(y, z) if residual else relax.op.nn.gelu(y))
        builder.emit_func_output(out)
    return builder.get()


def arguments(mod: tvm.IRModule) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]


def implementations(ex: tvm.relax.VMExecutable) -> list[str]:
    return [step.implementation or "" for step in byoc.profile(ex, repeat=1).steps]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1030, 1100), (3, 600, 500)])
def test_few_rows_are_one_product(rows: int, columns: int, depth: int, transposed: bool, residual: bool) -> None:
    mod = network(rows, columns, depth, transposed=transposed, residual=residual)
    ex = byoc.compile(mod)
    names = implementations(ex)
    assert sum(name.startswith("product:") for name in names) == 1, names
    assert not any("eltwise" in name or "binary" in name for name in names), names
    inputs = arguments(mod)
    weights, bias = constants(columns, depth)
    y = inputs[0].astype("float64") @ weights + bias
    expected = y + inputs[1] if residual else gelu(y)
    assert_right(byoc.Runner(ex)(*inputs), expected.astype("float32"), 3e-6)


def test_source_gives_the_same_bits() -> None:
    mod = network(2, 1030, 700)
    inputs = arguments(mod)
    module, source = (byoc.Runner(byoc.compile(mod, output=o))(*inputs) for o in ("module", "source"))
    np.testing.assert_array_equal(module, source)


def test_weights_that_are_no_constants_stay_with_the_library() -> None:
    x = relax.Var("x", relax.TensorType((1, 512), "float32"))
    w = relax.Var("w", relax.TensorType((512, 1024), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, w))
        builder.emit_func_output(out)
    assert not any(name.startswith("product:") for name in implementations(byoc.compile(builder.get())))
