"""Run one function with the backend and without it, and say what differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.runtime.comparison import difference

from .program import Program

__all__ = ["ReferenceFailed", "check", "why"]

#: In place of `comparison.TOLERANCES`: a function is a chain of calls, each of which rounds and approximates.
_TOLERANCES = {"float32": 5e-5, "float64": 5e-5, "float16": 2**-7, "bfloat16": 2**-4}

#: What counts as the largest value of a result that cancels: the inputs are about 1.
_LEAST = 1e-3

#: How much farther from the result in float64 than TVM's float32 we may be, when the functions amplify errors.
_FACTOR = 8

#: The reference needs no speed: LLVM's optimisations are most of the time that a case takes.
_REFERENCE_TARGET = {"kind": "llvm", "opt-level": 0}


class ReferenceFailed(Exception):
    """TVM alone can not compile or run the function: nothing says what is right."""


def check(program: Program, compiler: str = "dnnl") -> list[str]:
    """Compare; the operators of the regions. Raises AssertionError with the function when results differ.

    Whatever TVM alone can build must build with the backend too: other exceptions are failures as well.
    """
    inputs = program.inputs()
    try:
        wanted = _run(tvm.compile(program.module, tvm.target.Target(_REFERENCE_TARGET)), inputs)
    except Exception as error:
        raise ReferenceFailed(str(error)) from error
    partitioned = byoc.partition(program.module, compiler=compiler)
    got = _run(tvm.compile(partitioned, "llvm", relax_pipeline="byoc"), inputs)
    coarsest = max((_TOLERANCES[d] for d in program.dtypes() if d in _TOLERANCES), default=0.0)
    tolerances = {dtype: max(coarsest, own) for dtype, own in _TOLERANCES.items()}
    assert len(got) == len(wanted), f"{len(got)} results, expected {len(wanted)}"
    for i, (mine, theirs) in enumerate(zip(got, wanted)):
        wrong = difference(mine, theirs, tolerances, least=_LEAST)
        if wrong and not _is_rounding(program, i, mine, theirs):
            raise AssertionError(f"output {i} {wrong}")
    return [name for name, f in partitioned.functions_items() if _is_region(f)]


def why(program: Program, compiler: str = "dnnl") -> str | None:
    """What is wrong with a function, None if nothing is."""
    try:
        check(program, compiler)
    except ReferenceFailed:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _is_rounding(program: Program, index: int, got: np.ndarray, want: np.ndarray) -> bool:
    """Whether TVM's own float32 result is about as far from the one in float64 as ours, and as finite."""
    if want.dtype.kind in "biu" or difference(got, want, np.inf):
        return False
    inputs = [a.astype("float64") if a.dtype == "float32" else a for a in program.inputs()]
    try:
        exact = _run(tvm.compile(program.build("float64"), tvm.target.Target(_REFERENCE_TARGET)), inputs)[index]
    except Exception:  # an operator without float64
        return False
    finite = np.isfinite(exact) & np.isfinite(want.astype("float64"))
    if difference(np.where(finite, want, got), want, _TOLERANCES, least=_LEAST):
        return False
    mine, theirs = (np.abs(a.astype("float64") - exact)[finite].max() for a in (got, want))
    return bool(mine <= _FACTOR * theirs + _TOLERANCES[str(want.dtype)] * np.abs(exact[finite]).max())


def _run(executable: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return _flat(machine["main"](*[tvm.runtime.tensor(a) for a in inputs]))


def _flat(result: Any) -> list[np.ndarray]:
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [a for r in result for a in _flat(r)]


def _is_region(function: Any) -> bool:
    return isinstance(function, relax.Function) and bool(function.attrs) and "Codegen" in function.attrs
