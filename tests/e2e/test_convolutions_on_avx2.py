"""Convolutions on AVX2 by kernels of ours, in built libraries and in emitted source.

Groups go to the direct kernel where they have few channels or their outputs fill no whole blocks of oneDNN's, and so do
pictures; depthwise ones of 5x5 and 7x7 have a kernel of their own, and convolutions 1x1 of few pixels go to the packed
product. Each case runs in a process that is limited to AVX2. The error is a share of the largest result; sums of at
most 400 products of float32 stay below 1e-6.
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
from tvm import relax

*numbers, finish, expected = sys.argv[1:]
channels, per_group, groups, kernel, stride, batch, size = map(int, numbers)
outputs, pad = per_group * groups, kernel // 2
rng = np.random.default_rng(3)
w = rng.standard_normal((outputs, channels // groups, kernel, kernel)).astype("float32")
b = rng.standard_normal((1, outputs, 1, 1)).astype("float32")
x = rng.standard_normal((batch, channels, size, size)).astype("float32")
out = (size + 2 * pad - kernel) // stride + 1
z = rng.standard_normal((batch, outputs, out, out)).astype("float32")

v, r = (relax.Var(n, relax.TensorType(a.shape, "float32")) for n, a in (("x", x), ("z", z)))
nn, op, bb = relax.op.nn, relax.op, relax.BlockBuilder()
with bb.function("main", [v, r]):
    with bb.dataflow():
        y = bb.emit(nn.conv2d(v, relax.const(w), groups=groups, padding=pad, strides=stride))
        y = bb.emit(op.add(y, relax.const(b)))
        if finish == "silu":
            y = bb.emit(nn.silu(y))
        if finish == "hardswish":
            inner = bb.emit(op.clip(bb.emit(op.add(y, relax.const(np.float32(3)))), 0, 6))
            y = bb.emit(op.divide(bb.emit(op.multiply(y, inner)), relax.const(np.float32(6))))
            y = bb.emit(op.multiply(y, relax.const(np.float32(0.4))))
            y = bb.emit_output(op.add(y, relax.const(np.float32(-0.1))))
        else:
            y = bb.emit_output(nn.relu(bb.emit(op.add(y, r)) if finish == "add" else y))
    bb.emit_func_output(y)

padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
taps = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
taps = taps.reshape(batch, groups, channels // groups, out, out, kernel, kernel)
per_group_w = w.astype("float64").reshape(groups, per_group, channels // groups, kernel, kernel)
exact = np.einsum("ngcyxij,gocij->ngoyx", taps, per_group_w).reshape(z.shape) + b
if finish == "silu":
    exact = exact / (1 + np.exp(-exact))
if finish == "hardswish":
    exact = exact * np.clip(exact + 3, 0, 6) / 6 * 0.4 - 0.1
else:
    exact = np.maximum(exact + z if finish == "add" else exact, 0)

for output in ("module", "source"):
    ex = byoc.compile(bb.get(), output=output)
    error = np.abs(byoc.Runner(ex)(x, z) - exact).max() / np.abs(exact).max()
    assert error < 1e-6, (output, error)
steps = byoc.profile(byoc.compile(bb.get()), repeat=1).steps
assert not {"eltwise", "binary"} & {step.kind for step in steps}, steps
names = [step.implementation or "" for step in steps]
ours = [name for name in names if name in ("depthwise:avx2", "direct:avx2", "product:avx2")]
assert ours == ([] if expected == "library" else [f"{expected}:avx2"]), names
"""


def run(*case: object) -> None:
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    command = [sys.executable, "-c", RUN, *map(str, case)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize(
    ("channels", "per_group", "groups", "kernel", "stride", "batch", "finish"),
    [
        (24, 28, 4, 1, 1, 1, "relu"),
        (24, 28, 4, 3, 2, 3, "silu"),
        (10, 8, 5, 3, 1, 2, "add"),
        (21, 7, 3, 5, 1, 1, "silu"),
        (136, 34, 4, 1, 1, 1, "add"),
        (102, 35, 3, 3, 2, 1, "relu"),
    ],
)
def test_groups_are_right_in_one_call(
    channels: int, per_group: int, groups: int, kernel: int, stride: int, batch: int, finish: str
) -> None:
    run(channels, per_group, groups, kernel, stride, batch, 13, finish, "direct")


@pytest.mark.parametrize(
    ("size", "stride", "batch", "finish"),
    [
        (14, 1, 1, "relu"),  # 2 rows of 98 pixels
        (14, 1, 3, "add"),
        (7, 1, 1, "silu"),  # a single row
        (15, 2, 2, "add"),  # every second pixel: rows stay as they are
        (1, 2, 2, "relu"),
    ],
)
def test_groups_of_images_that_are_one_long_row(size: int, stride: int, batch: int, finish: str) -> None:
    run(136, 34, 4, 1, stride, batch, size, finish, "direct")


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "finish"),
    [(3, 16, 3, 2, "hardswish"), (3, 24, 3, 1, "add"), (1, 40, 5, 1, "relu"), (4, 17, 3, 2, "silu")],
)
def test_pictures_become_channels_last(channels: int, outputs: int, kernel: int, stride: int, finish: str) -> None:
    run(channels, outputs, 1, kernel, stride, 2, 33, finish, "direct")


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "finish"),
    [(20, 5, 1, "hardswish"), (24, 5, 2, "relu"), (33, 7, 1, "add"), (16, 7, 2, "silu")],
)
def test_large_depthwise_kernels(channels: int, kernel: int, stride: int, finish: str) -> None:
    run(channels, 1, channels, kernel, stride, 2, 19, finish, "depthwise")


@pytest.mark.parametrize(
    ("channels", "per_group", "groups", "kernel"),
    [(32, 8, 4, 3), (20, 1, 20, 3), (3, 64, 1, 7), (5, 16, 1, 3), (1, 128, 1, 3)],
    ids=["eight channels", "depthwise 3x3", "picture by 7x7", "five channels", "one channel by 3x3"],
)
def test_others_stay_with_the_library(channels: int, per_group: int, groups: int, kernel: int) -> None:
    run(channels, per_group, groups, kernel, 1, 1, 13, "relu", "library")


@pytest.mark.parametrize(
    ("channels", "outputs", "stride", "batch", "finish", "expected"),
    [
        (400, 80, 1, 1, "relu", "product"),
        (300, 95, 2, 1, "relu", "product"),  # outputs that fill no panel
        (400, 80, 1, 1, "add", "product"),
        (400, 80, 2, 1, "add", "product"),
        (400, 80, 1, 1, "hardswish", "product"),
        (400, 80, 1, 1, "silu", "library"),
        (400, 80, 2, 2, "relu", "library"),  # odd images, of which every second line is not evenly spread
    ],
)
def test_few_pixels_are_rows_of_a_product(
    channels: int, outputs: int, stride: int, batch: int, finish: str, expected: str
) -> None:
    run(channels, outputs, 1, 1, stride, batch, 13, finish, expected)
