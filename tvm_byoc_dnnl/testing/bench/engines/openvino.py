"""OpenVINO's CPU plugin, tuned for one request at a time."""

from __future__ import annotations

import threading

import numpy as np
import openvino as ov

from . import Run

_HINTS = {"float32": "f32", "bfloat16": "bf16"}


def load(path: str, threads: int, precision: str = "float32") -> tuple[Run, str]:
    """Compile an ONNX file for the CPU."""
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
    }
    compiled = ov.Core().compile_model(path, "CPU", config)
    count = len(compiled.outputs)
    own = threading.local()  # a request runs one call at a time

    def run(inputs: list) -> list:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        own.request.infer(inputs, share_inputs=True)
        return [np.array(own.request.get_output_tensor(i).data) for i in range(count)]

    return run, ov.__version__.split("-")[0]
