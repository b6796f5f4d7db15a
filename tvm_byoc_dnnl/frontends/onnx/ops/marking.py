"""Elements that are written, marked or added to by their indices."""

from __future__ import annotations

from typing import Any

from onnx import helper
from tvm import relax, te, tirx

from ..dim import Size, equal, expr_of
from ..emit import Emit, elem_type
from ..table import operator
from ..value import Node, Value
from .computed import computed
from .moving import from_start
from .shapes import int_of

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _reduction(node: Node) -> str:
    given = node.attr("reduction", "none")
    if given not in _REDUCTIONS:
        raise node.wrong(f"has the reduction {given}; expected {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[given]


def places_along(e: Emit, size: Size, axis: int, rank: int) -> Value:
    """The numbers from 0 on, along one axis."""
    along = e.value(relax.op.arange(0, expr_of(size), 1, "int64"))
    return e.reshape(along, [size if a == axis else 1 for a in range(rank)])


@operator("Scatter", "ScatterElements")
def _scatter_elements(e: Emit, node: Node, data: Value, indices: Value, updates: Value) -> Any:
    """TVM wants as many indices as the data has elements along the other axes; fewer are written by coordinates."""
    dims, sizes, reduction = data.sizes, node.needed(1).sizes, _reduction(node)
    rank = len(dims)
    if len(sizes) != rank:
        raise node.wrong(f"has indices of {len(sizes)} axes for data of {rank}")
    axis = node.attr("axis", 0) % max(1, rank)
    updates = e.agree(updates, sizes, hidden=True)
    indices = from_start(e, indices, [dims[axis]])
    if all(equal(a, b) for i, (a, b) in enumerate(zip(dims, sizes, strict=True)) if i != axis):
        return e.scatter_elements(data, indices, updates, axis=axis, reduction=reduction)
    index = e.cast(indices, "int64")
    parts = [index if a == axis else e.expand(places_along(e, sizes[a], a, rank), sizes) for a in range(rank)]
    parts = [e.reshape(part, [*sizes, 1]) for part in parts]
    places = e.concat(parts, rank)
    return e.scatter_nd(data, places, updates, reduction=reduction)


@operator("ScatterND")
def _scatter_nd(e: Emit, node: Node, data: Value, indices: Value, updates: Value) -> Any:
    dims, sizes, reduction = data.sizes, indices.sizes, _reduction(node)
    count = sizes[-1] if sizes else None
    if not isinstance(count, int):
        raise node.refused("has indices of unknown length")
    updates = e.agree(updates, [*sizes[:-1], *dims[count:]], hidden=True)
    places = from_start(e, indices, dims[:count])
    return e.scatter_nd(data, places, updates, reduction=reduction)


@operator("OneHot")
def _one_hot(e: Emit, node: Node, indices: Value) -> Any:
    """By comparing: an index that is out of range marks nothing, and the two values may come from anywhere."""
    dims, values = indices.sizes, node.needed(2)
    depth = int_of(e, node, 1, "depth")
    axis = node.attr("axis", -1) % (len(dims) + 1)
    place = from_start(e, e.onnx("Cast", indices, opset=13, to=7), [depth])
    wide = e.reshape(place, [*dims[:axis], 1, *dims[axis:]])
    chosen = e.equal(wide, places_along(e, depth, axis, len(dims) + 1))
    off, on = (e.take(values, e.const(i, "int64"), axis=0) for i in (0, 1))
    return e.where(chosen, on, off)


@operator("EyeLike")
def _eye(e: Emit, node: Node, x: Value, *, k: int = 0, dtype: Any = None) -> Any:
    dims = x.sizes
    if len(dims) != 2:
        raise node.wrong(f"reads a tensor of {len(dims)} axes; expected 2")
    rows, columns = (places_along(e, size, axis, 2) for axis, size in enumerate(dims))
    chosen = e.equal(rows + e.const(k, "int64"), columns)
    kind = dtype or elem_type(x.dtype)
    return e.onnx("Cast", chosen, opset=13, to=kind)


@operator("Trilu", since=14)
def _triangle(e: Emit, node: Node, x: Value, k: Value | None = None, *, upper: int = 1) -> Any:
    if k is None or k.is_constant:
        diagonal = 0 if k is None else int((node.ints(1) or [0])[0])
        return e.call(relax.op.triu if upper else relax.op.tril, x, k=diagonal)
    rows, columns = (places_along(e, size, axis, 2) for axis, size in enumerate(x.sizes[-2:]))
    distance = columns - rows
    least = e.reshape(e.cast(k, "int64"), [])
    chosen = e.call(relax.op.greater_equal if upper else relax.op.less_equal, distance, least)
    return e.where(chosen, x, 0)


# ---- elements at other places, and bits that are read in another way --------------------------------------


@operator("ReverseSequence", since=10)
def _reverse_sequence(e: Emit, node: Node, x: Value) -> Any:
    lengths = e.cast(node.needed(1), "int64")
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise node.wrong(f"has the time_axis {time} and the batch_axis {batch}; one must be 0 and the other 1")

    def compute(data: Any, counts: Any) -> Any:
        def element(*at: Any) -> Any:
            count = tirx.min(counts(at[batch]), data.shape[time])
            place = tirx.Select(at[time] < count, tirx.max(count - 1 - at[time], tirx.const(0, "int64")), at[time])
            return data(*(place if axis == time else i for axis, i in enumerate(at)))

        return te.compute(data.shape, element, name="reverse_sequence")

    return computed(e, "reverse_sequence", compute, x, lengths)


@operator("TensorScatter", since=24)
def _tensor_scatter(e: Emit, node: Node) -> Any:
    """Writes ``update`` into a cache, from a place of each batch on; a circular cache begins again at its end."""
    past, update, starts = node.needed(0), node.needed(1), node.input(2)
    rank, mode = past.rank, node.attr("mode", "linear")
    if rank is None:
        raise node.refused("has a cache of unknown rank")
    axis = node.attr("axis", -2) % rank
    if axis == 0:
        raise node.wrong("has the axis 0, which is the batch")
    if starts is None:
        starts = e.const([0])
    one = starts.dims is not None and starts.sizes[0] == 1

    def compute(cache: Any, new: Any, begins: Any) -> Any:
        def element(*at: Any) -> Any:
            size, length = cache.shape[axis], new.shape[axis]
            after = at[axis] - begins(tirx.const(0, "int64") if one else at[0])
            if mode == "circular":
                after = tirx.floormod(after, size)
            is_new = tirx.all(after >= 0, after < length)
            place = tirx.max(tirx.min(after, length - 1), tirx.const(0, "int64"))
            return tirx.if_then_else(is_new, new(*(place if i == axis else a for i, a in enumerate(at))), cache(*at))

        return te.compute(cache.shape, element, name="tensor_scatter")

    return computed(e, "tensor_scatter", compute, past, update, e.cast(starts, "int64"))


_READ = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


@operator("BitCast", since=26)
def _bit_cast(e: Emit, node: Node, x: Value, *, to: Any = None) -> Any:
    dtype = str(helper.tensor_dtype_to_np_dtype(to))
    if x.dtype == dtype:
        return x
    if x.dtype not in _READ or dtype not in _READ:
        raise node.refused(f"reads {x.dtype} as {dtype}; numbers of 8 to 64 bits that C has can be")

    def compute(data: Any) -> Any:
        return te.compute(data.shape, lambda *at: tirx.reinterpret(dtype, data(*at)), name="bit_cast")

    return computed(e, "bit_cast", compute, x)
