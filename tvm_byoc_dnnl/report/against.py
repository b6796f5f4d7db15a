"""A whole model beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np
import onnx

from ..core.errors import InputError, UnsupportedError
from ..runtime.comparison import difference, gap, nudged, sensitivity

#: who says what is right: TVM of each region, or another engine of the whole model
TVM, ONNXRUNTIME = AGAINST = ("tvm", "onnxruntime")


@dataclass
class OutputGap:
    """The gap of an output of the model.

    Attributes
    ----------
    output : str
        Its name.
    gap : float
        Largest difference, relative to the largest value that ONNX Runtime gives.
    difference : str
        The error with its position; empty where the output is right.
    """

    output: str
    gap: float
    difference: str = ""


def is_onnx(model: Any) -> bool:
    """Whether ONNX Runtime can be asked for a model: a ModelProto, or the path of one."""
    return isinstance(model, onnx.ModelProto) or (
        isinstance(model, (str, PathLike)) and not fspath(model).endswith(".pt2")
    )


def ort_run(model: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of a model, its bytes or its path, computed by ONNX Runtime on the CPU.

    It runs the graph as written, because ONNX Runtime's own rewrites change the numbers of quantised models by some
    percent.
    """
    return _session(model)(inputs)


def _session(model: Any) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    source = fspath(source) if isinstance(source, PathLike) else source
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, dict(inputs))


def beside_onnxruntime(
    model: Any,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    tolerance: float | Mapping[str, float] | None,
) -> list[OutputGap]:
    """The gap of each output to what ONNX Runtime computes of the same inputs, by name; ``tolerance`` as for `verify`.

    Raises
    ------
    InputError
        If ONNX Runtime is not installed.
    UnsupportedError
        If it refuses the model.
    """
    steps = tolerance if isinstance(tolerance, Mapping) else None
    near = [] if isinstance(tolerance, (int, float)) else nudged(list(inputs.values()), steps)
    try:
        run = _session(model)
        wanted = run(inputs)
        nearby = [run(dict(zip(inputs, values, strict=True))) for values in near]
    except ImportError as error:
        raise InputError("against='onnxruntime' needs it: pip install onnxruntime") from error
    except Exception as error:
        raise UnsupportedError(f"ONNX Runtime cannot run the model: {error}".splitlines()[0]) from error
    return [
        OutputGap(name, gap([got], [right]), difference(got, right, tolerance, slack=slack))
        for (name, got), right, slack in zip(outputs.items(), wanted, sensitivity(wanted, nearby), strict=True)
    ]
