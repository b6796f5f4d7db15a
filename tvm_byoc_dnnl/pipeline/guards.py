"""What the values of a call may not be: each is checked where TVM's code would read foreign memory or end the process.

A check is a kernel of its own that copies a small operand (indices, divisors, boxes, sizes) and raises where a value
does not fit; the operator reads the copy. Constants that fit cost nothing.

* Indices of gathers and scatters: an ``IndexError``. Negative indices count from the end where they do so in PyTorch or
  in TVM (scatter_elements, index_put, index_tensor); elsewhere they are out of range, and the importer has made ONNX's
  positive.
* Divisors of integers: 0 is an `InputValueError`. The least integer divided by -1 is itself, and the rest is 0, as in
  NumPy; the CPU's instruction would end the process.
* Boxes of roi_align and roi_pool: they lie in a picture that there is, are finite, and small enough to be sampled.
* Sizes that the model computes: none below 0, and all together not more than memory can be. The bounds of a slice are
  cut as NumPy cuts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, te, tirx, topi
from tvm.script.ir_builder import tirx as T

from ..core.limits import MOST_ELEMENTS, MOST_PIXELS, MOST_SAMPLES
from ..core.tvm_fast import is_a
from ..ir.relax_utils import bindings_in, constant_numpy, is_host_function
from ..ir.tvm_compat import dtype_of, is_constant
from ..ir.walker import rewrite_calls_in
from ..te.legalize import MENDED, Legalization, by_compute, default_of, dims_of, emitted, stage
from ..te.mended import broadcast_index, cast

#: a condition, and the message and the kind of the error where it does not hold
Rule = tuple[Any, str, str]

_COUNTS_FROM_THE_END = ("scatter_elements", "index_put", "index_tensor")
#: those that TVM lowers without support of negative indices; the check adds the size of the axis
_SHIFTED = ("index_tensor",)
#: what makes a shape of a tensor: the importer calls the VM's function itself, too
_SHAPES = ("relax.tensor_to_shape", "vm.builtin.tensor_to_shape")
_OUT_OF_RANGE = "an index is out of range"
#: the kinds of errors, by the names that C++ and Python know them by
_INDEX, _VALUE = "IndexError", "ByocInputValueError"


def _checked(
    bb: relax.BlockBuilder,
    value: Any,
    rules: Callable[[Callable[[Any], Any], Any, Sequence[Any]], Sequence[Rule]],
    sizes: Sequence[Any] = (),
    change: Callable[[Any, Any, Sequence[Any]], Any] | None = None,
    dtype: str = "",
) -> Any:
    """A copy of ``value``, whose making raises unless ``rules(read, position, sizes)`` hold for every position.

    ``read(position)`` is an element, counted through all axes. ``change(element, position, sizes)`` is what is copied
    instead.
    """

    def kernel(source: te.Tensor, sizes: Sequence[Any]) -> Any:
        def write(given: Any, made: Any) -> None:
            with T.serial(0, math.prod(source.shape)) as i, ExitStack() as stack:
                for condition, message, kind in rules(lambda at: given[at], i, sizes):
                    stack.enter_context(T.Assert(condition, message, kind))
                made[i] = change(given[i], i, sizes) if change else given[i]

        return stage("checked", write, [source], [(source.shape, dtype or dtype_of(source))])

    return emitted(bb, "check_values", kernel, value, list(sizes))


def _int64(value: Any) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else tirx.Cast("int64", value)


def _in_turn(values: Sequence[Any], i: Any) -> Any:
    """The value number ``i``, counted round and round."""
    chosen = _int64(values[-1])
    for k, other in enumerate(values[:-1]):
        chosen = tirx.Select(i % len(values) == k, _int64(other), chosen)
    return chosen


def _name(call: Any) -> str:
    return call.op.name.removeprefix("relax.")


def _in_range(bb: relax.BlockBuilder, call: Any, indices: Any, extents: Sequence[Any]) -> Any:
    if is_constant(indices) and all(isinstance(e, int) for e in extents):
        values = constant_numpy(indices)
        sizes = np.resize(np.asarray(extents), values.size).reshape(values.shape)
        if np.all((values >= 0) & (values < sizes)):
            return indices
    name = _name(call)
    lowest = -1 if name in _COUNTS_FROM_THE_END else 0

    def rules(read: Any, i: Any, extents: Sequence[Any]) -> list[Rule]:
        index, extent = _int64(read(i)), _in_turn(extents, i)
        return [(tirx.all(index >= lowest * extent, index < extent), f"{name}: {_OUT_OF_RANGE}", _INDEX)]

    if name not in _SHIFTED:
        return _checked(bb, indices, rules, extents)

    def from_start(element: Any, i: Any, extents: Sequence[Any]) -> Any:
        index = _int64(element)
        return tirx.Select(index < 0, index + _in_turn(extents, i), index)

    return _checked(bb, indices, rules, extents, from_start, "int64")


def _take(bb: relax.BlockBuilder, call: Any) -> Any:
    data, indices = call.args
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    if mode == "fast":
        dims = dims_of(data)
        extent = math.prod(dims) if axis is None else dims[int(axis)]
        indices, mode = _in_range(bb, call, indices, [extent]), "clip"
    return bb.call_te(topi.take, data, indices, axis, mode=mode)


def _indexed(op: str, check: Callable[[relax.BlockBuilder, Any], Any]) -> Legalization:
    default = MENDED.get(op) or default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        data, _, *rest = call.args
        return default(bb, relax.Call(call.op, [data, check(bb, call), *rest], call.attrs))

    return legalize


def _along_axis(bb: relax.BlockBuilder, call: Any) -> Any:
    return _in_range(bb, call, call.args[1], [dims_of(call.args[0])[int(call.attrs.axis)]])


def _at_coordinates(bb: relax.BlockBuilder, call: Any) -> Any:
    data, indices = call.args[:2]
    first = int(getattr(call.attrs, "batch_dims", 0))
    extents = dims_of(data)[first : first + int(dims_of(indices)[-1])]
    return _in_range(bb, call, indices, extents) if extents else indices


def _by_axis(bb: relax.BlockBuilder, call: Any) -> Any:
    data, indices = call.args[:2]
    if isinstance(indices, relax.Tuple):
        parts = list(indices.fields)
    elif isinstance(indices.ty, relax.TupleType):
        parts = [bb.emit(relax.TupleGetItem(indices, i)) for i in range(len(indices.ty.fields))]
    else:
        parts = [indices]
    checked = [_in_range(bb, call, part, [extent]) for part, extent in zip(parts, dims_of(data), strict=False)]
    return bb.normalize(relax.Tuple(checked))


def _division(op: str, divide: Callable[[Any, Any], Any], *, is_rest: bool) -> Legalization:
    """Division of integers; ``divide`` is TVM's, and ``is_rest`` says whether its result is what is left."""
    default = default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        dtype = dtype_of(call.ty)
        dividend, divisor = call.args
        if "float" in dtype and is_constant(divisor) and not np.all(constant_numpy(divisor)):
            # TVM takes a scalar for a number of its own arithmetic, in which a float divided by 0 is an error.
            return bb.call_te(getattr(topi, _name(call)), dividend, divisor)
        if "float" in dtype or not isinstance(divisor.ty, relax.TensorType):
            return default(bb, call)
        is_signed = dtype.startswith("int")
        if not is_constant(divisor) or np.any(constant_numpy(divisor) == 0):
            divisor = _not_zero(bb, divisor, f"{_name(call)}: a divisor is 0")
        elif not is_signed or not np.any(constant_numpy(divisor) == -1):
            return default(bb, call)
        if not is_signed:
            return default(bb, bb.normalize(relax.Call(call.op, [dividend, divisor], call.attrs)))

        def kernel(first: te.Tensor, second: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
            def element(*at: Any) -> Any:
                a, b = (operand(*broadcast_index(operand, at)) for operand in (first, second))
                quotient = divide(a, tirx.Select(b == -1, tirx.const(1, dtype), b))
                negative = tirx.Select(a == tirx.min_value(dtype), a, -a)
                return tirx.Select(b == -1, tirx.const(0, dtype) if is_rest else negative, quotient)

            return te.compute(shape, element, name="divide")

        return bb.call_te(kernel, dividend, divisor, dims_of(call), primfunc_name_hint=_name(call))

    return legalize


def _not_zero(bb: relax.BlockBuilder, value: Any, message: str) -> Any:
    return _checked(bb, value, lambda read, i, _sizes: [(tirx.Cast("bool", read(i)), message, _VALUE)])


def _boxes(op: str) -> Legalization:
    """Boxes are rows of five: the number of the picture, and two corners."""
    default = MENDED.get(op) or default_of(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        data, boxes, *rest = call.args
        pictures = dims_of(data)[0]
        # A corner farther away needs a coordinate beyond int32, or more samples than there is time for.
        sampled = MOST_SAMPLES * min(int(size) for size in call.attrs.pooled_size) / 2
        farthest = max(sampled, MOST_PIXELS) / call.attrs.spatial_scale

        def rules(read: Any, i: Any, sizes: Sequence[Any]) -> list[Rule]:
            value, dtype = read(i), dtype_of(boxes.ty)
            number = tirx.all(value >= tirx.const(0, dtype), value < tirx.Cast(dtype, _int64(sizes[0])))
            far = tirx.const(farthest, dtype)
            return [
                (tirx.any(i % 5 != 0, number), f"{_name(call)}: {_OUT_OF_RANGE} of the pictures", _INDEX),
                (
                    tirx.any(i % 5 == 0, tirx.all(value >= -far, value <= far)),
                    f"{_name(call)}: a corner of a box is not a number from {-farthest:g} to {farthest:g}",
                    _VALUE,
                ),
            ]

        checked = [data, _checked(bb, boxes, rules, [pictures]), *rest]
        return default(bb, bb.normalize(relax.Call(call.op, checked, call.attrs)))

    return legalize


def _slice(bb: relax.BlockBuilder, call: Any) -> Any:
    """A slice by bounds that are computed: TVM gives sizes below 0 where NumPy gives none, and divides by the steps."""
    data, *bounds = call.args
    dims, dtype = dims_of(data), "int64"
    begin, end, step = (bb.emit(bb.call_te(topi.cast, bound, dtype)) for bound in bounds)
    step = _not_zero(bb, step, f"{_name(call)}: a step is 0")

    def cut(bound: Any, size: Any, by: Any) -> Any:
        bound = tirx.Select(bound < 0, bound + size, bound)
        lowest, highest = tirx.Select(by < 0, _int64(-1), _int64(0)), tirx.Select(by < 0, size - 1, size)
        return tirx.min(tirx.max(bound, lowest), highest)

    def count(first: Any, last: Any, by: Any) -> Any:
        length, unit = tirx.Select(by < 0, first - last, last - first), tirx.max(tirx.abs(by), _int64(1))
        return tirx.Select(length > 0, tirx.floordiv(length - 1, unit) + 1, _int64(0))

    def starts(begin: te.Tensor, step: te.Tensor, dims: Sequence[Any]) -> te.Tensor:
        return te.compute(begin.shape, lambda i: cut(begin[i], _in_turn(dims, i), step[i]), name="starts")

    def sizes(first: te.Tensor, end: te.Tensor, step: te.Tensor, dims: Sequence[Any]) -> te.Tensor:
        def size(i: Any) -> Any:
            return count(first[i], cut(end[i], _in_turn(dims, i), step[i]), step[i])

        return te.compute(end.shape, size, name="sizes")

    def elements(data: te.Tensor, first: te.Tensor, step: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
        return te.compute(shape, lambda *at: data(*(first[k] + i * step[k] for k, i in enumerate(at))), name="slice")

    first = bb.emit(bb.call_te(starts, begin, step, dims))
    counted = bb.emit(bb.call_te(sizes, first, end, step, dims))
    shape = [tirx.Var(f"size_{axis}", dtype) for axis in range(len(dims))]
    bb.match_cast(bb.emit(relax.op.tensor_to_shape(counted)), relax.ShapeType(shape))
    return bb.call_te(elements, data, first, step, shape, primfunc_name_hint="dynamic_strided_slice")


def _checked_sizes(bb: relax.BlockBuilder, sizes: Any) -> Any:
    """A vector of sizes, none of which is below 0, and whose product is not more than `MOST_ELEMENTS`."""
    (rank,) = dims_of(sizes)

    def rules(read: Any, i: Any, _sizes: Sequence[Any]) -> list[Rule]:
        value, others = _int64(read(i)), tirx.const(MOST_ELEMENTS, "int64")
        for k in range(rank if isinstance(rank, int) else 0):
            others = tirx.Select(i > k, tirx.floordiv(others, tirx.max(_int64(read(k)), _int64(1))), others)
        return [
            (value >= 0, "a size that the model computes is below 0", _VALUE),
            (value <= others, f"a tensor that the model computes has more than {MOST_ELEMENTS} elements", _VALUE),
        ]

    return _checked(bb, sizes, rules)


def _name_of_callee(expr: Any) -> str:
    op: Any = expr.op if is_a(expr, relax.Call) else None
    return op.name if is_a(op, ir.Op) else str(op.global_symbol) if is_a(op, relax.ExternFunc) else ""


def _guarded(bb: relax.BlockBuilder, call: Any, _var: Any) -> Any:
    if _name_of_callee(call) not in _SHAPES:
        return None
    return relax.Call(call.op, [_checked_sizes(bb, call.args[0])], call.attrs, call.ty_args)


@tvm.transform.module_pass(opt_level=0, name="CheckSizes")
def CheckSizes(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: sizes are checked; behind the lowering of all operators, because some of them compute sizes."""
    hosts = {gv: f for gv, f in mod.functions.items() if is_host_function(f)}
    found = [gv for gv, f in hosts.items() if any(_name_of_callee(b.value) in _SHAPES for b in bindings_in(f))]
    return rewrite_calls_in(mod, found, _guarded) if found else mod


#: Relax op → what ``LegalizeOps`` makes of it instead
LEGALIZATIONS: dict[str, Legalization] = {
    **MENDED,
    "relax.astype": by_compute("astype", cast),
    "relax.take": _take,
    **{
        f"relax.{name}": _indexed(f"relax.{name}", check)
        for check, names in (
            (_along_axis, ("gather_elements", "scatter_elements")),
            (_at_coordinates, ("gather_nd", "scatter_nd")),
            (_by_axis, ("index_tensor", "index_put")),
        )
        for name in names
    },
    "relax.divide": _division("relax.divide", tirx.truncdiv, is_rest=False),
    "relax.floor_divide": _division("relax.floor_divide", tirx.floordiv, is_rest=False),
    "relax.mod": _division("relax.mod", tirx.truncmod, is_rest=True),
    "relax.floor_mod": _division("relax.floor_mod", tirx.floormod, is_rest=True),
    "relax.vision.roi_align": _boxes("relax.vision.roi_align"),
    "relax.vision.roi_pool": _boxes("relax.vision.roi_pool"),
    "relax.dynamic_strided_slice": _slice,
}
