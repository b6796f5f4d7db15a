"""Host code for operators that TVM lowers wrong.

* What the values of a call may not be is checked: `guards`.
* Sums of float16 are made in float16; here in float32.
* Means of float32 are made in float32, one number after the other, and norms take the variance from the mean of the
  squares, which leaves nothing of it where the mean is large; here in float64, where equal numbers have exactly their
  value as mean.
* TVM's tanh and atanh are 0 near 0; here the C library's.
* TVM's padding by elements of the tensor itself reads memory of others where there are too few of them. Its running
  sums and products write there where there are none.
* TVM has transposed convolutions and resizing in some layouts only; the others are permuted to one of these.
* LLVM has no float16 form of some functions; they are computed in float32 between casts.
* TVM sets the first value of a reduction in the first step of its loop. Without elements there is no step, and the
  result would be what lay in the memory: `StartReductions`.
* LLVM's code generator warns of statements in sequence: `DropSequenceMarks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import tvm
from tvm import relax, s_tir, te, tirx, topi
from tvm_ffi import structural_map

from ..core.errors import UnsupportedError
from ..core.tvm_fast import is_a, items
from ..ir.relax_utils import with_attributes, with_functions
from ..ir.tvm_compat import buffers_of, dtype_of
from ..te.computes import BUILTIN, group_normalized, least_sizes, normalized
from .guards import GUARDED, Legalization, default_of, dims_of

_SUMS = ("matmul", "sum", *(f"nn.conv{d}d" for d in (1, 2, 3)))
_MEANS = ("mean", "variance", "std")
_NORMS = ("nn.layer_norm", "nn.group_norm", "nn.instance_norm")
#: functions that LLVM does not have in float16, and those of which TVM rounds every step to float16
_NOT_IN_FLOAT16 = (
    *("acos", "acosh", "asin", "asinh", "atan", "cosh", "sinh"),
    *("rsqrt", "sigmoid", "tan"),
)


def _by_float32(name: str) -> Legalization:
    function = getattr(topi, name)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        if dtype_of(call.args[0].ty) != "float16":
            return bb.call_te(function, call.args[0], primfunc_name_hint=name)
        return bb.call_te(
            lambda x: topi.cast(function(topi.cast(x, "float32")), "float16"), call.args[0], primfunc_name_hint=name
        )

    return legalize


def _by_library(name: str) -> Legalization:
    """A function of C's library in double, rounded once."""

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        def computed(x: te.Tensor) -> te.Tensor:
            def one(*at: Any) -> Any:
                return tirx.call_pure_extern("float64", name, tirx.Cast("float64", x[at])).astype(x.dtype)

            return te.compute(x.shape, one, name=name, tag=topi.tag.ELEMWISE)

        return bb.call_te(computed, call.args[0], primfunc_name_hint=name)

    return legalize


def _by_compute(name: str) -> Legalization:
    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        return bb.call_te(partial(BUILTIN[f"relax.{name}"], call.attrs), *call.args, primfunc_name_hint=name)

    return legalize


def _computed_in(op: str, wider: Mapping[str, str]) -> Legalization:
    """An operator in another dtype for some: in float16, the sum of 4,096 ones is 2,048."""
    default = default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        args = items(call.args)
        dtype = dtype_of(args[0].ty)
        wide = wider.get(dtype)
        is_tuple = isinstance(call.ty, relax.TupleType)
        others = any(dtype_of(e.ty) != dtype for e in (args if is_tuple else [call, *args]))
        if wide is None or others or dtype in str(getattr(call.attrs, "out_dtype", "")):
            return default(bb, call)
        cast = [bb.emit(bb.call_te(topi.cast, arg, wide)) for arg in args]
        out = bb.emit(default(bb, bb.normalize(relax.Call(call.op, cast, call.attrs))))
        if not isinstance(out.ty, relax.TupleType):
            return bb.call_te(topi.cast, out, dtype)
        parts = [bb.emit(relax.TupleGetItem(out, i)) for i in range(len(out.ty.fields))]
        return bb.emit(relax.Tuple([bb.emit(bb.call_te(topi.cast, part, dtype)) for part in parts]))

    return legalize


