"""Partitioning undone: regions become the composites that they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import StructuralKey

from ..ir.relax_utils import global_var, with_functions
from .blocks import dataflow_blocks
from .inline import Body, inline_calls

__all__ = ["dissolve_regions"]


def dissolve_regions(mod: tvm.IRModule, regions: Sequence[Any]) -> tvm.IRModule:
    """Undo the partitioning of some regions: the functions that called them call their composites instead."""
    lifted: dict[Any, Any] = {}
    taken = {gv.name_hint for gv in mod.get_global_vars()}
    seen: dict[StructuralKey, Any] = {}

    def lift(composite: relax.Function) -> Any:
        new = global_var(next(n for k in count() if (n := f"composite_{k}") not in taken), composite)
        gv = seen.setdefault(StructuralKey(composite), new)
        if gv is new:
            taken.add(gv.name_hint)
            lifted[gv] = composite
        return gv

    calls: dict[Any, dict[Any, Body]] = {}
    for host, block in dataflow_blocks(mod):
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call) and binding.value.op in regions:
                calls.setdefault(host, {})[binding.var] = Body(mod[binding.value.op])
    hosts = {host: inline_calls(mod[host], bodies, lift) for host, bodies in calls.items()}
    kept = {gv: f for gv, f in mod.functions.items() if gv not in regions}
    mod = tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)
    return with_functions(mod, {**lifted, **_tidied(hosts)})


def _tidied(functions: Mapping[Any, relax.Function]) -> dict[Any, relax.Function]:
    """Functions without the tuples in which regions returned their results."""
    names = [gv.name_hint for gv in functions]
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(names)]
    tidy = tvm.transform.Sequential(passes)(tvm.IRModule(functions))
    return {gv: tidy[gv.name_hint] for gv in functions}
