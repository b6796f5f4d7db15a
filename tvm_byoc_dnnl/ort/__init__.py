"""ONNX Runtime's Python interface: ``import tvm_byoc_dnnl.ort as onnxruntime``.

``python -m tvm_byoc_dnnl.ort app.py`` runs a program that imports ``onnxruntime`` as it is.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from .foreign import installed
from .options import (
    EngineError,
    EPFail,
    ExecutionMode,
    ExecutionOrder,
    Fail,
    GraphOptimizationLevel,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoaded,
    NoModel,
    NoSuchFile,
    NotImplemented,
    RunOptions,
    RuntimeException,
    SessionOptions,
)
from .session import InferenceSession
from .values import IOBinding, ModelMetadata, NodeArg, OrtValue

__all__ = [
    "EPFail",
    "EngineError",
    "ExecutionMode",
    "ExecutionOrder",
    "Fail",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoaded",
    "ModelMetadata",
    "NoModel",
    "NoSuchFile",
    "NodeArg",
    "NotImplemented",
    "OrtValue",
    "RunOptions",
    "RuntimeException",
    "SessionIOBinding",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

#: the release of ONNX Runtime whose interface this is
__version__ = "1.32.0"
SessionIOBinding = IOBinding
#: where programs look for classes of errors and sessions
capi = types.ModuleType("onnxruntime.capi")
for _name in ("onnxruntime_pybind11_state", "_pybind_state", "onnxruntime_inference_collection"):
    setattr(capi, _name, sys.modules[__name__])


def __getattr__(name: str) -> Any:
    """What is ONNX Runtime's alone, such as `OrtDevice`, `NotFound` and `quantization`: the installed one's."""
    if name.startswith("_"):
        raise AttributeError(f"{__name__} has no {name!r}")
    try:
        package = installed()
    except ImportError as error:
        reason = "and ONNX Runtime, which may have it, is not installed"
        raise AttributeError(f"{__name__} has no {name!r}, {reason}") from error
    return getattr(package, name) if hasattr(package, name) else getattr(package.capi.onnxruntime_pybind11_state, name)


def get_available_providers() -> list[str]:
    """The CPU."""
    return ["CPUExecutionProvider"]


get_all_providers = get_available_providers


def get_device() -> str:
    """The kind of device that models run on."""
    return "CPU"


def get_version_string() -> str:
    """The release of ONNX Runtime whose interface this is."""
    return __version__


def set_default_logger_severity(severity: int) -> None:
    """Of ONNX Runtime's log; ``logging.getLogger("tvm_byoc_dnnl")`` is the one here."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Of ONNX Runtime's log."""


def set_seed(seed: int) -> None:
    """Of random operators; a compiled model has seeds of its own."""


def enable_telemetry_events() -> None:
    """There is no telemetry."""


disable_telemetry_events = enable_telemetry_events