def _normalized(op: str) -> Legalization:
    default = default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        data, attrs = call.args[0], call.attrs
        dtypes = {dtype_of(arg.ty) for arg in items(call.args)}
        if len(dtypes) > 1 or dtypes == {"float16"}:
            return default(bb, call)
        rank = len(dims_of(data))
        axes, epsilon = [int(axis) % rank for axis in attrs.axes], float(attrs.epsilon)
        channel = int(getattr(attrs, "channel_axis", 0)) % rank

        def computed(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
            if op == "relax.nn.group_norm":
                return group_normalized(x, gamma, beta, int(attrs.num_groups), channel, axes, epsilon)
            of = axes if op == "relax.nn.layer_norm" else [channel]  # the axes of the parameters
            return normalized(
                x, axes, epsilon, *(lambda at, p=p: p[tuple(at[axis] for axis in of)] for p in (gamma, beta))
            )

        return bb.call_te(computed, *call.args, primfunc_name_hint=op.rpartition(".")[2])

    return legalize


def _in_layouts(op: str, dims: str) -> Legalization:
    """An operator in the layout of the usual models, where TVM has none for that of a call."""
    pictures, weights = f"NC{dims}", f"IO{dims}"

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        is_resize = ".image." in op
        names = ["layout"] if is_resize else ["data_layout", "kernel_layout", "out_layout"]
        layouts = [str(getattr(call.attrs, name)) for name in names]
        wanted = [pictures] if is_resize else [pictures, weights, pictures]
        is_known = layouts in (wanted, [f"N{dims}C"])
        if is_known or any(sorted(now) != sorted(then) for now, then in zip(layouts, wanted, strict=True)):
            return default_of(op)(bb, call)

        def permuted(data: Any, now: str, wanted: str) -> Any:
            return data if now == wanted else bb.call_te(topi.transpose, data, [now.index(axis) for axis in wanted])

        args = items(call.args)
        for i in range(1 if is_resize else 2):
            args[i] = bb.normalize(permuted(args[i], layouts[i], wanted[i]))
        made = bb.normalize(with_attributes(call, args, **dict(zip(names, wanted, strict=True))))
        return permuted(bb.normalize(default_of(op)(bb, made)), pictures, layouts[-1])

    return legalize


def _pad(bb: relax.BlockBuilder, call: Any) -> Any:
    default, least = default_of("relax.nn.pad"), least_sizes(call.attrs)
    if not least:
        return default(bb, call)
    data, widths = call.args[0], [int(w) for w in call.attrs.pad_width]
    dims = dims_of(data)
    for size, needed in zip(dims, least, strict=True):
        if isinstance(size, int) and size < needed:
            raise UnsupportedError(
                f"a padding of mode {call.attrs.pad_mode} by {widths} of a tensor of shape {dims}: an axis has {size} "
                f"elements, expected {needed} or more"
            )
    wanted = [d if isinstance(d, int) or n == 0 else tirx.max(d, n) for d, n in zip(dims, least, strict=True)]
    if any(w is not d for w, d in zip(wanted, dims, strict=True)):
        # Nothing reads it: it is there to fail.
        sizes = relax.ShapeExpr([tirx.IntImm("int64", w) if isinstance(w, int) else w for w in wanted])
        bb.match_cast(data, relax.TensorType(sizes, dtype_of(data.ty)))
    return default(bb, call)


@tvm.transform.module_pass(opt_level=0, name="StartReductions")
def StartReductions(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Set the first values of reductions whose number of elements only a call knows in front of their loops."""
    functions = {gv: f for gv, f in mod.functions.items() if is_a(f, tirx.PrimFunc) and _is_open(f)}
    return with_functions(mod, {gv: _started(f) for gv, f in functions.items()}) if functions else mod


def _is_open(func: tirx.PrimFunc) -> bool:
    root = getattr(func.body, "block", None)  # what is written as statements has none of this name
    dims = (dim for buffer in buffers_of(func) for dim in items(buffer.shape))
    return root is not None and root.name_hint == "root" and not all(is_a(dim, tirx.IntImm) for dim in dims)


def _started(func: tirx.PrimFunc) -> tirx.PrimFunc:
    schedule = s_tir.Schedule(func)
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        made, loops = schedule.get(block), schedule.get_loops(block)
        reduced = [i for i, v in enumerate(items(made.iter_vars)) if v.iter_type == tirx.IterVar.CommReduce]
        if made.init is None or len(loops) != len(made.iter_vars):  # a schedule of the user's
            continue
        if any(not is_a(made.iter_vars[i].dom.extent, tirx.IntImm) for i in reduced):
            schedule.decompose_reduction(block, loops[reduced[0]])
    return schedule.mod["main"]


@tvm.transform.module_pass(opt_level=0, name="DropSequenceMarks")
def DropSequenceMarks(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Remove the mark that TVM puts around statements in sequence: LLVM's code generator warns of each on the standard
    error, and does nothing else with it."""

    def unmarked(statement: tirx.AttrStmt) -> Any:
        return statement.body if statement.attr_key == "pragma_scope" else statement

    functions = {gv: f for gv, f in mod.functions.items() if is_a(f, tirx.PrimFunc)}
    return with_functions(
        mod,
        {gv: f.with_body(structural_map(f.body, [(tirx.AttrStmt, unmarked)])) for gv, f in functions.items()},
    )


#: Relax op → what ``LegalizeOps`` makes of it instead
LEGALIZATIONS: dict[str, Legalization] = {
    **{f"relax.{name}": _by_float32(name) for name in _NOT_IN_FLOAT16},
    **{f"relax.{name}": _by_compute(name) for name in ("cumprod", "cumsum")},
    **{f"relax.{name}": _by_library(name) for name in ("atanh", "tanh")},
    **{f"relax.{name}": _computed_in(f"relax.{name}", {"float16": "float32"}) for name in _SUMS},
    **{f"relax.{name}": _computed_in(f"relax.{name}", {"float16": "float32", "float32": "float64"}) for name in _MEANS},
    # TVM's result of 16 bits is of float32.
    "relax.nn.batch_norm": _computed_in(
        "relax.nn.batch_norm", {"bfloat16": "float32", "float16": "float32", "float32": "float64"}
    ),
    **{f"relax.{name}": _normalized(f"relax.{name}") for name in _NORMS},
    **{f"relax.nn.conv{d}d_transpose": _in_layouts(f"relax.nn.conv{d}d_transpose", "DHW"[3 - d :]) for d in (1, 2, 3)},
    **{f"relax.image.resize{d}d": _in_layouts(f"relax.image.resize{d}d", "DHW"[3 - d :]) for d in (2, 3)},
    "relax.nn.pad": _pad,
    **GUARDED,
}
