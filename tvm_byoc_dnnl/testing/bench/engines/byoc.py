"""This package."""

from __future__ import annotations

import tvm_byoc_dnnl as byoc

from . import Run

__all__ = ["load"]


def load(path: str, threads: int, precision: str = "float32") -> tuple[Run, str]:
    """Compile an ONNX file with the package's defaults; the thread count comes from the environment."""
    runner = byoc.Runner(byoc.compile(path, precision=precision))

    def run(inputs: list) -> list:
        outputs = runner(*inputs)
        return outputs if isinstance(outputs, list) else [outputs]

    return run, byoc.__version__
