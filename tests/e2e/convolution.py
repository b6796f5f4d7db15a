"""A convolution with a bias and what follows it, compiled here and compared with NumPy in float64.

``python -m tests.e2e.convolution CASES``, where the cases are dictionaries by name as JSON, runs them in a process
whose environment limits the instruction set. A built library and emitted source must be right, without a step of
their own for what follows; ``expected`` is the kernel of ours that computes it, with its instruction set, or "library".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Collection

import numpy as np
from tvm import relax

import tvm_byoc_dnnl as byoc

KERNELS = ("depthwise", "direct", "groups", "product")


def run(limit: str, cases: dict[str, dict[str, object]], in_source: Collection[str]) -> None:
    """Run cases where oneDNN is limited to this instruction set, and fail with what those say that fail.

    Those ``in_source`` are also emitted, which takes the C compiler seconds each.
    """
    outputs = {name: ["module", "source"] if name in in_source else ["module"] for name in cases}
    cases = {name: case | {"outputs": outputs[name]} for name, case in cases.items()}
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": limit}
    command = [sys.executable, "-m", "tests.e2e.convolution", json.dumps(cases)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]


def convolve(
    channels: int,
    per_group: int,
    groups: int,
    kernel: tuple[int, int],
    expected: str,
    stride: int = 1,
    dilation: int = 1,
    batch: int = 1,
    size: tuple[int, int] = (13, 13),
    finish: str = "relu",
    special: bool = False,
    outputs: tuple[str, ...] = ("module", "source"),
) -> None:
    """Fail unless it is right. ``per_group``: outputs of a group; ``special``: the source has a NaN and infinities."""
    results = per_group * groups
    reach = [(k - 1) * dilation for k in kernel]
    pads = [r // 2 for r in reach]
    rng = np.random.default_rng(3)
    w = rng.standard_normal((results, channels // groups, *kernel)).astype("float32")
    b = rng.standard_normal((1, results, 1, 1)).astype("float32")
    x = rng.standard_normal((batch, channels, *size)).astype("float32")
    if special:
        x[0, 0, 2, 3], x[0, 1, 1, 1], x[0, -1, -1, -1] = np.nan, np.inf, -np.inf
    out = [(s + 2 * p - r - 1) // stride + 1 for s, p, r in zip(size, pads, reach, strict=True)]
    z = rng.standard_normal((batch, results, *out)).astype("float32")

    v, r = (relax.Var(n, relax.TensorType(a.shape, "float32")) for n, a in (("x", x), ("z", z)))
    nn, op, bb = relax.op.nn, relax.op, relax.BlockBuilder()
    attrs = {"groups": groups, "padding": pads, "strides": stride, "dilation": dilation}
    with bb.function("main", [v, r]):
        with bb.dataflow():
            y = bb.emit(op.add(bb.emit(nn.conv2d(v, relax.const(w), **attrs)), relax.const(b)))
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

    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), *((p, p) for p in pads)))
    window = tuple(r + 1 for r in reach)
    taps = np.lib.stride_tricks.sliding_window_view(padded, window, (2, 3))[:, :, ::stride, ::stride]
    taps = taps[..., ::dilation, ::dilation].reshape(batch, groups, channels // groups, *out, *kernel)
    per_group_w = w.astype("float64").reshape(groups, per_group, channels // groups, *kernel)
    with np.errstate(invalid="ignore"):
        exact = np.einsum("ngcyxij,gocij->ngoyx", taps, per_group_w).reshape(z.shape) + b
        if finish == "silu":
            exact = exact / (1 + np.exp(-exact))
        if finish == "hardswish":
            exact = exact * np.clip(exact + 3, 0, 6) / 6 * 0.4 - 0.1
        else:
            exact = np.maximum(exact + z if finish == "add" else exact, 0)

    built = {output: byoc.compile(bb.get(), output=output) for output in outputs}
    finite = np.isfinite(exact)
    for output, executable in built.items():
        got = byoc.Runner(executable)(x, z)
        assert np.array_equal(got[~finite], exact[~finite], equal_nan=True), output
        error = np.abs(got[finite] - exact[finite]).max() / np.abs(exact[finite]).max()
        assert error < 1e-6, (output, error)
    steps = byoc.profile(built["module"], repeat=1).steps
    assert not {"eltwise", "binary"} & {step.kind for step in steps}, steps
    names = [step.implementation or "" for step in steps]
    ours = [name for name in names if name.split(":")[0] in KERNELS]
    assert ours == ([] if expected == "library" else [expected]), names


def main(cases: dict[str, dict[str, object]]) -> int:
    """Run them all; say how many fail, and print why."""
    failed = 0
    for name, case in cases.items():
        try:
            convolve(**{key: tuple(value) if isinstance(value, list) else value for key, value in case.items()})
        except Exception:
            failed += 1
            print(f"{name}: {traceback.format_exc(limit=-1)}")
    return failed


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
