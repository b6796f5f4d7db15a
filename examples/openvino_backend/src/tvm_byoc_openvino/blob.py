"""The compiled model as bytes, and how a process loads and runs them."""

from __future__ import annotations

import functools
import io
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
import tvm
from openvino import opset13 as ops

import tvm_byoc_dnnl as byoc

from .region import model_of

__all__ = ["OPTIONS", "check", "codegen", "load"]

#: options of the namespace
OPTIONS = {"precision": "f32"}  # or "bf16", for products on CPUs that have it


_core = functools.cache(ov.Core)


def _settings(precision: str) -> dict[str, Any]:
    """Of a compilation and of its import, for which OpenVINO would choose bfloat16 anew; TVM's threads run beside."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(given) if given.isdigit() and int(given) else len(os.sched_getaffinity(0))
    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    return {**hints, "INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}


def codegen(
    functions: Sequence[Any], options: Mapping[str, Any] | None, constant_names: Mapping[Any, str]
) -> list[tvm.runtime.Module]:
    """A module of each region. Its constants are inside of the blob."""
    precision = str((options or {}).get("precision", OPTIONS["precision"]))
    if precision not in ("f32", "bf16"):
        raise byoc.InputError(f"option precision is {precision!r}; expected 'f32' or 'bf16'")
    modules = []
    for function in functions:
        model, places = model_of(function)
        compiled = _core().compile_model(model, "CPU", _settings(precision))
        data = io.BytesIO(json.dumps({"places": places, "precision": precision}).encode() + b"\n")
        data.seek(0, io.SEEK_END)
        compiled.export_model(data)
        symbol = str(function.attrs["global_symbol"])
        modules.append(byoc.blob_module("openvino", symbol, data.getvalue(), _requirements(compiled)))
    return modules


def _requirements(compiled: ov.CompiledModel) -> str:
    """OpenVINO's own words on what can import a compiled model: the version and the instruction set."""
    return str(compiled.get_property("RUNTIME_REQUIREMENTS"))


@functools.cache
def _offered() -> str:
    """The same words for a model that is compiled here."""
    x = ops.parameter([1])
    model = ov.Model([ops.result(ops.relu(x))], [x])
    return _requirements(_core().compile_model(model, "CPU", _settings("f32")))


def check(compatibility: str) -> bool | byoc.Reject:
    """Whether this process can import a blob."""
    offered = _offered()
    return compatibility == offered or byoc.Reject(f"it needs {compatibility!r}, and here is {offered!r}")


def load(data: bytes) -> Callable[..., None]:
    """``run(*arguments, *results)`` of a blob; each thread has a request of its own."""
    header, _, model = data.partition(b"\n")
    places, precision = map(json.loads(header).__getitem__, ("places", "precision"))
    compiled = _core().import_model(io.BytesIO(model), "CPU", _settings(precision))
    count, names = len(compiled.inputs), [output.get_node().get_friendly_name() for output in compiled.outputs]
    written = {f"input_{i}": i for i in range(count)}  # the tensor among `tensors` that has what is called so
    outputs, copies = [], []  # (output of the model, tensor), (tensor, the tensor that it equals)
    for position, name in enumerate(places, count):
        if name in written:
            copies.append((position, written[name]))
        else:
            written[name] = position
            outputs.append((names.index(name), position))
    local = threading.local()

    def run(*tensors: Any) -> None:
        if not hasattr(local, "request"):
            local.request = compiled.create_infer_request()
        arrays = [np.from_dlpack(tensor) for tensor in tensors]
        for i in range(count):
            local.request.set_input_tensor(i, ov.Tensor(arrays[i], shared_memory=True))
        for output, position in outputs:
            local.request.set_output_tensor(output, ov.Tensor(arrays[position], shared_memory=True))
        local.request.infer()
        for target, source in copies:
            arrays[target][...] = arrays[source]

    return run
