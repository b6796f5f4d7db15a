"""Convolutions 1x1 that normalise what they read, in built libraries and in emitted source.

The cases run in processes that are limited to an instruction set, where the packed product is what costs least. The
error is a share of the largest result; sums of at most 200 products of float32 stay below 1e-6, and the convolution of
Winograd below 1e-5.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.isa import has_avx512, isa

pytestmark = pytest.mark.skipif(isa() in ("sse41", "avx"), reason="the kernel needs AVX2")

RUN = """
import json, sys, numpy as np, tvm_byoc_dnnl as byoc
from tests.unit import graph_reference
from tvm import relax

nn, op = relax.op.nn, relax.op
rng = np.random.default_rng(5)
random = lambda *shape: rng.standard_normal(shape).astype("float32")


class Exact:
    @staticmethod
    def conv(x, w, stride=1, pad=0, groups=1):
        attrs = {"strides": [stride] * 2, "dilations": [1, 1], "pad_begin": [pad] * 2, "pad_end": [pad] * 2}
        w = w if groups == 1 else w.reshape(groups, -1, *w.shape[1:])
        return graph_reference.convolution([x, w], attrs, None)

    @staticmethod
    def norm(x, statistics):
        gamma, beta, mean, variance = (s.astype("float64").reshape(1, -1, 1, 1) for s in statistics)
        return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta

    concat = staticmethod(lambda parts: np.concatenate(parts, 1))
    add = staticmethod(lambda x, y: x + y)
    relu = staticmethod(lambda x: np.maximum(x, 0))
    silu = staticmethod(lambda x: x / (1 + np.exp(-x)))
    const = staticmethod(lambda x: x.astype("float64"))


class Relax:
    conv = staticmethod(
        lambda x, w, stride=1, pad=0, groups=1: bb.emit(
            nn.conv2d(x, relax.const(w), strides=stride, padding=pad, groups=groups)
        )
    )
    norm = staticmethod(
        lambda x, statistics: bb.emit(nn.batch_norm(x, *map(relax.const, statistics), axis=1, training=False)[0])
    )
    concat = staticmethod(lambda parts: bb.emit(op.concat(parts, 1)))
    add = staticmethod(lambda x, y: bb.emit(op.add(x, y)))
    relu = staticmethod(lambda x: bb.emit(nn.relu(x)))
    silu = staticmethod(lambda x: bb.emit(nn.silu(x)))
    const = staticmethod(relax.const)


def network(of, x):
    first = of.relu(of.conv(x, weights[0]))  # into which the normalisation cannot be folded
    y = of.relu(of.norm(first, statistics))
    if case == "read last by another":  # which must not be written over it before the convolution has read it
        other = of.silu(first)
        return of.add(of.conv(y, weights[1]), other)
    behind = of.conv(y, weights[1])
    if case == "relu":
        return of.relu(of.add(behind, of.const(bias)))
    if case == "strided":
        return of.conv(y, weights[1], stride=2)
    if case == "parts":
        both = of.concat([first, of.conv(first, weights[1])])
        return of.conv(of.relu(of.norm(both, statistics_of_both)), weights[2])
    if case == "residual":
        return of.relu(of.add(behind, of.conv(x, weights[3])))
    if case == "read twice":
        return of.add(behind, y)
    if case == "delivered":
        return behind, y
    if case == "window":
        return of.conv(y, weights[4], pad=1)
    if case == "padded":
        return of.conv(y, weights[1], pad=1)
    if case == "groups":
        return of.conv(y, weights[5], groups=2)
    if case == "something between":
        return of.conv(of.silu(y), weights[1])
    if case == "another end":
        return of.silu(behind)
    assert case == "sum over what was normalised"
    return of.add(behind, first)


