"""The engines that can be compared: one row here and one small module each.

An engine's module has one function, ``load(path, threads, **options) -> (run, version)``, where ``run`` takes the list
of the model's inputs and returns the list of its outputs, all NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ENGINES", "PROBE", "REFERENCE", "Engine", "Loader", "Run"]

Run = Callable[[list[np.ndarray]], list[np.ndarray]]
Loader = Callable[..., tuple[Run, str]]


@dataclass(frozen=True)
class Engine:
    """One row of the comparison."""

    #: full name of the module that loads models for the engine
    module: str
    #: name in tables
    label: str
    #: module that must be importable
    requires: str
    #: passed to the module's ``load``
    options: Mapping[str, Any] = field(default_factory=dict)
    #: largest accepted difference from the reference, as a share of the largest reference value
    tolerance: float = 1e-3
    #: take part in so many rounds only: for engines that need seconds per run
    max_rounds: int | None = None
    #: set in the engine's process before anything is imported there
    env: Mapping[str, str] = field(default_factory=dict)


ENGINES: dict[str, Engine] = {
    "byoc": Engine(f"{__name__}.byoc", "tvm-byoc-dnnl", "tvm"),
    "byoc-bf16": Engine(f"{__name__}.byoc", "tvm-byoc-dnnl bf16", "tvm", {"precision": "bfloat16"}, 5e-2),
    "onnxruntime": Engine(f"{__name__}.onnxruntime", "ONNX Runtime", "onnxruntime"),
    "openvino": Engine(f"{__name__}.openvino", "OpenVINO", "openvino"),
    "openvino-bf16": Engine(f"{__name__}.openvino", "OpenVINO bf16", "openvino", {"precision": "bfloat16"}, 5e-2),
    # MNN computes convolutions by tiles that lose about three digits.
    "mnn": Engine(f"{__name__}.mnn", "MNN", "MNN", tolerance=5e-3, env={"PIP_NO_INDEX": "1"}),
    "ncnn": Engine(f"{__name__}.ncnn", "ncnn", "ncnn"),
    # Without us: TVM's own default pipeline, seconds per picture.
    "tvm": Engine(f"{__name__}.tvm", "TVM alone", "tvm", max_rounds=3, env={"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}),
}

REFERENCE = "onnxruntime"
"""The engine whose outputs every other engine's are checked against."""

PROBE = Engine(f"{__name__}.probe", "quietness probe", "numpy")
"""A fixed matrix product that takes its turns too: its spread says how quiet the machine was."""
