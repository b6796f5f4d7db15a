"""Small programs, partitioned: what became a region, and what the host still calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.unit.importing import module
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, codegen_of, composite_of

__all__ = ["host", "partitioned", "program", "regions"]


def program(build: Callable[..., Any], inputs: int = 1) -> tvm.IRModule:
    """`main` with one dataflow block over 4×4 inputs; ``build(emit, *params)`` returns its result, or a tuple."""
    return module(lambda builder, *params: build(builder.emit, *params), *[(4, 4)] * inputs)


def partitioned(mod: tvm.IRModule, compilers: Any = "v1") -> tvm.IRModule:
    """The module with its regions, checked."""
    result = byoc.partition(mod, compilers)
    assert relax.analysis.well_formed(result) is not False  # 0.27 raises instead
    return result


def regions(mod: tvm.IRModule) -> dict[str, list[str]]:
    """Region name → short names of the composites inside, in order."""
    return {
        gv.name_hint: [composite_of(v).split(".")[-1] for _, v in bindings_of(f) if isinstance(v, relax.Function)]
        for gv, f in mod.functions.items()
        if codegen_of(f)
    }


def host(mod: tvm.IRModule, name: str = "main") -> list[str]:
    """The names of the operators and regions that a function still calls, in order."""
    calls = [v for _, v in bindings_of(mod[name]) if isinstance(v, relax.Call)]
    return [c.op.name if isinstance(c.op, tvm.ir.Op) else c.op.name_hint for c in calls]
