"""Regions → PrimFuncs → C → an object inside a runtime module, by the host's C compiler."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx

from ...vendor import (
    TEGraph,
    UnsupportedError,
    buffer_loads,
    buffer_of,
    c_module,
    generate_c,
    get_target_options,
    object_module,
    schedule_te,
    translate_to_te,
)

#: Cost of a call such as exp, in additions.
_CALL = 16
#: Cost of keeping a stage in memory beyond computing it: the store and the load, in additions.
_ROUND_TRIP = 4
#: Inlined expressions do not grow beyond this cost.
_LARGEST = 256
#: The iterations that a symbolic extent counts as.
_SYMBOLIC = 64

#: Numbers of partial results of a reduction to choose from: many enough to hide the latency of an addition.
_LANES = (16, 8)

_ARITHMETIC = frozenset(
    "Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE GT GE And Or Not Select Cast".split()
)
_FREE_CALLS = ("tirx.if_then_else", "tirx.likely")


def schedule(sch: s_tir.Schedule, graph: TEGraph) -> None:
    """Inline stages that are cheaper to compute again than to store; give each reduction a contiguous inner loop."""
    blocks = graph.blocks(sch)
    kept = [blocks[stage] for stage in _inline(sch, graph, blocks)]
    for block in kept:
        _order_reduction(sch, block)


# ---------------------------------------------------------------- inlining
@dataclass
class _Stage:
    cost: float
    elements: int
    iterations: int
    loads: Counter[Any] = field(default_factory=Counter)


def _inline(sch: s_tir.Schedule, graph: TEGraph, blocks: dict[te.Operation, Any]) -> list[te.Operation]:
    """Inline stages, producers first; returns those that stay."""
    stages = {op: _read(sch.get(block)) for op, block in blocks.items()}
    results = {tensor.op for tensor in graph.outputs}
    kept = []
    for op, block in blocks.items():
        inlinable = isinstance(op, te.ComputeOp) and op.num_outputs == 1 and not op.reduce_axis and op not in results
        buffer = buffer_of(sch.get(block).writes[0]) if inlinable else None
        users = [user for user in stages.values() if user.loads[buffer]]
        if users and _worth(stages[op], users, buffer) and _try_inline(sch, block):
            stage = stages.pop(op)
            for user in users:
                times = user.loads.pop(buffer)
                user.cost += times * stage.cost
                for source, count in stage.loads.items():
                    user.loads[source] += times * count
        else:
            kept.append(op)
    return kept


def _worth(stage: _Stage, users: list[_Stage], buffer: Any) -> bool:
    evaluations = sum(user.loads[buffer] * user.iterations for user in users)
    again = max(evaluations - stage.elements, 0) * stage.cost
    largest = max(user.cost + user.loads[buffer] * stage.cost for user in users)
    return again <= _ROUND_TRIP * stage.elements and largest <= _LARGEST


def _try_inline(sch: s_tir.Schedule, block: Any) -> bool:
    try:
        sch.compute_inline(block)
    except s_tir.ScheduleError:  # read by an opaque block, or by itself
        return False
    return True


def _read(block: Any) -> _Stage:
    spatial = [v.dom.extent for v in block.iter_vars if v.iter_type == v.DataPar]
    loads = buffer_loads(block.body)
    places = [load.indices for load in loads] + [getattr(block.body, "indices", ())]
    return _Stage(
        _cost(block.body) - sum(_cost(index) for indices in places for index in indices),
        math.prod(map(_size, spatial)),
        math.prod(_size(v.dom.extent) for v in block.iter_vars),
        Counter(buffer_of(load) for load in loads),
    )


def _size(extent: Any) -> int:
    return int(extent) if isinstance(extent, tirx.IntImm) else _SYMBOLIC


def _cost(node: Any) -> int:
    costs: list[int] = []

    def note(item: Any) -> None:
        if isinstance(item, tvm.ir.Call):
            costs.append(1 if item.op.name in _FREE_CALLS else _CALL)
        elif type(item).__name__ in _ARITHMETIC:
            costs.append(1)

    tvm_ffi.structural_walk(node, (tvm_ffi.Object, note), order="post")
    return sum(costs)


# ---------------------------------------------------------------- reductions
def _order_reduction(sch: s_tir.Schedule, block: Any) -> None:
    """Make a loop innermost that accesses memory in order and whose iterations are independent."""
    info, loops = sch.get(block), sch.get_loops(block)
    if info.init is None or len(loops) != len(info.iter_vars) or not isinstance(info.body, tirx.BufferStore):
        return  # no reduction, or one of several results
    reduced = [loop for loop, v in zip(loops, info.iter_vars, strict=True) if v.iter_type == v.CommReduce]
    spatial = [loop for loop, v in zip(loops, info.iter_vars, strict=True) if v.iter_type == v.DataPar]
    along = _contiguous_axis(info)
    if along is not None:
        inner = loops[along]
        sch.reorder(*(loop for loop in spatial if loop is not inner), *reduced, inner)
    elif lanes := _lanes(sch, info, loops[-1]):
        _reduce_in_lanes(sch, block, spatial, reduced[-1], lanes)
        return
    else:
        total = sch.cache_write(block, 0, "global")  # one number: a variable on the stack
        if spatial:
            sch.reverse_compute_at(total, spatial[-1])
    sch.decompose_reduction(block, reduced[0])


def _reduce_in_lanes(sch: s_tir.Schedule, block: Any, rows: list[Any], reduced: Any, lanes: int) -> None:
    """Several partial results side by side, as a vector unit wants them: a C compiler must not reorder a sum."""
    partial = sch.rfactor(sch.split(reduced, [None, lanes])[1], len(rows))
    loops = sch.get_loops(partial)
    if rows:
        sch.reverse_compute_at(block, loops[len(rows) - 1])
    sch.decompose_reduction(partial, loops[len(rows)])
    sch.decompose_reduction(block, sch.get_loops(block)[-1])


def _lanes(sch: s_tir.Schedule, info: Any, loop: Any) -> int:
    """The number of partial results; 0 where the last axis is not reduced, too short, or not contiguous in memory."""
    extent, axis = sch.get(loop).extent, info.iter_vars[-1]
    if not isinstance(extent, tirx.IntImm) or axis.iter_type != axis.CommReduce:
        return 0
    if not any(_moves(axis.var, load.indices) == 1 for load in buffer_loads(info.body)):
        return 0
    return next((n for n in _LANES if extent.value % n == 0 and extent.value > n), 0)


def _contiguous_axis(info: Any) -> int | None:
    """Position of a spatial axis along which the result and every operand move by one element, or not at all."""
    stored = buffer_of(info.body)
    loads = [load.indices for load in buffer_loads(info.body) if not buffer_of(load).same_as(stored)]
    for position, axis in enumerate(info.iter_vars):
        if axis.iter_type == axis.DataPar and _moves(axis.var, info.body.indices) == 1:
            moves = [_moves(axis.var, indices) for indices in loads]
            if 1 in moves and None not in moves:
                return position
    return None


def _moves(var: Any, indices: Any) -> int | None:
    """Elements by which an access moves with ``var``: 0 or 1, ``None`` for anything else."""
    if not len(indices) or not any(_mentions(var, index) for index in indices):
        return 0
    *outer, last = indices
    return 1 if last.same_as(var) and not any(_mentions(var, index) for index in outer) else None


def _mentions(var: Any, index: Any) -> bool:
    return any(v.same_as(var) for v in tirx.analysis.undefined_vars(index))


_NAMES = ("cc", "gcc", "clang")
#: -O3 vectorises; neither of the others changes a result: errno is never read, and floating-point traps are not used
_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-w")
_LONGEST_MESSAGE = 2000


def find_compiler(wanted: str = "") -> list[str]:
    """``wanted``, else the environment's ``CC``, else cc, gcc or clang; an `UnsupportedError` if there is none."""
    given = wanted or os.environ.get("CC", "")
    for command in [shlex.split(given)] if given else [[name] for name in _NAMES]:
        if command and (path := shutil.which(command[0])):
            return [path, *command[1:]]
    tried = repr(given) if given else ", ".join(_NAMES)
    raise UnsupportedError(
        f"no C compiler: tried {tried} on PATH; install gcc or clang, or name one in the environment variable CC or in "
        "the option cc"
    )


