"""Operators that TVM lowers wrong, or not at all: what is made of them instead, in host code and by `translate_to_te`.

* Sums and products of float16 and bfloat16, running ones too, are made in these dtypes; here in float32.
* Means of float32 are made in float32, one number after the other, and norms take the variance from the mean of the
  squares, which leaves nothing of it where the mean is large; here in float64, where equal numbers have exactly their
  value as mean.
* TVM's tanh and atanh are 0 near 0; here the C library's.
* TVM takes a NaN for a number in some operators: `mended`.
* TVM's padding by elements of the tensor itself reads memory of others where there are too few of them. Its running
  sums and products write there where there are none.
* TVM has transposed convolutions and resizing in some layouts only; the others are permuted to one of these.
* LLVM has no float16 form of some functions; they are computed in float32 between casts.
* A pass of TVM's dispatches sorts, and not its legalisers; one of these calls a function that does not exist. TVM
  sorts bfloat16 by its bits, and most integers not at all; here in a dtype that has all their numbers.

What the values of a call may not be is checked besides in host code: `pipeline.guards`.

Kernels whose body is statements, where no expression of each element says what is computed: `stage`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tvm import ir, relax, te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..core.errors import UnsupportedError
from ..core.tvm_fast import items
from ..ir.relax_utils import constant_numpy, shape_dims, with_attributes
from ..ir.tvm_compat import dtype_of, is_constant
from .mended import clip, extreme, grid_sample, is_nan, max_pool, not_equal, of_two, relu

_OPAQUE = 8  # TVM's kind of a function that is fused with nothing


def stage(
    name: str, write: Callable[..., None], tensors: Sequence[te.Tensor], results: Sequence[tuple[Sequence[Any], str]]
) -> Any:
    """The results, of these shapes and dtypes: a tensor, or a list of them.

    ``write(*inputs, *outputs)`` writes them by the IRBuilder, for buffers that are indexed. Memory to work with is a
    result that nobody reads.
    """
    shapes = [list(shape) for shape, _ in results]
    outs = [tirx.decl_buffer(shape, dtype, f"out{i}", layout=None) for i, (shape, dtype) in enumerate(results)]

    def body(inputs: Any, outputs: Any) -> Any:
        with IRBuilder() as ib, T.seq_scope():
            write(*map(T.buffer_proxy, (*inputs, *outputs)))
        return ib.get()

    return te.extern(shapes, list(tensors), body, out_buffers=outs, name=name)


def emitted(bb: relax.BlockBuilder, name: str, kernel: Callable[..., Any], *operands: Any) -> Any:
    """A call of a function of TE, which is fused with nothing."""
    attrs = {"op_pattern": _OPAQUE}
    return bb.emit(bb.call_te(kernel, *operands, primfunc_name_hint=name, primfunc_attrs=attrs))


Legalization = Callable[[relax.BlockBuilder, Any], Any]

_SUMS = ("matmul", "sum", "prod", *(f"nn.conv{d}d" for d in (1, 2, 3)))
#: dtype → the wider one in which some operators are computed
_NARROW = {"bfloat16": "float32", "float16": "float32"}
_BFLOAT16 = {"bfloat16": "float32"}
_SORTED_AS = {**_BFLOAT16, "uint32": "int64", **dict.fromkeys(("bool", "int8", "uint8", "int16"), "int32")}
_ALL_BUT_DOUBLE = {**_NARROW, "float32": "float64"}
_TESTS = ("isfinite", "isinf", "isnan")
_MEANS = ("mean", "variance", "std")
_NORMS = ("nn.layer_norm", "nn.group_norm", "nn.instance_norm")
#: functions that LLVM does not have in float16, and those of which TVM rounds every step to float16
_NOT_IN_FLOAT16 = (
    *("acos", "acosh", "asin", "asinh", "atan", "cosh", "sinh"),
    *("rsqrt", "sigmoid", "tan"),
)


def default_of(op: str) -> Legalization:
    return ir.Op.get(op).get_attr("FLegalize")


def dims_of(expr: Any) -> list[Any]:
    dims = shape_dims(expr.ty)
    assert dims is not None, "an operator is lowered only once the shapes of its operands are known"
    return dims


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

            return te.compute(x.shape, one, name="computed", tag=topi.tag.ELEMWISE)

        return bb.call_te(computed, call.args[0], primfunc_name_hint=name)

    return legalize


def _computed_in(op: str, wider: Mapping[str, str], lowered: Legalization | None = None) -> Legalization:
    """An operator in another dtype for some: in float16, the sum of 4,096 ones is 2,048, and in bfloat16 256."""
    default = lowered or default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        args = items(call.args)
        dtype = dtype_of(args[0].ty)
        wide = wider.get(dtype)
        is_tuple = isinstance(call.ty, relax.TupleType)
        others = any(dtype_of(e.ty) != dtype for e in (args if is_tuple or lowered else [call, *args]))
        if wide is None or others or dtype in str(getattr(call.attrs, "out_dtype", "")):
            return default(bb, call)
        cast = [bb.emit(bb.call_te(topi.cast, arg, wide)) for arg in args]
        out = bb.emit(default(bb, bb.normalize(relax.Call(call.op, cast, call.attrs))))
        if not is_tuple:
            return bb.call_te(topi.cast, out, dtype_of(call.ty))
        parts = [(bb.emit(relax.TupleGetItem(out, i)), dtype_of(ty)) for i, ty in enumerate(call.ty.fields)]
        return bb.emit(relax.Tuple([bb.emit(bb.call_te(topi.cast, part, kind)) for part, kind in parts]))

    return legalize


def _scattered(op: str) -> Legalization:
    """TVM's reductions of bools do not compile (here they are those of 0 and 1), and its extremes lose NaNs."""
    default = default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        data, indices, updates = call.args
        dtype, reduction = dtype_of(data.ty), call.attrs.reduction

        def numbers(form: Callable[..., te.Tensor]) -> Any:
            made = [bb.emit(bb.call_te(form, value)) for value in (data, updates)]
            return bb.emit(default(bb, bb.normalize(relax.Call(call.op, [made[0], indices, made[1]], call.attrs))))

        if dtype == "bool" and reduction != "update":
            return bb.call_te(topi.cast, numbers(lambda x: topi.cast(x, "int32")), "bool")
        if "float" not in dtype or reduction not in ("max", "min"):
            return default(bb, call)
        sign = 1 if reduction == "max" else -1
        marks = numbers(lambda x: te.compute(x.shape, lambda *at: is_nan(x, at).astype("int32") * sign))
        nan = tirx.Cast(dtype, tirx.const(math.nan, "float32"))
        out = bb.emit(default(bb, call))
        return bb.call_te(
            lambda x, marked: te.compute(x.shape, lambda *at: tirx.Select(marked[at] != 0, nan, x[at])), out, marks
        )

    return legalize


