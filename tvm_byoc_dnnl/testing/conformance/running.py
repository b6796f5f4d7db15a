"""Many functions in one module, compiled at once and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...report.verify import arrays_in
from .case import Case

#: results of a function, or why there are none
Outcome = list[np.ndarray] | Exception
#: The target of TVM's own part. It runs once, so optimising it would take longer than running it.
HOST = {"kind": "llvm", "opt-level": 0}


def function_name(index: int) -> str:
    """The name of the function of this case in the module of a batch."""
    return f"case_{index}"


def module_of(functions: Sequence[Any]) -> tvm.IRModule:
    """One module of all functions."""
    names = [function_name(i) for i in range(len(functions))]
    named = zip(names, functions, strict=True)
    return tvm.IRModule({tvm.ir.GlobalVar(n): f.with_attr("global_symbol", n) for n, f in named})


def by_tvm(mod: tvm.IRModule) -> Any:
    """A module, compiled by TVM alone."""
    return tvm.compile(mod, tvm.target.Target(HOST))


def outcomes(cases: Sequence[Case], functions: Sequence[Any], build: Callable[[tvm.IRModule], Any]) -> list[Any]:
    """For each case a function of inputs that runs the case's function, or why it does not build.

    What does not build is found without building each by itself: first what cannot be legalised, then by halves.
    """
    if not cases:
        return []
    try:
        machine = relax.VirtualMachine(build(module_of(functions)), tvm.cpu())
    except Exception as error:
        if len(cases) == 1:
            return [error]
    else:
        return [machine[function_name(i)] for i in range(len(cases))]
    refused = {i: why for i, f in enumerate(functions) if (why := _why_not_legal(f)) is not None}
    if refused and len(refused) < len(cases):
        kept = [i for i in range(len(cases)) if i not in refused]
        rest = outcomes([cases[i] for i in kept], [functions[i] for i in kept], build)
        return [{**refused, **dict(zip(kept, rest, strict=True))}[i] for i in range(len(cases))]
    half = len(cases) // 2
    return outcomes(cases[:half], functions[:half], build) + outcomes(cases[half:], functions[half:], build)


def _why_not_legal(function: Any) -> Exception | None:
    try:
        with tvm.target.Target(HOST):
            relax.transform.LegalizeOps()(module_of([function]))
    except Exception as error:
        return error
    return None


def run(function: Any, inputs: Sequence[np.ndarray]) -> Outcome:
    """The results of what `outcomes` gave for a case."""
    if isinstance(function, Exception):
        return function
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    try:
        results = arrays_in(function(*tensors))
    except Exception as error:
        return error
    for i, (tensor, array) in enumerate(zip(tensors, inputs, strict=True)):
        if tensor.numpy().tobytes() != array.tobytes():
            return ValueError(f"input {i} is overwritten; a region may write nothing but its results")
    return results