def compile_object(source: str, symbols: Sequence[str], flags: Sequence[str], compiler: str = "") -> tvm.runtime.Module:
    """C source that TVM generated, with these functions in it; an `UnsupportedError` where that fails."""
    include = (
        tvm.libinfo.find_include_path(),
        tvm_ffi.libinfo.find_include_path(),
        tvm_ffi.libinfo.find_dlpack_include_path(),
    )
    command = [*find_compiler(compiler), *_FLAGS, *flags]
    with tempfile.TemporaryDirectory(prefix="byoc_cc_") as folder:
        code, made, linked = (Path(folder, f"kernels.{suffix}") for suffix in ("c", "o", "so"))
        code.write_text(source)
        _run([*command, *(f"-I{path}" for path in dict.fromkeys(include)), "-c", str(code), "-o", str(made)], folder)
        _run([*command, "-shared", str(made), "-o", str(linked), "-lm"], folder)
        return object_module(made, linked, symbols, source)


def _run(command: list[str], folder: str) -> None:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        message = run.stderr.replace(f"{folder}/", "").strip()[:_LONGEST_MESSAGE]
        command_line = shlex.join(command).replace(f"{folder}/", "")
        raise UnsupportedError(f"{command_line} failed with status {run.returncode}: {message}")


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
    graph = translate_to_te((builder.get(), region), TARGET)
    return graph.call(builder, region.params, scheduled(graph))


def scheduled(graph: TEGraph) -> tirx.PrimFunc:
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
