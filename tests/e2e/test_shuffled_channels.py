"""Channels shuffled between convolutions of groups, in built libraries and in emitted source.

The cases run in a process that is limited to AVX2, where the kernel for groups reads shuffled channels. The error is a
share of the largest result; sums of at most 135 products of float32 stay below 1e-6.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.isa import isa

pytestmark = pytest.mark.skipif(isa() in ("sse41", "avx"), reason="the kernel needs AVX2")

RUN = """
import sys, numpy as np, tvm_byoc_dnnl as byoc
from tests.unit import graph_reference
from tvm import relax

nn, op = relax.op.nn, relax.op
rng = np.random.default_rng(5)


class Exact:
    @staticmethod
    def conv(x, w, groups, pad, stride):
        attrs = {"strides": [stride] * 2, "dilations": [1, 1], "pad_begin": [pad] * 2, "pad_end": [pad] * 2}
        return graph_reference.convolution([x, w.reshape(groups, -1, *w.shape[1:])], attrs, None)

    shuffle = staticmethod(
        lambda x: graph_reference.shuffle([x], {"axis": 1, "group_size": channels // parts}, None)
    )
    add = staticmethod(lambda x, y: x + y)
    relu = staticmethod(lambda x: np.maximum(x, 0))
    const = staticmethod(lambda x: x.astype("float64"))


class Relax:
    conv = staticmethod(
        lambda x, w, groups, pad, stride: bb.emit(
            nn.conv2d(x, relax.const(w), groups=groups, padding=pad, strides=stride)
        )
    )
    add = staticmethod(lambda x, y: bb.emit(op.add(x, y)))
    relu = staticmethod(lambda x: bb.emit(nn.relu(x)))
    const = staticmethod(relax.const)

    @staticmethod
    def shuffle(x):
        x = bb.emit(op.reshape(x, (2, parts, channels // parts, size, 11)))
        return bb.emit(op.reshape(bb.emit(op.permute_dims(x, [0, 2, 1, 3, 4])), (2, channels, size, 11)))


def network(of, x):
    first = of.relu(of.conv(x, weights[0], groups, 0, 1))
    y = of.shuffle(first)
    depthwise = lambda: of.add(of.conv(y, weights[1], channels, 1, stride), of.const(bias))
    if case == "unit":
        return of.conv(depthwise(), weights[2], groups, 0, 1)
    if case == "relu":
        return of.relu(of.conv(of.relu(depthwise()), weights[2], groups, 0, 1))
    if case == "no depthwise":
        return of.add(of.conv(y, weights[2], groups, 0, 1), first)
    if case == "read twice":
        return of.add(of.conv(depthwise(), weights[2], groups, 0, 1), y)
    assert case == "sum behind the depthwise"
    return of.conv(of.add(depthwise(), first), weights[2], groups, 0, 1)


for argument in sys.argv[2:]:
    case, *numbers = argument.split(",")
    channels, parts, groups, stride, size = map(int, numbers)
    x = rng.standard_normal((2, channels, size, 11)).astype("float32")
    weights = [rng.standard_normal(shape).astype("float32") for shape in (
        (channels, channels // groups, 1, 1), (channels, 1, 3, 3), (channels, channels // groups, 1, 1))]
    bias = rng.standard_normal((1, channels, 1, 1)).astype("float32")
    bb = relax.BlockBuilder()
    v = relax.Var("x", relax.TensorType(x.shape, "float32"))
    with bb.function("main", [v]):
        with bb.dataflow():
            y = bb.emit_output(network(Relax, v))
        bb.emit_func_output(y)
    exact = network(Exact, x.astype("float64"))
    for output in ("module", "source") if sys.argv[1] == "all" or case == sys.argv[1] else ("module",):
        error = np.abs(byoc.Runner(byoc.compile(bb.get(), output=output))(x) - exact).max() / np.abs(exact).max()
        assert error < 1e-6, (argument, output, error)
    steps = byoc.profile(byoc.compile(bb.get()), repeat=1).steps
    print(sum(step.kind == "shuffle" or step.layouts[-1].count("x") > 3 for step in steps))
"""


def shuffles(emitted: str, *cases: str) -> list[int]:
    """How many steps of each built library move channels. `cases`: kind, channels, parts, groups, stride, height.

    Those of the kind ``emitted``, or "all", run as source, too.
    """
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    ran = subprocess.run(
        [sys.executable, "-c", RUN, emitted, *cases], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [int(line) for line in ran.stdout.split()]


EMITTED = pytest.mark.parametrize("emitted", ["relu", pytest.param("all", marks=pytest.mark.sweep)])


@EMITTED
def test_the_kernel_for_groups_reads_shuffled_channels(emitted: str) -> None:
    cases = (
        "unit,24,4,4,1,13",
        "unit,51,3,3,2,13",
        "relu,30,2,5,2,13",
        "relu,270,5,2,1,13",  # groups that without a shuffle would be computed by oneDNN
        "no depthwise,24,3,4,1,13",
        "no depthwise,24,3,4,1,12",  # in longer rows than the image has
    )
    assert shuffles(emitted, *cases) == [0] * len(cases)


@EMITTED
def test_channels_are_shuffled_where_they_must_be(emitted: str) -> None:
    cases = (
        "read twice,24,4,4,1,13",
        "sum behind the depthwise,24,4,4,1,13",
        "no depthwise,64,2,2,1,13",  # the sum is written over what was shuffled
    )
    assert shuffles(emitted, *cases) == [1] * len(cases)
