"""Regions → PrimFuncs → C."""

from __future__ import annotations

import tvm
from tvm import relax, s_tir, tirx

from ...vendor import TEGraph, c_module, generate_c, get_target_options, schedule_te, translate_to_te
from .schedule import schedule
from .toolchain import compile_object

NAMESPACE = "ccompiler"
TARGET = "c"
#: option → default
OPTIONS = {
    "cc": "",  # the compiler's command; else the environment's CC, else the first of cc, gcc, clang
    "optimize": 3,  # -O
    "march": "",  # -march: the machine that the exported library needs; by default the compiler's baseline
    "source": False,  # leave C source in the module, for export_library(..., cc=...) to compile: a cross compiler
}


def lower_region(region: relax.Function, builder: relax.BlockBuilder) -> relax.Call:
    """One region as one kernel."""
    graph = translate_to_te((builder.get(), region), TARGET)
    return graph.call(builder, region.params, scheduled(graph))


def scheduled(graph: TEGraph) -> tirx.PrimFunc:
    """The kernel of a TE graph."""
    try:
        return schedule_te(graph, TARGET, schedule)
    except s_tir.ScheduleError:  # slower, and as right
        return graph.to_primfunc()


def compile_functions(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """Lowered PrimFuncs as object code (or as source, by option)."""
    options = get_target_options(mod, NAMESPACE)
    if options["source"]:
        return c_module(mod, target)
    flags = [f"-O{options['optimize']}"] + ([f"-march={options['march']}"] if options["march"] else [])
    symbols = [gv.name_hint for gv in mod.get_global_vars()]
    return compile_object(generate_c(mod, target), symbols, flags, options["cc"])
