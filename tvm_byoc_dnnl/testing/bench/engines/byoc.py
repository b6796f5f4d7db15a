"""This package."""

from __future__ import annotations

from typing import Any

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.stages import stage

from . import Run

__all__ = ["load"]


def load(path: str, threads: int, **options: Any) -> tuple[Run, str]:
    """Compile an ONNX file with ``options`` of `byoc.compile`; the thread count comes from the environment."""
    ex = byoc.compile(path, **options)
    with stage("load"):
        runner = byoc.Runner(ex)

    def run(inputs: list) -> list:
        outputs = runner(*inputs)
        return outputs if isinstance(outputs, list) else [outputs]

    return run, byoc.__version__
