"""This package."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

from tvm_byoc_dnnl import Runner, __version__, compile, compilers
from tvm_byoc_dnnl.core.compilation import stage
from tvm_byoc_dnnl.frontends.onnx import importer as onnx_import  # noqa: F401  (with TVM's importer; see below)

from . import Run

compilers()  # imports the vendors: of no engine the time to the first result counts imports


def load(path: str, threads: int, **options: Any) -> tuple[Run, str]:
    """Compile an ONNX file with ``options`` of `byoc.compile`; the thread count comes from the environment."""
    ex = compile(path, **options)
    with stage("load"):
        runner = Runner(ex, workers=max(1, len(os.sched_getaffinity(0)) // threads))
    return _Run(runner), __version__


class _Run:
    """A call, or a request that is answered by a future."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __call__(self, inputs: list) -> list:
        outputs = self._runner(*inputs)
        return outputs if isinstance(outputs, list) else [outputs]

    def submit(self, inputs: list) -> Future:
        return self._runner.submit(*inputs)
