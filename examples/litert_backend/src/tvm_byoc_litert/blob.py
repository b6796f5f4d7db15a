"""A model as bytes, and how a process loads and runs them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import tvm
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import tvm_byoc_dnnl as byoc

from .region import model_of

__all__ = ["OPTIONS", "check", "codegen", "interpreter_of", "load", "runner"]

_KERNELS = {
    "xnnpack": OpResolverType.BUILTIN,
    "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "reference": OpResolverType.BUILTIN_REF,
}
#: options of the namespace
OPTIONS = {"kernels": "xnnpack"}  # or "builtin", LiteRT's own, or "reference", which are slow and define the numbers


def codegen(
    functions: Sequence[Any], options: Mapping[str, Any] | None, constant_names: Mapping[Any, str]
) -> list[tvm.runtime.Module]:
    """A module of each region. Its constants are inside of the blob."""
    kernels = str((options or {}).get("kernels", OPTIONS["kernels"]))
    if kernels not in _KERNELS:
        raise byoc.InputError(f"option kernels is {kernels!r}; expected {', '.join(map(repr, _KERNELS))}")
    modules = []
    for function in functions:
        model, places = model_of(function)
        header = json.dumps({"places": places, "kernels": kernels}).encode()
        symbol = str(function.attrs["global_symbol"])
        modules.append(byoc.blob_module("litert", symbol, header + b"\n" + model, version("ai-edge-litert")))
    return modules


def check(compatibility: str) -> bool | byoc.Works:
    """Whether this process can run a blob: the format is kept, and an older version may lack an operator."""
    here = version("ai-edge-litert")
    return compatibility == here or byoc.Works(f"made for LiteRT {compatibility}, and here is {here}")


def interpreter_of(model: bytes, kernels: str) -> Interpreter:
    """An interpreter that is ready, with as many threads as ``OMP_NUM_THREADS`` says, else all usable cores."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(given) if given.isdigit() and int(given) else len(os.sched_getaffinity(0))
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=_KERNELS[kernels], num_threads=threads)
    interpreter.allocate_tensors()
    return interpreter


def load(data: bytes) -> Callable[..., None]:
    """``run(*arguments, *results)`` of a blob."""
    header, _, model = data.partition(b"\n")
    fields = json.loads(header)
    return runner(model, fields["places"], fields["kernels"])


def runner(model: bytes, places: Sequence[int], kernels: str) -> Callable[..., None]:
    """``run(*arguments, *results)`` of a model; each thread has an interpreter of its own."""
    local = threading.local()
    local.interpreter = first = interpreter_of(model, kernels)
    inputs = [detail["index"] for detail in first.get_input_details()]
    outputs = [detail["index"] for detail in first.get_output_details()]
    made = [i for i, place in enumerate(places) if place == i and i >= len(inputs)]

    def run(*tensors: Any) -> None:
        if not hasattr(local, "interpreter"):
            local.interpreter = interpreter_of(model, kernels)
        arrays = [np.from_dlpack(tensor) for tensor in tensors]
        for index, array in zip(inputs, arrays):
            local.interpreter.set_tensor(index, array)
        local.interpreter.invoke()
        for index, position in zip(outputs, made, strict=True):
            arrays[position][...] = local.interpreter.tensor(index)()
        for array, place in zip(arrays[len(inputs) :], places[len(inputs) :], strict=True):
            if array is not arrays[place]:
                array[...] = arrays[place]

    return run
