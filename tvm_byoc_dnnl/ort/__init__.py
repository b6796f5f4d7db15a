"""ONNX Runtime's Python interface: ``import tvm_byoc_dnnl.ort as onnxruntime``.

``python -m tvm_byoc_dnnl.ort app.py`` runs a program that imports ``onnxruntime`` as it is.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from . import options
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
#: where programs look for the classes of errors
capi = types.ModuleType("onnxruntime.capi")
vars(capi).update(
    onnxruntime_pybind11_state=options,
    _pybind_state=sys.modules[__name__],
    onnxruntime_inference_collection=sys.modules[__name__],
)


def __getattr__(name: str) -> Any:
    """What is ONNX Runtime's alone, such as `OrtDevice` and `get_build_info`: the installed one's."""
    if not name.startswith("_"):
        try:
            return getattr(installed(), name)
        except ImportError:
            pass
    raise AttributeError(f"{__name__} has no {name!r}, and ONNX Runtime, which may have it, is not installed")


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
