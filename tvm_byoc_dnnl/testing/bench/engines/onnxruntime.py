"""ONNX Runtime's CPU provider, all of its own rewrites on."""

from __future__ import annotations

import onnxruntime as ort

from . import Run


def load(path: str, threads: int) -> tuple[Run, str]:
    """Open a session; every input of the file must be given."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]

    def run(inputs: list) -> list:
        return session.run(None, dict(zip(names, inputs, strict=True)))

    return run, ort.__version__
