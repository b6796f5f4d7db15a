"""Convolutions by Winograd's algorithm: where it is used, what it may lose, and how it is switched off.

Its error against float64 is stated as a share of the largest result: 1e-5 for tiles of 4x4 and those of 5x5 kernels
(2e-6 is typical for 64 channels, 9e-6 for 1,024; with stride 2 for a quarter of the channels), 2e-6 for tiles of 2x2
and 3x3 kernels. AMX, which is faster still (test_split_products.py), is switched off.
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
from tests.isa import isa

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = {"4x4": 1e-5, "2x2": 2e-6}
needs_vectors = pytest.mark.skipif(isa() in ("sse41", "avx"), reason="the kernel needs AVX2")


def network(channels=64, size=28, outputs=64, *, batch=1, kernel=3, residual=False, **attrs) -> tvm.IRModule:
    """relu(conv(x) + b [+ z])."""
    rng = np.random.default_rng(3)
    x = relax.Var("x", relax.TensorType((batch, channels, size, size), "float32"))
    in_channels = channels // attrs.get("groups", 1)
    weights = relax.const(rng.standard_normal((outputs, in_channels, kernel, kernel)).astype("float32") * 0.1)
    bias = relax.const(rng.standard_normal((1, outputs, 1, 1)).astype("float32"))
    builder = relax.BlockBuilder()
    reach = (kernel - 1) * attrs.get("dilation", 1) + 1
    out = (size + 2 * attrs.get("padding", kernel // 2) - reach) // attrs.get("strides", 1) + 1
    z = relax.Var("z", relax.TensorType((batch, outputs, out, out), "float32"))
    with builder.function("main", [x, z] if residual else [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, weights, **{"padding": kernel // 2, **attrs}))
            y = builder.emit(relax.op.add(y, bias))
            if residual:
                y = builder.emit(relax.op.add(y, z))
            out = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(out)
    return builder.get()


def implementations(mod: tvm.IRModule, **options) -> list[str]:
    ex = byoc.compile(mod, options={"dnnl": {"products": "float32", **options}})
    return [step.implementation or "" for step in byoc.profile(ex, repeat=1).steps]


def by_winograd(mod: tvm.IRModule, **options) -> bool:
    return any("winograd" in name for name in implementations(mod, **options))


def results(mod: tvm.IRModule, output: str = "module", **options) -> np.ndarray:
    rng = np.random.default_rng(5)
    inputs = [
        rng.standard_normal([4 if isinstance(d, relax.Var) else int(d) for d in p.ty.shape.values]).astype("float32")
        for p in mod["main"].params
    ]
    ex = byoc.compile(mod, output=output, options={"dnnl": {"products": "float32", **options}})
    return byoc.Runner(ex)(*inputs)


def error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@needs_vectors
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("size", [27, 28, 30])
@pytest.mark.parametrize(("channels", "outputs"), [(64, 64), (61, 67), (33, 128)])
def test_it_is_right_and_one_primitive(channels: int, outputs: int, size: int, residual: bool) -> None:
    mod = network(channels, size, outputs, residual=residual)
    names = implementations(mod)
    assert sum("winograd_4x4" in name for name in names) == 1, names
    assert not any("eltwise" in name or "binary" in name for name in names), names
    exact = results(mod, fast_convolution=False)
    assert error(results(mod), exact) < TOLERANCE["4x4"]
    assert error(results(mod, winograd_tile=2), exact) < TOLERANCE["2x2"]


@needs_vectors
def test_a_source_is_read_in_the_layout_that_it_has() -> None:
    """A first convolution of one channel writes blocks of channels, which no primitive behind it wants."""
    rng = np.random.default_rng(4)
    x = relax.Var("x", relax.TensorType((1, 1, 57, 43), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for channels, outputs in ((1, 64), (64, 32)):
                weights = rng.standard_normal((outputs, channels, 3, 3)).astype("float32") * 0.1
                y = builder.emit(relax.op.nn.conv2d(y, relax.const(weights), padding=1))
                y = builder.emit(relax.op.nn.relu(y))
            out = builder.emit_output(relax.op.nn.max_pool2d(y, (2, 2), (2, 2)))
        builder.emit_func_output(out)
    mod = builder.get()
    ex = byoc.compile(mod, options={"dnnl": {"products": "float32"}})
    steps = byoc.profile(ex, repeat=1).steps
    names = [step.implementation or "" for step in steps]
    assert any("winograd" in name for name in names), names
    at = next(i for i, name in enumerate(names) if "winograd" in name)
    assert not any(step.kind == "reorder" for step in steps[:at]), steps
    for output in ("module", "source"):
        assert error(results(mod, output), results(mod, fast_convolution=False)) < TOLERANCE["4x4"]


@needs_vectors
def test_it_is_switched_off_and_takes_smaller_tiles_by_options() -> None:
    mod = network()
    assert by_winograd(mod)
    assert not by_winograd(mod, fast_convolution=False)
    assert any("winograd_2x2" in name for name in implementations(mod, winograd_tile=2))
    with pytest.raises(byoc.ByocError, match="option 'winograd_tile' of 'dnnl' is 3; expected one of 4, 2"):
        byoc.compile(mod, options={"dnnl": {"winograd_tile": 3}}, strict=True)


@needs_vectors
def test_small_tiles_are_taken_unasked_for_this_image_on_avx2_only() -> None:
    mod = network(192, 6, 384)  # large tiles would reach far beyond the edge of such an image
    names = implementations(mod)
    # With AVX-512, direct convolution costs less here.
    assert any("winograd_2x2" in name for name in names) == any(name.endswith(":avx2") for name in names), names
    assert error(results(mod), results(mod, fast_convolution=False)) < TOLERANCE["2x2"]


@needs_vectors
def test_many_weights_of_few_tiles_are_right_in_module_and_source() -> None:
    """Each call transforms them beside a cache of 1 to 2 MB; tests/cpp/choice_test.cc says when."""
    mod = network(512, 16, 500)
    got = results(mod)
    assert error(got, results(mod, fast_convolution=False)) < TOLERANCE["4x4"]
    np.testing.assert_array_equal(got, results(mod, output="source"))


OTHERS = [
    pytest.param(64, 96, 27, {"kernel": 5}, "winograd_2x2_5x5", id="5x5"),
    pytest.param(61, 67, 26, {"kernel": 5, "padding": 1}, "winograd_2x2_5x5", id="5x5, partial vectors"),
    pytest.param(96, 256, 26, {"kernel": 5, "groups": 2}, "winograd_2x2_5x5", id="5x5 in groups"),
    pytest.param(126, 130, 27, {"groups": 2}, "winograd_4x4", id="3x3 in groups"),
    pytest.param(96, 256, 53, {"kernel": 5, "strides": 2}, "winograd_4x4_5x5", id="5x5 of stride 2"),
    pytest.param(96, 250, 54, {"kernel": 5, "strides": 2, "padding": 0}, "winograd_4x4_5x5", id="even size"),
    pytest.param(96, 160, 39, {"kernel": 5, "strides": 2, "padding": 1}, "winograd_4x4_5x5", id="odd padding"),
]


@needs_vectors
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("channels", "outputs", "size", "attrs", "expected"), OTHERS)
def test_other_kernels_are_right_and_one_primitive(
    channels: int, outputs: int, size: int, attrs: dict, expected: str, residual: bool
) -> None:
    mod = network(channels, size, outputs, residual=residual, **attrs)
    names = implementations(mod)
    assert sum(name.startswith(f"{expected}:") for name in names) == 1, names
    assert not any("eltwise" in name or "binary" in name for name in names), names
    assert error(results(mod), results(mod, fast_convolution=False)) < TOLERANCE["4x4"]


@needs_vectors
@pytest.mark.sweep  # the C compiler takes seconds for each
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(("channels", "outputs", "size", "attrs", "expected"), OTHERS)
def test_source_of_other_kernels_gives_the_same_bits(
    channels: int, outputs: int, size: int, attrs: dict, expected: str, residual: bool
) -> None:
    mod = network(channels, size, outputs, residual=residual, **attrs)
    np.testing.assert_array_equal(results(mod), results(mod, output="source"))


@needs_vectors
@pytest.mark.parametrize("attrs", [{"kernel": 5}, {"kernel": 5, "strides": 2}], ids=["5x5", "5x5 of stride 2"])
def test_only_tiles_of_2x2_have_no_other_kernels(attrs: dict) -> None:
    mod = network(96, 53, 256, **attrs)
    assert by_winograd(mod)
    assert not by_winograd(mod, winograd_tile=2)


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": 2},
        {"dilation": 2, "padding": 2},
        {"groups": 16},
        {"kernel": 5, "strides": 3},
        {"kernel": 5, "dilation": 2, "padding": 4},
        {"kernel": 7},
        {"kernel": 1},
    ],
    ids=lambda attrs: " ".join(attrs),
)
def test_other_convolutions_stay_as_they_are(attrs: dict) -> None:
    assert not by_winograd(network(**attrs))


def test_weights_that_are_no_constants_stay_with_the_library() -> None:
    x = relax.Var("x", relax.TensorType((1, 64, 28, 28), "float32"))
    w = relax.Var("w", relax.TensorType((64, 64, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.conv2d(x, w, padding=1))
        builder.emit_func_output(out)
    assert not by_winograd(builder.get())


@needs_vectors
def test_source_gives_the_same_bits() -> None:
    mod = network(61, 27, 67, residual=True)
    np.testing.assert_array_equal(results(mod), results(mod, output="source"))


@needs_vectors
def test_plans_for_several_batches_agree() -> None:
    batch = tvm.tirx.Var("n", "int64")
    run = byoc.Runner(byoc.compile(network(batch=batch), options={"dnnl": {"products": "float32"}}))
    x = np.random.default_rng(5).standard_normal((3, 64, 28, 28)).astype("float32")
    whole = run(x)
    for i in range(3):
        np.testing.assert_array_equal(run(x[i : i + 1])[0], whole[i])


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "expected"), [("SSE41", ""), ("AVX2", "winograd_4x4:avx2")])
def test_the_limit_of_the_instruction_set_is_obeyed(limit: str, expected: str) -> None:
    program = (
        "from tests.e2e.test_fast_convolution import *\n"
        "mod = network(); print(next((n for n in implementations(mod) if 'winograd' in n), ''))\n"
        "print(error(results(mod), results(mod, fast_convolution=False)))"
    )
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": limit}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name, lost = done.stdout.splitlines()[-2:]
    assert name == expected
    assert float(lost) < TOLERANCE["4x4"]
