"""A backend in one file: regions → PrimFuncs → C → an object inside a runtime module, by the host's C compiler; and the
operators that it takes, by family, and only calls that it can really turn into C.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx

from ...vendor import (
    RegionPolicy,
    Reject,
    SourceBuild,
    TEGraph,
    UnsupportedError,
    Work,
    buffer_loads,
    buffer_of,
    c_module,
    constant_numpy,
    describe,
    dtype_of,
    for_each_region,
    generate_c,
    get_target_options,
    is_constant,
    least_sizes,
    lower_tir,
    object_module,
    register_annotate_compiler,
    register_namespace,
    register_target_hooks,
    remembered,
    require,
    schedule_te,
    shape_dims,
    static_shape,
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
    command = [*find_compiler(compiler), *_FLAGS, *flags]
    with tempfile.TemporaryDirectory(prefix="byoc_cc_") as folder:
        code, made, linked = (Path(folder, f"kernels.{suffix}") for suffix in ("c", "o", "so"))
        code.write_text(source)
        _run([*command, *SourceBuild().include_options, "-c", str(code), "-o", str(made)], folder)
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


def check_bounds(call: Any) -> None:
    """Refuse a call of which it is not known that it reads only what is there."""
    name = call.op.name.removeprefix("relax.")
    if name == "nn.pad":
        _check_padding(call)
    elif name == "take" and str(call.attrs.mode) == "fast":
        dims, axis = shape_dims(call.args[0].ty) or [], call.attrs.axis
        _check_indices(call, dims if axis is None else [dims[int(axis)]], as_one=True)
    elif name == "gather_elements":
        _check_indices(call, [(shape_dims(call.args[0].ty) or [])[int(call.attrs.axis)]], as_one=True)
    elif name == "gather_nd":
        batched = int(call.attrs.batch_dims)
        count = (shape_dims(call.args[1].ty) or [0])[-1]
        _check_indices(call, (shape_dims(call.args[0].ty) or [])[batched:][:count], as_one=False)


def _check_padding(call: Any) -> None:
    dims = shape_dims(call.args[0].ty) or []
    for size, needed in zip(dims, least_sizes(call.attrs), strict=False):
        require(
            not needed or (isinstance(size, int) and size >= needed),
            f"a padding of mode {call.attrs.pad_mode} by {[int(w) for w in call.attrs.pad_width]} of an axis of {size} "
            f"elements: it reads {needed}, and C code does not compare",
        )


def _check_indices(call: Any, extents: list[Any], *, as_one: bool) -> None:
    """Indices into axes of these sizes: of all axes as one, or one for each along the indices' last axis."""
    indices = call.args[1]
    require(is_constant(indices), "indices that are known only at run time: C code does not compare them with the size")
    require(
        all(isinstance(e, int) for e in extents), f"indices into an axis of {extents} elements: C code does not compare"
    )
    found, sizes = constant_numpy(indices), np.asarray([math.prod(extents)] if as_one else extents)
    require(bool(((found >= 0) & (found < sizes)).all()), f"an index is out of range of {sizes.tolist()} elements")


#: dtypes that TVM's C generator can write; C has no half precision
_DTYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split())
#: Multiply-adds: beyond, a library or LLVM's vectoriser gains more than leaving the region costs.
_LARGEST_PRODUCT = 64**3

#: family → operators, without ``relax.``
FAMILIES: dict[str, str] = {
    "unary": "abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor isfinite isinf "
    "isnan log logical_not negative nn.gelu nn.gelu_tanh nn.leakyrelu nn.prelu nn.relu nn.selu nn.silu nn.softplus "
    "round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc",
    "binary": "add atan2 bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal "
    "left_shift less less_equal log_add_exp logical_and logical_or logical_xor maximum minimum mod multiply not_equal "
    "power right_shift subtract",
    "choice": "where",
    "reduction": "argmax argmin cumprod cumsum max mean min prod std sum variance",
    "normalisation": "nn.batch_norm nn.group_norm nn.instance_norm nn.layer_norm nn.log_softmax nn.rms_norm nn.softmax",
    "product": "matmul",
    "quantisation": "dequantize quantize",
    "shape": "broadcast_to collapse_sum_to concat expand_dims flatten flip nn.batch_flatten nn.pad nn.pixel_shuffle "
    "permute_dims repeat reshape split squeeze stack strided_slice tile tril triu",
    "lookup": "gather_elements gather_nd one_hot take",
    "creation": "arange eye eye_like full full_like ones ones_like zeros zeros_like",
}

