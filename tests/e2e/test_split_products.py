"""Products of float32 by parts of bfloat16 on AMX: where they are used, what they lose, how they are switched off.

A number is the sum of three bfloat16. Six of the nine products of two numbers' parts are computed, and the others are
less than 2^-24 of the product: the errors are those of float32 and of its sums. With two parts (``bf16x2``) at most
2^-16 + 2^-17 of a product a·b is lost (2.3e-5), with either sign; of long sums, typically 4e-6 of the root mean
square.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.e2e.test_fast_convolution import TOLERANCE, network
from tests.isa import has_tiles

ROOT = Path(__file__).resolve().parents[2]
#: the worst error of a single product, and the typical one of a long sum
WORST = {"auto": 3e-7, "bf16x2": 2.4e-5}
TYPICAL = {"auto": 1e-6, "bf16x2": 6e-6}
KINDS = pytest.mark.parametrize("products", ["auto", "bf16x2"])
needs_tiles = pytest.mark.skipif(not has_tiles(), reason="needs a CPU with AMX")


def dense(rows: object, depth: int, columns: int, *, transposed: bool = False, residual: bool = False) -> tvm.IRModule:
    """gelu(x·W + b) [+ z]."""
    rng = np.random.default_rng(3)
    x = relax.Var("x", relax.TensorType((rows, depth), "float32"))
    z = relax.Var("z", relax.TensorType((rows, columns), "float32"))
    shape = (columns, depth) if transposed else (depth, columns)
    weights = relax.const(rng.standard_normal(shape).astype("float32") * 0.1)
    bias = relax.const(rng.standard_normal((columns,)).astype("float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, z] if residual else [x]):
        with builder.dataflow():
            w = builder.emit(relax.op.permute_dims(weights)) if transposed else weights
            y = builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, w)), bias))
            y = builder.emit(relax.op.nn.gelu(y))
            out = builder.emit_output(relax.op.add(y, z) if residual else y)
        builder.emit_func_output(out)
    return builder.get()


def product(weights: relax.Expr) -> tvm.IRModule:
    """x·W, 256 x 256 each."""
    x = relax.Var("x", relax.TensorType((256, 256), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weights] if isinstance(weights, relax.Var) else [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, weights))
        builder.emit_func_output(out)
    return builder.get()


def implementations(mod: tvm.IRModule, **options: object) -> list[str]:
    ex = byoc.compile(mod, options={"dnnl": options} if options else None)
    return [step.implementation or "" for step in byoc.profile(ex, repeat=1).steps]


def by_parts(mod: tvm.IRModule, **options: object) -> bool:
    return any("bf16x" in name for name in implementations(mod, **options))


def results(mod: tvm.IRModule, output: str = "module", **options: object) -> np.ndarray:
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal([int(d) for d in p.ty.shape.values]).astype("float32") for p in mod["main"].params]
    ex = byoc.compile(mod, output=output, options={"dnnl": options} if options else None)
    return byoc.Runner(ex)(*inputs)


def typical(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()))


@needs_tiles
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(128, 768, 768), (97, 257, 515), (1500, 384, 385)])
def test_a_product_is_right_and_one_primitive(
    rows: int, depth: int, columns: int, transposed: bool, residual: bool
) -> None:
    mod = dense(rows, depth, columns, transposed=transposed, residual=residual)
    names = implementations(mod)
    assert sum("bf16x3:avx512_core_amx" in name for name in names) == 1, names
    assert not any("eltwise" in name or "binary" in name for name in names), names
    exact = results(mod, products="float32")
    assert all(typical(results(mod, products=kind), exact) < limit for kind, limit in TYPICAL.items())


@needs_tiles
@pytest.mark.parametrize(
    ("channels", "size", "outputs", "attrs"),
    [
        (256, 14, 256, {}),
        (261, 15, 259, {}),
        (256, 14, 512, {"kernel": 1}),
        (256, 29, 230, {"strides": 2}),
        (96, 30, 128, {"kernel": 5, "padding": 2}),
        (192, 30, 192, {"dilation": 2, "padding": 2}),
    ],
)
def test_a_convolution_is_right_and_one_primitive(channels: int, size: int, outputs: int, attrs: dict) -> None:
    mod = network(channels, size, outputs, residual="strides" not in attrs, **attrs)
    names = implementations(mod)
    assert sum("bf16x3" in name for name in names) == 1, names
    assert not any("eltwise" in name or "binary" in name for name in names), names
    exact = results(mod, fast_convolution=False)
    assert all(typical(results(mod, products=kind), exact) < limit for kind, limit in TYPICAL.items())


def by_winograd(mod: tvm.IRModule, **options: object) -> int:
    return sum("winograd_4x4_bf16x3:avx512_core_amx" in name for name in implementations(mod, **options))


@needs_tiles
@pytest.mark.parametrize(("channels", "size", "outputs"), [(64, 112, 64), (75, 70, 130)])
def test_products_of_winograds_convolution_are_by_parts(channels: int, size: int, outputs: int) -> None:
    """The bound is that of tiles of 4x4, whose transformations lose most."""
    mod = network(channels, size, outputs, residual=True)
    assert by_winograd(mod) == 1
    exact, got = results(mod, fast_convolution=False), results(mod)
    assert np.abs(got - exact).max() <= TOLERANCE["4x4"] * np.abs(exact).max()
    np.testing.assert_array_equal(got, results(mod, output="source"))


@needs_tiles
def test_options_for_convolutions_and_products_hold_for_both_together() -> None:
    mod = network(64, 112, 64)
    assert by_winograd(mod) == 1
    assert by_winograd(mod, products="float32") == by_winograd(mod, fast_convolution=False) == 0
    assert by_winograd(mod, winograd_tile=2) == 0


@needs_tiles
@KINDS
def test_the_worst_error_is_that_of_the_parts(products: str) -> None:
    """Each sum has one product that is not zero, so that nothing cancels."""
    rng = np.random.default_rng(7)
    weights = rng.uniform(1, 2, (256, 256)).astype("float32")
    mod = product(relax.const(weights))
    assert by_parts(mod, products=products)
    diagonal = np.diag(rng.uniform(1, 2, 256)).astype("float32")
    got = byoc.Runner(byoc.compile(mod, options={"dnnl": {"products": products}}))(diagonal)
    expected = diagonal.astype("float64") @ weights.astype("float64")
    lost = np.abs(got / expected - 1)
    assert WORST[products] / 20 < lost.max() < WORST[products]


@needs_tiles
def test_options_ask_for_products_of_float32() -> None:
    assert by_parts(dense(128, 256, 256)) and not by_parts(dense(128, 256, 256), products="float32")
    assert by_parts(network(256, 14, 256)) and not by_parts(network(256, 14, 256), products="float32")
    assert not by_parts(network(256, 14, 256), fast_convolution=False)
    assert not by_parts(network(256, 14, 256), winograd_tile=2)
    assert any("bf16x2" in name for name in implementations(network(256, 14, 256), products="bf16x2"))


def test_an_unknown_kind_of_products_is_refused() -> None:
    with pytest.raises(byoc.ByocError, match="option 'products' of 'dnnl' is 'tf32'; expected one of 'auto', 'bf16x2'"):
        byoc.compile(network(), options={"dnnl": {"products": "tf32"}}, strict=True)


@pytest.mark.parametrize("attrs", [{"groups": 4}, {"groups": 64}], ids=["groups", "depthwise"])
def test_convolutions_with_groups_stay_with_the_library(attrs: dict) -> None:
    assert not by_parts(network(**attrs))


def test_weights_that_are_no_constants_stay_with_the_library() -> None:
    assert not by_parts(product(relax.Var("w", relax.TensorType((256, 256), "float32"))))


@needs_tiles
@KINDS
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, np.finfo("float32").max])
def test_odd_numbers_stay_what_they_are(number: float, products: str) -> None:
    mod = product(relax.const(np.random.default_rng(7).uniform(-2, 2, (256, 256)).astype("float32")))
    assert by_parts(mod, products=products)
    x = np.ones((256, 256), "float32")
    x[3, 5] = number
    got, expected = (
        byoc.Runner(byoc.compile(mod, options={"dnnl": {"products": kind}}))(x) for kind in (products, "float32")
    )
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))
    np.testing.assert_allclose(np.delete(got, 3, 0), np.delete(expected, 3, 0), atol=256 * WORST[products])


@needs_tiles
def test_source_gives_the_same_bits() -> None:
    for mod in (dense(97, 257, 515, residual=True), network(261, 15, 259, residual=True)):
        np.testing.assert_array_equal(results(mod), results(mod, output="source"))


@needs_tiles
def test_plans_for_several_sizes_agree() -> None:
    rows = tvm.tirx.Var("n", "int64")
    run = byoc.Runner(byoc.compile(dense(rows, 128, 96)))
    x = np.random.default_rng(5).standard_normal((70, 128)).astype("float32")
    whole = run(x)
    np.testing.assert_array_equal(run(x[:40]), whole[:40])


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
def test_the_limit_of_the_instruction_set_is_obeyed(limit: str) -> None:
    program = (
        "from tests.e2e.test_split_products import *; print(by_parts(network()) or by_parts(dense(128, 256, 256)))"
    )
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": limit}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


@needs_tiles
def test_it_shares_the_unit_with_the_library() -> None:
    """oneDNN configures AMX for its own primitives of bfloat16."""
    mod, x = network(256, 14, 256), np.random.default_rng(5).standard_normal((1, 256, 14, 14)).astype("float32")
    ours = byoc.Runner(byoc.compile(mod))
    library = byoc.Runner(byoc.compile(mod, precision="bfloat16"))
    alone = ours(x), library(x)
    for _ in range(3):
        np.testing.assert_array_equal(ours(x), alone[0])
        np.testing.assert_array_equal(library(x), alone[1])