def by_compute(name: str, compute: Callable[..., Any]) -> Legalization:
    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        return bb.call_te(partial(compute, call.attrs), *call.args, primfunc_name_hint=name)

    return legalize


def _sort(attrs: Any, data: te.Tensor) -> te.Tensor:
    return topi.sort(data, attrs.axis, not attrs.descending)


def _argsort(attrs: Any, data: te.Tensor) -> te.Tensor:
    return topi.argsort(data, axis=attrs.axis, is_ascend=not attrs.descending, dtype=attrs.dtype)


def _topk(attrs: Any, data: te.Tensor) -> Any:
    return topi.topk(
        data, k=attrs.k, axis=attrs.axis, ret_type=attrs.ret_type, is_ascend=not attrs.largest, dtype=attrs.dtype
    )


def _scan(binary: Callable[[Any, Any], Any], first: int) -> Any:
    """TOPI's writes to memory of others where an axis has no elements."""

    def compute(attrs: Any, data: te.Tensor) -> te.Tensor:
        if attrs.axis is None:
            data = topi.reshape(data, [topi.utils.prod(data.shape)])
        axis = 0 if attrs.axis is None else int(attrs.axis) % len(data.shape)
        dtype = str(attrs.dtype or "void")
        given = dtype_of(data) if dtype == "void" else dtype
        dtype = _NARROW.get(given, given)
        before, size = topi.utils.prod(data.shape[:axis]), data.shape[axis]
        lines = before * topi.utils.prod(data.shape[axis + 1 :])
        behind = tirx.max(topi.utils.prod(data.shape[axis + 1 :]), 1)  # to divide by, where there is no line

        def write(source: Any, out: Any) -> None:
            with T.parallel(0, lines) as line:
                start = line // behind * size * behind + line % behind
                with T.serial(0, size) as k:
                    here = start + k * behind
                    read = here - behind if attrs.exclusive else here
                    begin = tirx.const(first, dtype) if attrs.exclusive else source[here].astype(dtype)
                    out[here] = tirx.if_then_else(k == 0, begin, binary(out[here - behind], source[read].astype(dtype)))

        made = stage("scan", write, [data], [(data.shape, dtype)])
        return made if dtype == given else topi.cast(made, given)

    return compute


