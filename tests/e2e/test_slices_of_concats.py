"""Concats of channels that copy nothing: kernels of ours write each source into its slice of the result.

The references are the sources, each computed alone, and NumPy's own concatenation and product in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.isa import isa

op, nn = relax.op, relax.op.nn
#: Winograd's convolution of 64 channels is off by 2e-6 of the largest result, and the product behind it adds little
TOLERANCE = 1e-5
FLOAT32 = {"dnnl": {"products": "float32"}}

pytestmark = pytest.mark.skipif(isa() in ("sse41", "avx"), reason="the kernels need AVX2")

Build = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32") * 0.1


def conv(outputs: int, seed: int, kernel: int = 3, finish: Callable = nn.relu) -> Build:
    def build(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        channels = int(x.ty.shape[1])
        y = nn.conv2d(x, relax.const(random(outputs, channels, kernel, kernel, seed=seed)), padding=kernel // 2)
        y = op.add(builder.emit(y), relax.const(random(1, outputs, 1, 1, seed=seed + 1)))
        return builder.emit(finish(builder.emit(y)))

    return build


def pool(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return builder.emit(nn.max_pool2d(x, (3, 3), padding=1))


def module(shape: Sequence[int], build: Build) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(tuple(shape), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(build(builder, x))
        builder.emit_func_output(out)
    return builder.get()


def run(mod: tvm.IRModule, x: np.ndarray, output: str = "module") -> np.ndarray:
    return np.asarray(byoc.Runner(byoc.compile(mod, output=output, options=FLOAT32))(x))


def steps(mod: tvm.IRModule) -> list:
    return byoc.profile(byoc.compile(mod, options=FLOAT32), repeat=1).steps


def copies(mod: tvm.IRModule, channels: int) -> int:
    """The steps that only move a result of so many channels."""
    return sum(
        step.kind == "concat" or (step.kind == "reorder" and f":1x{channels}x" in step.layouts[-1])
        for step in steps(mod)
    )


def joined(sources: Sequence[Build], weights: np.ndarray) -> Build:
    """The sources, joined, and multiplied by a matrix at every pixel."""

    def build(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        whole = builder.emit(op.concat([source(builder, x) for source in sources], axis=1))
        return builder.emit(nn.conv2d(whole, relax.const(weights)))

    return build


def error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


JOINED = [
    pytest.param((1, 64, 28, 28), [conv(64, 1), conv(96, 3)], id="two convolutions"),
    pytest.param((1, 61, 27, 29), [conv(67, 1), conv(3, 3, 1), conv(13, 5)], id="sizes that fill no vector"),
    pytest.param((3, 64, 14, 14), [conv(64, 1), pool, conv(35, 3, 1)], id="images and a pooling"),
    pytest.param((1, 64, 28, 28), [conv(33, 1, finish=nn.silu), conv(32, 3, 5)], id="other post-ops"),
]


@pytest.mark.parametrize(("shape", "sources"), JOINED)
@pytest.mark.parametrize("output", ["module", pytest.param("source", marks=pytest.mark.sweep)])
def test_all_sources_arrive(shape: Sequence[int], sources: Sequence[Build], output: str) -> None:
    x = random(*shape, seed=7)
    parts = np.concatenate([run(module(shape, source), x) for source in sources], axis=1)
    weights = random(24, parts.shape[1], 1, 1, seed=9)
    expected = np.einsum("nchw,oc->nohw", parts.astype("float64"), weights[:, :, 0, 0].astype("float64"))
    assert error(run(module(shape, joined(sources, weights)), x, output), expected) < TOLERANCE


def test_nothing_is_copied() -> None:
    sources = [conv(64, 1), conv(96, 3)]
    mod = module((1, 48, 28, 28), joined(sources, random(24, 160, 1, 1, seed=9)))
    assert copies(mod, 64) == copies(mod, 96) == copies(mod, 160) == 0
    assert sum("winograd" in (step.implementation or "") for step in steps(mod)) == 2


def test_only_the_pooling_is_copied() -> None:
    sources = [conv(80, 1), pool, conv(96, 3)]
    mod = module((1, 48, 28, 28), joined(sources, random(24, 224, 1, 1, seed=9)))
    assert copies(mod, 80) == copies(mod, 96) == copies(mod, 224) == 0
    assert not any(step.kind == "concat" for step in steps(mod))


def test_the_result_of_the_function_is_right() -> None:
    shape, sources = (1, 64, 28, 28), [conv(64, 1), conv(96, 3)]
    x = random(*shape, seed=7)
    mod = module(shape, lambda b, v: b.emit(op.concat([source(b, v) for source in sources], axis=1)))
    expected = np.concatenate([run(module(shape, source), x) for source in sources], axis=1)
    assert error(run(mod, x), expected) < TOLERANCE


@pytest.mark.parametrize("case", ["read twice", "joined twice", "rows"])
def test_others_are_copied(case: str) -> None:
    """A source with another reader, one that stands twice in the concat, and a concat of another axis."""
    shape = (1, 48, 28, 28)
    first, second = conv(64, 1), conv(64, 3)

    def build(builder: relax.BlockBuilder, v: relax.Var) -> relax.Expr:
        y, z = first(builder, v), second(builder, v)
        parts, axis = {"read twice": ([y, z], 1), "joined twice": ([y, z, y], 1), "rows": ([y, z], 2)}[case]
        whole = builder.emit(op.concat(parts, axis=axis))
        if case == "read twice":
            whole = builder.emit(op.add(whole, builder.emit(op.concat([y, y], axis=1))))
        return whole

    x = random(*shape, seed=7)
    y, z = (run(module(shape, source), x) for source in (first, second))
    expected = {
        "read twice": lambda: np.concatenate([y, z], 1) + np.concatenate([y, y], 1),
        "joined twice": lambda: np.concatenate([y, z, y], 1),
        "rows": lambda: np.concatenate([y, z], 2),
    }[case]()
    assert error(run(module(shape, build), x), expected) < TOLERANCE
    assert copies(module(shape, build), 64) > 0
