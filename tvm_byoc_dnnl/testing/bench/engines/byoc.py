"""This package."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.stages import stage

from . import Run

__all__ = ["load"]


def load(path: str, threads: int, **options: Any) -> tuple[Run, str]:
    """Compile an ONNX file with ``options`` of `byoc.compile`; the thread count comes from the environment."""
    ex = byoc.compile(path, **options)
    with stage("load"):
        runner = byoc.Runner(ex, workers=max(1, len(os.sched_getaffinity(0)) // threads))
    return _Run(runner), byoc.__version__


class _Run:
    """A call, or a request that is answered by a future."""

    def __init__(self, runner: byoc.Runner) -> None:
        self._runner = runner

    def __call__(self, inputs: list) -> list:
        outputs = self._runner(*inputs)
        return outputs if isinstance(outputs, list) else [outputs]

    def submit(self, inputs: list) -> Future:
        return self._runner.submit(*inputs)
