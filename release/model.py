"""Writes model.so, a small network with regions of dnnl, and its answer, for the image of release/Dockerfile."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tvm import relax

import tvm_byoc_dnnl as byoc


def main(folder: Path) -> None:
    """Write both files."""
    rng = np.random.default_rng(0)
    kernel, weight = (rng.standard_normal(shape, dtype="float32") for shape in ((8, 3, 3, 3), (8, 10)))
    bb, nn = relax.BlockBuilder(), relax.op.nn
    x = relax.Var("x", relax.TensorType((1, 3, 16, 16), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            h = bb.emit(nn.relu(bb.emit(nn.conv2d(x, relax.const(kernel), padding=1))))
            h = bb.emit(relax.op.mean(h, axis=[2, 3]))
            out = bb.emit_output(nn.softmax(bb.emit(relax.op.matmul(h, relax.const(weight)))))
        bb.emit_func_output(out)
    assert byoc.explain(bb.get()).totals.offloaded_calls >= 3
    ex = byoc.compile(bb.get())
    ex.export_library(str(folder / "model.so"))
    value = rng.standard_normal((1, 3, 16, 16), dtype="float32")
    np.savez(folder / "expected.npz", x=value, y=byoc.Runner(ex)(value))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