emitted = sys.argv[1].split(",")
for argument in sys.argv[2:]:
    case, *numbers = argument.split(",")
    batch, inner, size, outputs = map(int, numbers)
    x = random(batch, 40, size, size + 2)
    shapes = ((inner, 40, 1, 1), (outputs, inner, 1, 1), (outputs, inner + outputs, 1, 1), (outputs, 40, 1, 1),
              (outputs, inner, 3, 3), (outputs, inner // 2, 1, 1))
    weights = [random(*shape) / np.float32(np.sqrt(np.prod(shape[1:]))) for shape in shapes]
    bias = random(1, outputs, 1, 1)
    statistics, statistics_of_both = ([random(n), random(n), random(n), random(n) ** 2 + np.float32(0.1)]
                                      for n in (inner, inner + outputs))
    bb = relax.BlockBuilder()
    v = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with bb.function("main", [v]):
        with bb.dataflow():
            results = network(Relax, v)
            results = results if isinstance(results, tuple) else (results,)
            results = [bb.emit_output(result) for result in results]
        bb.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    exact = network(Exact, x.astype("float64"))
    exact = exact if isinstance(exact, tuple) else (exact,)
    steps = byoc.profile(ex := byoc.compile(bb.get()), repeat=1).steps
    is_fused = any((step.implementation or "").startswith("batch_norm_product:") for step in steps)
    for run in [ex] + [byoc.compile(bb.get(), output="source")] * (is_fused and case in emitted):
        got = byoc.Runner(run)(x)
        for one, of in zip(got if isinstance(got, (list, tuple)) else [got], exact, strict=True):
            error = np.abs(one - of).max() / np.abs(of).max()
            assert error < (1e-5 if case == "window" else 1e-6), (argument, error)
    print(json.dumps([[step.implementation, step.flops, step.source] for step in steps]))
"""

LEVELS = [
    "AVX2",
    pytest.param("AVX512_CORE", marks=pytest.mark.skipif(not has_avx512(), reason="the CPU has no AVX-512")),
]


def run(code: str, level: str, *arguments: str) -> str:
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": level}
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def steps(level: str, *cases: str, emitted: Iterable[str] = ()) -> list[list[tuple[str, int, list[str]]]]:
    """The implementation, the arithmetic and the operators of each step, for each case: its name, and the numbers of
    images, of channels that are normalised, of lines, and of outputs. Those ``emitted`` run as source, too."""
    return [json.loads(line) for line in run(RUN, level, ",".join(emitted), *cases).splitlines()]


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["few emitted", "all"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_convolution_normalises_what_it_reads(level: str, everywhere: bool) -> None:
    cases = {"relu": "relu,1,100,14,96", "strided": "strided,1,64,14,64",
             "parts": "parts,2,96,7,64", "residual": "residual,3,64,6,64",
             "read last by another": "read last by another,1,64,8,64"}  # fmt: skip
    emitted = cases if everywhere else ["relu", "parts"] if level == "AVX2" else []
    for case, of_case in zip(cases, steps(level, *cases.values(), emitted=emitted), strict=True):
        fused = [step for step in of_case if (step[0] or "").startswith("batch_norm_product:")]
        assert len(fused) == 1, (case, of_case)
        assert not any((step[0] or "").startswith("batch_norm:") for step in of_case), (case, of_case)
        (_, flops, operators), outputs = fused[0], int(cases[case].split(",")[-1])
        assert {"relax.nn.batch_norm", "relax.nn.conv2d"} <= set(operators), (case, operators)
        if case == "relu":
            assert flops == 2 * 14 * 16 * 100 * outputs


@pytest.mark.parametrize(
    "level", ["AVX2", pytest.param(*LEVELS[1].values, marks=[*LEVELS[1].marks, pytest.mark.sweep])]
)
def test_others_read_what_was_normalised(level: str) -> None:
    kinds = ("read twice", "delivered", "window", "padded", "groups", "something between", "another end",
             "sum over what was normalised")  # fmt: skip
    for case, of_case in zip(kinds, steps(level, *(f"{kind},2,64,9,64" for kind in kinds)), strict=True):
        assert not any((step[0] or "").startswith("batch_norm_product:") for step in of_case), (case, of_case)
        assert any("relax.nn.batch_norm" in step[2] for step in of_case), (case, of_case)


MEASURE = """
import math, sys, numpy as np, tvm, tvm_byoc_dnnl as byoc
from tvm import relax
from tvm_byoc_dnnl.tuning.plans import measure_candidates
from tvm_byoc_dnnl.tuning.database import Database

nn, op = relax.op.nn, relax.op
random = lambda *shape: relax.const(np.random.default_rng(2).random(shape).astype("float32") + np.float32(0.1))
bb = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((1, 3, 224, 224), "float32"))
with bb.function("main", [x]):
    with bb.dataflow():
        y = bb.emit(nn.relu(bb.emit(nn.conv2d(x, random(64, 3, 7, 7), strides=2, padding=3))))
        pooled = bb.emit(nn.max_pool2d(y, (3, 3), strides=2, padding=1))
        statistics = [random(64) for _ in range(4)]
        y = bb.emit(nn.relu(bb.emit(nn.batch_norm(pooled, *statistics, axis=1, training=False)[0])))
        y = bb.emit(nn.conv2d(y, random(128, 64, 1, 1)))
        y = bb.emit_output(op.concat([y, pooled], 1))
    bb.emit_func_output(y)
lines = []
count = measure_candidates(byoc.partition(bb.get(), "dnnl"), Database(sys.argv[1]), math.inf, lines.append)
assert count > 0, lines
"""


def test_a_measured_plan_may_normalise_where_the_usual_one_does_not(tmp_path: Path) -> None:
    # Where the picture's convolution writes channels-last, and only there, the 1x1 can normalise what it reads.
    run(MEASURE, "AVX2", str(tmp_path / "times.jsonl"))
