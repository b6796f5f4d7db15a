"""Memory of intermediate tensors: TVM's plan, except for functions whose branches allocate some.

TVM's plan takes memory that one branch of an If gave back for a tensor of the other branch, or of what follows: where
the first one did not run, there is no such memory, and the process ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..ir.relax_utils import bindings_in, bindings_of, is_host_function, is_op_call, with_functions

_PLAN = "StaticPlanBlockMemory"
_ALLOCATION = "relax.builtin.alloc_tensor"


def with_safe_plan(passes: Sequence[tvm.transform.Pass]) -> list[tvm.transform.Pass]:
    """These passes, of which the one that plans memory leaves such functions alone."""
    return [_careful(p) if p.info.name == _PLAN else p for p in passes]


def _careful(plan: tvm.transform.Pass) -> tvm.transform.Pass:
    @tvm.transform.module_pass(opt_level=0, name=_PLAN)
    def careful(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        kept = {gv: f for gv, f in mod.functions.items() if is_host_function(f) and _has_allocating_branch(f)}
        return with_functions(plan(mod), kept)

    return careful


def _has_allocating_branch(func: relax.Function) -> bool:
    branches = (value for _, value in bindings_of(func) if isinstance(value, relax.If))
    inside = (binding.value for branch in branches for binding in bindings_in(branch))
    return any(is_op_call(value) and value.op.name == _ALLOCATION for value in inside)