def _pixel_shuffle(attrs: Any, data: te.Tensor) -> te.Tensor:
    """TVM's legaliser calls a TOPI function that does not exist."""
    factor = attrs.upscale_factor
    *batch, channels, height, width = data.shape

    def element(*index: Any) -> Any:
        *lead, c, y, x = index
        channel = (c * factor + y % factor) * factor + x % factor
        return data(*lead, channel, y // factor, x // factor)

    shape = [*batch, channels // (factor * factor), height * factor, width * factor]
    return te.compute(shape, element, name="pixel_shuffle")


def normalized(
    x: te.Tensor,
    axes: Sequence[int],
    epsilon: float,
    scale: Callable[[Sequence[Any]], Any],
    shift: Callable[[Sequence[Any]], Any],
) -> te.Tensor:
    """``(x - mean) / sqrt(variance + epsilon) * scale + shift``, with statistics over ``axes``.

    ``scale`` and ``shift`` give the factor and the summand at the indices of a number, in the dtype of ``x``.
    """
    dtype = dtype_of(x)
    used = "float64" if dtype == "float64" else "float32"
    kept = [1 if i in axes else size for i, size in enumerate(x.shape)]
    count = tirx.Cast("float64", tirx.const(1, "int64"))
    for axis in axes:
        count = count * tirx.Cast("float64", x.shape[axis])

    def wide(at: Sequence[Any]) -> Any:
        return tirx.Cast("float64", x[tuple(at)])

    def statistic(name: str, of: Callable[[Sequence[Any], Sequence[Any]], Any]) -> te.Tensor:
        inner = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in axes}

        def one(*row: Any) -> Any:
            at = [inner[i].var if i in inner else row[i] for i in range(len(kept))]
            return te.sum(of(at, row), axis=list(inner.values()))

        return te.compute(kept, one, name=name)

    total = statistic("total", lambda at, _: wide(at))

    def centred(at: Sequence[Any], row: Sequence[Any]) -> Any:
        return wide(at) - total[tuple(row)] / count

    squares = statistic("squares", lambda at, row: centred(at, row) * centred(at, row))

    def result(*at: Any) -> Any:
        row = [0 if i in axes else at[i] for i in range(len(kept))]
        deviation = tirx.sqrt(squares[tuple(row)] / count + tirx.const(epsilon, "float64"))
        factor, summand = (part(at).astype(used) for part in (scale, shift))
        return (tirx.Cast(used, centred(at, row) / deviation) * factor + summand).astype(dtype)

    return te.compute(x.shape, result, name="normalized")


def group_normalized(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, groups: int, channel: int, axes: Sequence[int], epsilon: float
) -> te.Tensor:
    """`normalized` over ``axes`` and the channels of each of some groups; ``gamma`` and ``beta`` are per channel."""
    shape = list(x.shape)
    each = tirx.floordiv(shape[channel], groups)
    split = topi.reshape(x, [*shape[:channel], groups, each, *shape[channel + 1 :]])
    moved = [channel + 1, *(axis + (axis > channel) for axis in axes)]

    def of_channel(parameter: te.Tensor) -> Callable[[Sequence[Any]], Any]:
        return lambda at: parameter[at[channel] * each + at[channel + 1]]

    return topi.reshape(normalized(split, moved, epsilon, of_channel(gamma), of_channel(beta)), shape)


#: mode → elements that an axis must have to be padded by so many
_NEEDED = {"reflect": lambda pads: pads + 1, "replicate": lambda pads: 1, "circular": lambda pads: pads}


def least_sizes(attrs: Any) -> list[int]:
    """How many elements each axis must have, by the attributes of ``relax.nn.pad``; empty where it pads by a number."""
    needed = _NEEDED.get(str(attrs.pad_mode))
    if needed is None:
        return []
    widths = [int(width) for width in attrs.pad_width]
    return [needed(max(pair)) if max(pair) > 0 else 0 for pair in zip(widths[::2], widths[1::2], strict=True)]


def _normalized(op: str) -> Legalization:
    default = default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        data, attrs = call.args[0], call.attrs
        dtypes = {dtype_of(arg.ty) for arg in items(call.args)}
        if len(dtypes) > 1 or dtypes.isdisjoint(("bfloat16", "float32", "float64")):
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


def _with_count(bb: relax.BlockBuilder, call: Any) -> Any:
    data, count, axis = call.args[0], int(call.attrs.k), int(call.attrs.axis)
    size = dims_of(data)[axis]
    if isinstance(size, int) and size < count:
        raise UnsupportedError(f"topk of {count} elements along an axis of {size}; take {size} or fewer")
    if not isinstance(size, int) and count > 0:
        _fails_below(bb, data, [count if i == axis % len(dims_of(data)) else 0 for i in range(len(dims_of(data)))])
    return by_compute("topk", _topk)(bb, call)


def _fails_below(bb: relax.BlockBuilder, data: Any, least: Sequence[int]) -> None:
    """Emit a cast that fails where an open dim is below a number; nothing reads it."""
    dims = [d if isinstance(d, int) or n == 0 else tirx.max(d, n) for d, n in zip(dims_of(data), least, strict=True)]
    shape = relax.ShapeExpr([tirx.IntImm("int64", d) if isinstance(d, int) else d for d in dims])
    bb.match_cast(data, relax.TensorType(shape, dtype_of(data.ty)))


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
    if any(needed and not isinstance(size, int) for size, needed in zip(dims, least, strict=True)):
        _fails_below(bb, data, least)
    return default(bb, call)


def _full(bb: relax.BlockBuilder, call: Any) -> Any:
    """TVM looks for "float" in an object that is the dtype where a number is infinite or NaN."""
    fill, dims = call.args[1], shape_dims(call.ty)
    if dims is None or not is_constant(fill) or abs(number := constant_numpy(fill).item()) < math.inf:
        return default_of(call.op.name)(bb, call)
    return bb.call_te(topi.full, dims, dtype_of(call.ty), number, primfunc_name_hint="full")


_COMPUTES: dict[str, Callable[..., Any]] = {
    "clip": clip,
    "cumprod": _scan(operator.mul, 1),
    "cumsum": _scan(operator.add, 0),
    "max": extreme(topi.max),
    "maximum": of_two(topi.maximum, tirx.max),
    "min": extreme(topi.min),
    "minimum": of_two(topi.minimum, tirx.min),
    **{f"nn.max_pool{d}d": max_pool for d in (1, 2, 3)},
    "nn.pixel_shuffle": _pixel_shuffle,
    "nn.relu": relu,
    "not_equal": not_equal,
}

#: Relax op → what is made of it instead
MENDED: dict[str, Legalization] = {
    **{f"relax.{name}": _by_float32(name) for name in _NOT_IN_FLOAT16},
    **{f"relax.{name}": by_compute(name.rpartition(".")[2], compute) for name, compute in _COMPUTES.items()},
    **{f"relax.{name}": _by_library(name) for name in ("atanh", "tanh")},
    **{f"relax.{name}": _computed_in(f"relax.{name}", _NARROW) for name in _SUMS},
    **{f"relax.{name}": _computed_in(f"relax.{name}", _ALL_BUT_DOUBLE) for name in _MEANS},
    # Between 11 and its threshold TVM's is infinite in float16.
    "relax.nn.softplus": _computed_in("relax.nn.softplus", _NARROW),
    # TVM's results of 16 bits are of float32.
    "relax.nn.batch_norm": _computed_in("relax.nn.batch_norm", _ALL_BUT_DOUBLE),
    "relax.image.grid_sample": _computed_in("relax.image.grid_sample", _NARROW, by_compute("grid_sample", grid_sample)),
    "relax.vision.roi_align": _computed_in("relax.vision.roi_align", _NARROW),
    # TVM has none of bfloat16.
    **{f"relax.{name}": _computed_in(f"relax.{name}", _BFLOAT16) for name in ("log_add_exp", "power")},
    **{f"relax.{name}": _computed_in(f"relax.{name}", _BFLOAT16, default_of(f"relax.{name}")) for name in _TESTS},
    **{f"relax.{name}": _normalized(f"relax.{name}") for name in _NORMS},
    **{f"relax.nn.conv{d}d_transpose": _in_layouts(f"relax.nn.conv{d}d_transpose", "DHW"[3 - d :]) for d in (1, 2, 3)},
    **{f"relax.image.resize{d}d": _in_layouts(f"relax.image.resize{d}d", "DHW"[3 - d :]) for d in (2, 3)},
    **dict.fromkeys(("relax.full", "relax.full_like"), _full),
    "relax.nn.pad": _pad,
    **{op: _scattered(op) for op in ("relax.scatter_elements", "relax.scatter_nd")},
    "relax.argsort": _computed_in("relax.argsort", _SORTED_AS, by_compute("argsort", _argsort)),
    "relax.median": _computed_in("relax.median", _SORTED_AS, default_of("relax.median")),
    "relax.sort": _computed_in("relax.sort", _SORTED_AS, by_compute("sort", _sort)),
    "relax.topk": _computed_in("relax.topk", _SORTED_AS, _with_count),
}
