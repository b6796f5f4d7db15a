"""Writes the golden library: `make golden`, on a deliberate change of the format only.

The file of the format before stays, to show that it is refused by a clear error (or still works).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl import _native
from tvm_byoc_dnnl._compat import make_constant

WEIGHT = (np.arange(24, dtype="float32").reshape(6, 4) - 11) / 8
BIAS = np.array([0.5, -0.25, 0, 1], "float32")


def model() -> tvm.IRModule:
    """[n, 6] -> relu(x @ WEIGHT + BIAS): one region with a symbol, post-ops and two constants."""
    x = relax.Var("x", relax.TensorType((tvm.tirx.Var("n", "int64"), 6), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.matmul(x, make_constant(WEIGHT)))
            y = bb.emit_output(relax.op.nn.relu(bb.emit(relax.op.add(y, make_constant(BIAS)))))
        bb.emit_func_output(y)
    return bb.get()


def format_version() -> int:
    """That of the installed library."""
    return json.loads(_native.function("tvm_byoc_dnnl.Info")())["format_version"]


def path_of(version: int) -> Path:
    return Path(__file__).parent / f"format{version}.library"  # a shared library; *.so is what git ignores


def main() -> None:
    path = path_of(format_version())
    small = ["-s", "-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=4096", "-Wl,--build-id=none"]
    byoc.compile(model()).export_library(path, options=small)
    path.chmod(0o644)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
