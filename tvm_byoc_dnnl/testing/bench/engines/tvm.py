"""TVM as its users get it: the ONNX importer and the default CPU pipeline."""

from __future__ import annotations

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from . import Run


def load(path: str, threads: int) -> tuple[Run, str]:
    """Compile an ONNX file; the default pipeline makes code for one thread, whatever ``threads`` says."""
    executable = tvm.compile(from_onnx(onnx.load(path)), target="llvm")
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]

    def run(inputs: list) -> list:
        outputs = main(*(tvm.runtime.tensor(i) for i in inputs))
        return [outputs.numpy()] if hasattr(outputs, "numpy") else [o.numpy() for o in outputs]

    return run, tvm.__version__