_VIEWS = frozenset(f"relax.{name}" for name in "expand_dims flatten nn.batch_flatten reshape squeeze".split())


class ViewsStay(RegionPolicy):
    """A region of views alone would copy data that TVM only sees in another shape, except for a model's result."""

    def why_not(self, work: Work) -> str:
        if _VIEWS.issuperset(work.ops):
            return f"{', '.join(work.ops)}: nothing but views, which TVM does without copying"
        return super().why_not(work)


def _predicate(op: str) -> Callable[[Any, Sequence[Any]], bool]:
    def can_compile(attrs: Any, args: Sequence[Any]) -> bool:
        find_compiler()
        call = relax.BlockBuilder().normalize(relax.Call(tvm.ir.Op.get(op), list(args), attrs))
        for ty in [*(a.ty for a in args), call.ty]:
            _check_type(ty)
        if op == "relax.matmul":
            _check_product(call)
        check_bounds(call)
        _check_translation(call)
        return True

    return can_compile


def _check_type(ty: Any) -> None:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            _check_type(field)
    elif isinstance(ty, relax.TensorType):
        require(dtype_of(ty) in _DTYPES, f"dtype {dtype_of(ty)}, which C cannot compute with")
        require(ty.shape is not None, f"a tensor of unknown shape, {ty}")


def _check_product(call: Any) -> None:
    a, out = static_shape(call.args[0].ty), static_shape(call.ty)
    if a is None or out is None:
        raise Reject("a matrix product of symbolic size")
    work = a[-1] * math.prod(out)
    require(work <= _LARGEST_PRODUCT, f"a matrix product of {work} multiply-adds; taken are up to {_LARGEST_PRODUCT}")


def _check_translation(call: Any) -> None:
    """Generate C for the call, without compiling it; similar calls are tried once."""
    args = [str(a.ty) if isinstance(a.ty, (relax.TensorType, relax.TupleType)) else str(a) for a in call.args]
    key, known = (NAMESPACE, f"{call.op.name} {call.attrs} {args}"), remembered()
    if key not in known:
        known[key] = _why_not(call)
    require(not known[key], known[key])


def _why_not(call: Any) -> str:
    try:
        graph = translate_to_te(_function_of(call), TARGET)
        target = tvm.target.Target(TARGET, host=TARGET)
        kernel = scheduled(graph).with_attr("global_symbol", "trial")
        generate_c(lower_tir(tvm.IRModule({"trial": kernel}), target), target)
    except Exception as error:
        return describe(error)
    return ""


def _function_of(call: Any) -> relax.Function:
    """A function of just this call; symbols that no tensor has for a dimension arrive in a shape argument."""
    params = list(relax.analysis.free_vars(call))
    known = {d for p in params if isinstance(p.ty, relax.TensorType) for d in shape_dims(p.ty) or ()}
    symbols = [s for s in relax.analysis.free_symbolic_vars(call) if s not in known]
    if symbols:
        params.append(relax.Var("symbols", relax.ShapeType(symbols)))
    result = relax.Var("result", call.ty)
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, call)])], result)
    return relax.BlockBuilder().normalize(relax.Function(params, body, call.ty))


register_namespace(NAMESPACE, policy=ViewsStay())
for _op in " ".join(FAMILIES.values()).split():
    register_annotate_compiler(NAMESPACE, f"relax.{_op}", _predicate(f"relax.{_op}"))
register_target_hooks(
    NAMESPACE,
    relax_to_tir=for_each_region(lower_region),
    tir_to_runtime=compile_functions,
    target=TARGET,
    options=OPTIONS,
)
