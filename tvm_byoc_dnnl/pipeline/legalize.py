"""Host code for operators that TVM lowers wrong.

* TVM's gathers and scatters read and write memory of others at an index that is out of range. Here such an index raises
  an ``IndexError``, as in ONNX Runtime. Negative indices count from the end where they do so in PyTorch or in TVM
  (scatter_elements, index_put, index_tensor); elsewhere they are out of range, and the importer has made ONNX's
  positive.
* Sums of float16 are made in float16; here in float32.
* TVM's padding by elements of the tensor itself reads memory of others where there are too few of them.
* LLVM has no float16 form of some functions; they are computed in float32 between casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import ir, relax, te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from .._compat import constant_numpy, dtype_of, is_constant, shape_dims
from ..errors import UnsupportedError
from ..te.padding import least_sizes

__all__ = ["LEGALIZATIONS"]

Legalization = Callable[[relax.BlockBuilder, Any], Any]

#: TVM's kind of a function that is fused with nothing
_OPAQUE = 8
_SUMS = ("matmul", "sum", "mean", "variance", "std", *(f"nn.conv{d}d" for d in (1, 2, 3)))
_COUNTS_FROM_THE_END = ("scatter_elements", "index_put", "index_tensor")
#: those that TVM lowers without support of negative indices; the check adds the size of the axis
_SHIFTED = ("index_tensor",)
#: functions that LLVM does not have in float16, and those of which TVM rounds every step to float16
_NOT_IN_FLOAT16 = (
    *("acos", "acosh", "asin", "asinh", "atan", "cosh", "sinh"),
    *("atanh", "rsqrt", "sigmoid", "tan", "tanh"),
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


def _summed_in_float32(op: str) -> Legalization:
    """In float16, the sum of 4,096 ones is 2,048."""
    default = _default(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        if any(dtype_of(e.ty) != "float16" for e in (call, *call.args)) or "float16" in str(
            getattr(call.attrs, "out_dtype", "")
        ):
            return default(bb, call)
        wide = [bb.emit(bb.call_te(topi.cast, arg, "float32")) for arg in call.args]
        out = bb.emit(default(bb, bb.normalize(relax.Call(call.op, wide, call.attrs))))
        return bb.call_te(topi.cast, out, "float16")

    return legalize


# ---- indices ----------------------------------------------------------------------------------------


def _in_range(bb: relax.BlockBuilder, call: Any, indices: Any, extents: Sequence[Any]) -> Any:
    """``indices``, checked; along their last axis the extents take turns."""
    if is_constant(indices) and all(isinstance(e, int) for e in extents):
        values = constant_numpy(indices)
        sizes = np.resize(np.asarray(extents), values.size).reshape(values.shape)
        if np.all((values >= 0) & (values < sizes)):
            return indices
    name = call.op.name.removeprefix("relax.")
    lowest = -1 if name in _COUNTS_FROM_THE_END else 0
    attrs = {"op_pattern": _OPAQUE}
    return bb.emit(
        bb.call_te(
            _checked, indices, list(extents), name, lowest, primfunc_name_hint="check_indices", primfunc_attrs=attrs
        )
    )


def _checked(indices: te.Tensor, extents: Sequence[Any], name: str, lowest: int) -> te.Tensor:
    dtype = "int64" if name in _SHIFTED else indices.dtype

    def write_each(source: Any, target: Any) -> Any:
        with IRBuilder() as ib:
            read, write = T.buffer_proxy(source), T.buffer_proxy(target)
            with T.serial(0, math.prod(source.shape)) as i:
                index, extent = _int64(read[i]), _int64(extents[-1])
                for k, other in enumerate(extents[:-1]):
                    extent = tirx.Select(i % len(extents) == k, _int64(other), extent)
                inside = tirx.all(index >= lowest * extent, index < extent)
                with T.Assert(inside, f"{name}: an index is out of range", "IndexError"):
                    write[i] = tirx.Select(index < 0, index + extent, index) if name in _SHIFTED else read[i]
            return ib.get()

    out = tirx.decl_buffer(indices.shape, dtype, "checked", layout=None)
    return te.extern(
        [indices.shape],
        [indices],
        lambda ins, outs: write_each(ins[0], outs[0]),
        out_buffers=[out],
        name="checked_indices",
    )


def _int64(value: Any) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else tirx.Cast("int64", value)


def _dims(expr: Any) -> list[Any]:
    dims = shape_dims(expr.ty)
    assert dims is not None, "an operator is lowered only once the shapes of its operands are known"
    return dims


def _take(bb: relax.BlockBuilder, call: Any) -> Any:
    data, indices = call.args
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    if mode == "fast":
        dims = _dims(data)
        extent = math.prod(dims) if axis is None else dims[int(axis)]
        indices, mode = _in_range(bb, call, indices, [extent]), "clip"
    return bb.call_te(topi.take, data, indices, axis, mode=mode)


def _along_axis(op: str) -> Legalization:
    default = _default(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        data, indices, *rest = call.args
        checked = _in_range(bb, call, indices, [_dims(data)[int(call.attrs.axis)]])
        return default(bb, relax.Call(call.op, [data, checked, *rest], call.attrs))

    return legalize


def _at_coordinates(op: str) -> Legalization:
    default = _default(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        data, indices, *rest = call.args
        first = int(getattr(call.attrs, "batch_dims", 0))
        extents = _dims(data)[first : first + int(_dims(indices)[-1])]
        checked = _in_range(bb, call, indices, extents) if extents else indices
        return default(bb, relax.Call(call.op, [data, checked, *rest], call.attrs))

    return legalize


def _by_axis(op: str) -> Legalization:
    default = _default(op)

    def legalize(bb: relax.BlockBuilder, call: Any) -> Any:
        data, indices, *rest = call.args
        if isinstance(indices, relax.Tuple):
            parts = list(indices.fields)
        elif isinstance(indices.ty, relax.TupleType):
            parts = [bb.emit(relax.TupleGetItem(indices, i)) for i in range(len(indices.ty.fields))]
        else:
            parts = [indices]
        checked = [_in_range(bb, call, part, [extent]) for part, extent in zip(parts, _dims(data), strict=False)]
        return default(bb, relax.Call(call.op, [data, bb.normalize(relax.Tuple(checked)), *rest], call.attrs))

    return legalize


# ---- padding ----------------------------------------------------------------------------------------


def _pad(bb: relax.BlockBuilder, call: Any) -> Any:
    default, least = _default("relax.nn.pad"), least_sizes(call.attrs)
    if not least:
        return default(bb, call)
    data, widths = call.args[0], [int(w) for w in call.attrs.pad_width]
    dims = _dims(data)
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


def _default(op: str) -> Legalization:
    return ir.Op.get(op).get_attr("FLegalize")


#: Relax op → what ``LegalizeOps`` makes of it instead
LEGALIZATIONS: dict[str, Legalization] = {
    **{f"relax.{name}": _by_float32(name) for name in _NOT_IN_FLOAT16},
    **{f"relax.{name}": _summed_in_float32(f"relax.{name}") for name in _SUMS},
    "relax.nn.pad": _pad,
    "relax.take": _take,
    "relax.gather_elements": _along_axis("relax.gather_elements"),
    "relax.scatter_elements": _along_axis("relax.scatter_elements"),
    "relax.gather_nd": _at_coordinates("relax.gather_nd"),
    "relax.scatter_nd": _at_coordinates("relax.scatter_nd"),
    "relax.index_tensor": _by_axis("relax.index_tensor"),
    "relax.index_put": _by_axis("relax.index_put"),
}
