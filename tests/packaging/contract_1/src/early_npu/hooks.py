"""How a region becomes code: TE by tvm-byoc-dnnl, a schedule of our own, C by TVM's generator.

A real backend writes its own instructions or its library's calls into the schedule (tensorize) or into `to_runtime`.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc

__all__ = ["OPTIONS", "register"]

NAMESPACE, TARGET = "early_npu", "c"
#: option → default; a user sets them by ``byoc.compile(model, "early_npu", options={"early_npu": {"unroll": True}})``
OPTIONS = {"unroll": False}


def register() -> None:
    """Register both hooks."""
    byoc.register_target_hooks(
        NAMESPACE,
        relax_to_tir=byoc.for_each_region(lower_region),
        tir_to_runtime=to_runtime,
        target=TARGET,
        options=OPTIONS,
    )


def lower_region(region: relax.Function, builder: relax.BlockBuilder) -> relax.Call:
    """A region as one PrimFunc. What it raises is the reason for which the region goes back to TVM."""
    graph = byoc.translate_to_te((builder.get(), region), TARGET)
    return graph.call(builder, region.params, byoc.schedule_te(graph, TARGET, schedule))


def schedule(sch: Any, graph: byoc.TEGraph) -> None:
    """One loop nest per result, as early_npu has no memory for values between: the other stages are inlined."""
    blocks, results = graph.blocks(sch), {tensor.op for tensor in graph.outputs}
    for stage, block in blocks.items():
        if stage not in results:
            sch.compute_inline(block)


def to_runtime(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """The PrimFuncs of all regions as one C source, which TVM compiles when the model is run or exported."""
    pragma = '#pragma GCC optimize("unroll-loops")\n' if byoc.get_target_options(mod, NAMESPACE)["unroll"] else ""
    symbols = [gv.name_hint for gv in mod.get_global_vars()]
    create = tvm.get_global_func("runtime.CSourceModuleCreate")
    return create(pragma + byoc.generate_c(mod, target), "c", symbols, [])
