"""Operators that move, repeat, leave out or add elements, or write, mark or add to them by their indices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from ..dim import Dim, Size, equal, min_of, substituted
from ..emit import Emit, elem_type
from ..table import operator
from ..value import Node, Value, listed, numbers
from .computed import asked, computed, int64, within
from .shapes import axes_of, int_of, ints_of, length_of, shaped_in_call


def _part_sizes(node: Node, given: list[Any] | None) -> tuple[int, list[Size]]:
    """The axis that a Split divides, and the sizes of its parts."""
    axis = int(node.attr("axis", 0)) % len(node.needed(0).sizes)
    if given:
        return axis, given
    size, parts = node.needed(0).sizes[axis], node.attr("num_outputs", len(node.wanted))
    if isinstance(size, Dim) and node.opset < 18:  # parts are equal, which is checked in the call
        return axis, [size // parts] * parts
    each = -(-size // parts)
    starts = [min_of(each * i, size) for i in range(parts)]
    return axis, [end - start for start, end in itertools.pairwise([*starts, size])]


@operator("Split")
def _split(e: Emit, node: Node, x: Value) -> Any:
    return parts_of(e, node, x, *_part_sizes(node, ints_of(e, node, 1, "split")))


def parts_of(e: Emit, node: Node, x: Value, axis: int, sizes: list[Size]) -> list[Value | None]:
    if any(isinstance(s, int) and s < 0 for s in sizes):
        raise node.wrong(f"has split {sizes}; expected sizes of 0 or more")
    ends = list(itertools.accumulate(sizes))
    whole = node.needed(0).sizes[axis]
    if not isinstance(whole, Dim) and not isinstance(ends[-1], Dim) and ends[-1] != whole:
        raise node.wrong(f"has split {sizes}, together {ends[-1]}; expected the {whole} elements of its axis")
    if len(sizes) == 1:
        return [x]
    if x.known is None and not any(isinstance(s, Dim) or s == 0 for s in (*sizes, whole)):
        made = e.split(x, indices_or_sections=ends[:-1], axis=axis).expr
        return [e.value(relax.TupleGetItem(made, i)) if w else None for i, w in enumerate(node.wanted)]
    x = e.agree(x, [ends[-1] if a == axis else d for a, d in enumerate(node.needed(0).sizes)])
    return [
        e.cut(x, axis, start, end) if wanted else None
        for start, end, wanted in zip([0, *ends], ends, node.wanted, strict=False)
    ]


@operator("Tile")
def _tile_of_axis(e: Emit, node: Node, x: Value) -> Any:
    times = [1] * len(x.sizes)
    times[int(node.known(2, "its axis").reshape(()))] = int(node.known(1, "its tiles").reshape(()))
    return e.onnx("Tile", x, listed(*times), opset=6)


@operator("Tile", since=6)
def _tile(e: Emit, node: Node, x: Value) -> Any:
    dims = x.sizes
    times = ints_of(e, node, 1, "repeats") or []
    if len(times) != len(dims):
        raise node.wrong(f"has {len(times)} repeats; expected {len(dims)}, because its input has as many axes")
    if all(t == 1 for t in times):
        return x
    wide = e.reshape(x, [size for d in dims for size in (1, d)])
    wide = e.expand(wide, [size for pair in zip(times, dims, strict=True) for size in pair])
    return e.reshape(wide, [t * d for t, d in zip(times, dims, strict=True)])


@operator("CumSum", since=11)
@operator("CumProd", since=26)
def _running(e: Emit, node: Node, x: Value, *, reverse: int = 0, exclusive: int = 0) -> Any:
    (axis,) = axes_of([int(node.known(1, "its axis").reshape(()))], len(x.sizes), node)
    if 0 in x.sizes:  # which TVM's operators divide by
        return x
    x = e.flip(x, axis=axis) if reverse else x
    x = e.call(relax.op.cumsum if node.op == "CumSum" else relax.op.cumprod, x, axis=axis, exclusive=bool(exclusive))
    return e.flip(x, axis=axis) if reverse else x


def from_start(e: Emit, indices: Value, extents: Sequence[Size]) -> Value:
    """Indices counted from the first element; along their last axis the extents take turns, if there are several."""
    if indices.dtype.startswith("uint") or (indices.is_constant and (known_of(indices) >= 0).all()):
        return indices
    lengths = Value(known=numbers(extents, () if len(extents) == 1 else None), dtype="int64")
    return e.where(indices < 0, indices + e.cast(lengths, indices.dtype), indices)


def known_of(value: Value) -> np.ndarray:
    assert value.known is not None
    return value.known


@operator("GatherElements", since=11)
def _gather_elements(e: Emit, node: Node, x: Value) -> Any:
    dims, sizes = x.sizes, node.needed(1).sizes
    axis = node.attr("axis", 0) % max(len(dims), 1)
    if 0 in sizes:  # TVM divides by it
        return e.zeros(sizes, x.dtype)
    return e.gather_elements(x, from_start(e, node.needed(1), [dims[axis]]), axis=axis)


@operator("GatherND", since=11)
def _gather_nd(e: Emit, node: Node, x: Value, indices: Value, *, batch_dims: int = 0) -> Any:
    dims, sizes = x.sizes, indices.sizes
    count = sizes[-1] if sizes else 0
    if isinstance(count, Dim) and len(dims) == batch_dims + 1:
        count, indices = 1, e.agree(indices, [*sizes[:-1], 1])
    if isinstance(count, Dim):
        raise node.refused(f"has indices of {indices}, whose last axis decides the rank of the result; fix that axis")
    return e.gather_nd(x, from_start(e, indices, dims[batch_dims : batch_dims + count]), batch_dims=batch_dims)


def _blocks(node: Node) -> tuple[int, bool, list[Any]]:
    data, size, mode = node.needed(0), node.attr("blocksize"), node.attr("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise node.wrong(f"has the mode {mode}; expected DCR or CRD")
    if data.dims is None or len(data.sizes) != 4:
        raise node.refused(f"has data of {data}; expected 4 axes")
    return size, mode == "CRD", list(data.dims)


@operator("DepthToSpace")
def _depth_to_space(e: Emit, node: Node, x: Value) -> Any:
    size, channels_first, (n, c, h, w) = _blocks(node)
    inner = c // (size * size)
    by_columns = [n, inner, size, size, h, w], [0, 1, 4, 2, 5, 3]
    split, order = by_columns if channels_first else ([n, size, size, inner, h, w], [0, 3, 4, 1, 5, 2])
    return e.reshape(e.transpose(e.reshape(x, split), order), [n, inner, h * size, w * size])


@operator("SpaceToDepth")
def _space_to_depth(e: Emit, node: Node, x: Value) -> Any:
    size, channels_first, (n, c, h, w) = _blocks(node)
    rows, columns = h // size, w // size
    split = e.reshape(x, [n, c, rows, size, columns, size])
    order = [0, 1, 3, 5, 2, 4] if channels_first else [0, 3, 5, 1, 2, 4]
    return e.reshape(e.transpose(split, order), [n, c * size * size, rows, columns])


#: mode of ONNX → Relax's
_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


@operator("Pad")
def _pad(e: Emit, node: Node, data: Value, pads: Value, value: Value | None = None, *, mode: str = "constant") -> Any:
    if mode not in _MODES:
        raise node.wrong(f"has the mode {mode}; expected {', '.join(_MODES)}")
    rank = len(data.sizes)
    axes = node.ints(3, "axes")
    along = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    widths = node.ints(1) or [] if pads.known is not None else _asked_widths(e, pads, data, along, mode)
    pairs = dict(zip(along, zip(widths, widths[len(along) :], strict=False), strict=False))
    before, after = ([pairs.get(axis, (0, 0))[side] for axis in range(rank)] for side in (0, 1))
    return padded(e, data, before, after, mode, value)


def _asked_widths(e: Emit, pads: Value, data: Value, along: list[int], mode: str) -> list[Any]:
    """Widths that a call knows; they may be below 0, which sizes are not.

    The sizes of the result have symbols of their own: all that is computed of them would have sums of five instead.
    """
    rank, sizes = len(along), [data.sizes[axis] for axis in along]
    pads, own = e.agree(pads, [2 * rank]), listed(*sizes)
    before, after = e.cut(pads, 0, 0, rank), e.cut(pads, 0, rank, 2 * rank)
    if mode != "constant":  # the call fails where nothing is left to repeat
        kept = own + e.minimum(before, 0) + e.minimum(after, 0)
        needed = e.minimum(e.maximum(e.maximum(before, after), 0), 1)
        asked(e, kept - needed, [f"left{i}" for i in range(rank)])
    added = asked(e, e.maximum(before, 0), [f"pad{i}" for i in range(rank)])
    removed = asked(e, e.maximum(-before, 0), [f"cut{i}" for i in range(rank)])
    made = asked(e, own + before + after, [f"padded{i}" for i in range(rank)])
    first = [a - r for a, r in zip(added, removed, strict=True)]
    return [*first, *(m - s - f for m, s, f in zip(made, sizes, first, strict=True))]


def padded(
    e: Emit,
    data: Value,
    before: Sequence[Size],
    after: Sequence[Size],
    mode: str = "constant",
    fill: Value | None = None,
) -> Value:
    """A value with more elements around it, or fewer where widths are below 0."""
    fill = e.const(0, data.dtype) if fill is None else fill
    number = fill.known
    if not any(isinstance(w, Dim) or w for w in (*before, *after)):
        return data
    is_plain = all(isinstance(w, int) and w >= 0 for w in (*before, *after))
    widths = [w for pair in zip(before, after, strict=True) for w in pair]
    # the attribute of Relax's operator is a float64
    is_said = number is not None and data.dtype != "bool" and number.size == 1 and float(number.item()) == number.item()
    if mode == "constant" and is_plain and number is not None and is_said:
        return e.pad(data, pad_width=widths, pad_mode="constant", pad_value=float(number.item()))
    if mode != "constant" and all(isinstance(w, int) for w in widths):
        for axis, (size, b, a) in enumerate(zip(data.sizes, before, after, strict=True)):
            data = e.cut(data, axis, max(-b, 0), size + min(a, 0)) if min(a, b) < 0 else data
        if not any(widths := [max(w, 0) for w in widths]):
            return data
        data, dtype = e.cast(data, "int8") if data.dtype == "bool" else data, data.dtype
        return e.cast(e.pad(data, pad_width=widths, pad_mode=_MODES[mode]), dtype)  # it finds too few to repeat
    sizes = [n + b + a for n, b, a in zip(data.sizes, before, after, strict=True)]
    fill = e.reshape(e.cast(fill, data.dtype), [])
    return computed(e, "pad", _around(mode), data, fill, list(before), list(after), sizes)


def _around(mode: str) -> Callable[..., Any]:
    def compute(x: Any, fill: Any, before: Any, after: Any, sizes: Any) -> Any:
        def element(*index: Any) -> Any:
            places = [i - b for i, b in zip(index, before, strict=True)]
            if mode == "constant":
                inside = [t for p, n in zip(places, x.shape, strict=True) for t in (p >= 0, p < n)]
                return tirx.if_then_else(tirx.all(*inside), x(*places), fill())
            # what widths below 0 cut is not read, neither here nor on the other side
            first = [tirx.max(-b, 0) for b in before]
            last = [n - 1 - tirx.max(-a, 0) for n, a in zip(x.shape, after, strict=True)]
            return x(*(_PLACES[mode](p, f, q) for p, f, q in zip(places, first, last, strict=True)))

        return te.compute(tuple(sizes), element, name="pad")

    return compute


def _reflected(place: Any, first: Any, last: Any) -> Any:
    period = tirx.max(2 * (last - first), 1)
    rest = tirx.floormod(place - first, period)
    return tirx.min(first + tirx.min(rest, period - rest), tirx.max(last, first))


_PLACES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "edge": lambda place, first, last: tirx.max(tirx.min(place, last), first),
    "reflect": _reflected,
    "wrap": lambda place, first, last: first + tirx.floormod(place - first, tirx.max(last - first + 1, 1)),
}


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _reduction(node: Node) -> str:
    given = node.attr("reduction", "none")
    if given not in _REDUCTIONS:
        raise node.wrong(f"has the reduction {given}; expected {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[given]


def places_along(e: Emit, size: Size, axis: int, rank: int) -> Value:
    """The numbers from 0 on, along one axis."""
    return e.reshape(e.places(size), [size if a == axis else 1 for a in range(rank)])


@operator("Scatter", "ScatterElements")
def _scatter_elements(e: Emit, node: Node, data: Value, indices: Value, updates: Value) -> Any:
    """TVM wants as many indices as the data has elements along the other axes; fewer are written by coordinates."""
    dims, sizes, reduction = data.sizes, node.needed(1).sizes, _reduction(node)
    rank = len(dims)
    if len(sizes) != rank:
        raise node.wrong(f"has indices of {len(sizes)} axes for data of {rank}")
    axis = node.attr("axis", 0) % max(1, rank)
    if 0 in sizes:  # TVM divides by it
        return data
    updates = e.agree(updates, sizes, hidden=True)
    indices = from_start(e, indices, [dims[axis]])
    if all(equal(a, b) for i, (a, b) in enumerate(zip(dims, sizes, strict=True)) if i != axis):
        return e.scatter_elements(data, indices, updates, axis=axis, reduction=reduction)
    index = e.cast(indices, "int64")
    parts = [index if a == axis else e.expand(places_along(e, sizes[a], a, rank), sizes) for a in range(rank)]
    places = e.concat([e.reshape(part, [*sizes, 1]) for part in parts], rank)
    return e.scatter_nd(data, places, updates, reduction=reduction)


@operator("ScatterND")
def _scatter_nd(e: Emit, node: Node, data: Value, indices: Value, updates: Value) -> Any:
    dims, sizes, reduction = data.sizes, indices.sizes, _reduction(node)
    count = len(dims) + len(sizes) - 1 - len(updates.sizes)  # of coordinates, as the ranks say it
    if not 0 < count <= len(dims):
        raise node.wrong(
            f"has updates of {updates} for indices of {indices} and data of {data}: their ranks do not fit"
        )
    indices = e.agree(indices, [*sizes[:-1], count])
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
    return e.onnx("Cast", chosen, opset=13, to=dtype or elem_type(x.dtype))


@operator("Trilu", since=14)
def _triangle(e: Emit, node: Node, x: Value, k: Value | None = None, *, upper: int = 1) -> Any:
    if k is None or k.is_constant:
        diagonal = 0 if k is None else int((node.ints(1) or [0])[0])
        return e.call(relax.op.triu if upper else relax.op.tril, x, k=diagonal)
    rows, columns = (places_along(e, size, axis, 2) for axis, size in enumerate(x.sizes[-2:]))
    distance, least = columns - rows, e.reshape(e.cast(k, "int64"), [])
    return e.where(distance >= least if upper else distance <= least, x, 0)


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
            place = tirx.Select(at[time] < count, tirx.max(count - 1 - at[time], int64(0)), at[time])
            return data(*(place if axis == time else i for axis, i in enumerate(at)))

        return te.compute(data.shape, element, name="reverse_sequence")

    return computed(e, "reverse_sequence", compute, x, lengths)


@operator("TensorScatter", since=24)
def _tensor_scatter(e: Emit, node: Node) -> Any:
    """Writes ``update`` into a cache, from a place of each batch on; a circular cache begins again at its end."""
    past, update, starts = node.needed(0), node.needed(1), node.input(2)
    mode, axis = node.attr("mode", "linear"), node.attr("axis", -2) % len(past.sizes)
    if axis == 0:
        raise node.wrong("has the axis 0, which is the batch")
    starts = e.const([0]) if starts is None else starts
    one = starts.sizes[0] == 1

    def compute(cache: Any, new: Any, begins: Any) -> Any:
        def element(*at: Any) -> Any:
            size, length = cache.shape[axis], new.shape[axis]
            after = at[axis] - begins(tirx.const(0, "int64") if one else at[0])
            if mode == "circular":
                after = tirx.floormod(after, size)
            new_at = (within(after, length) if i == axis else a for i, a in enumerate(at))
            return tirx.if_then_else(tirx.all(after >= 0, after < length), new(*new_at), cache(*at))

        return te.compute(cache.shape, element, name="tensor_scatter")

    return computed(e, "tensor_scatter", compute, past, update, e.cast(starts, "int64"))


_READ = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("bfloat16", "float16", "float32", "float64"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


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


def axes_in_call(e: Emit, given: Value, rank: int, is_all: Value | None = None) -> tuple[Value, Value]:
    """Whether each axis is among those that only a call knows, or all are; and the axes, these behind the others."""
    number = e.const(np.arange(rank))
    places = from_start(e, e.expand_dims(e.cast(given, "int64"), axis=[0]), [rank])
    is_given = e.sum(e.cast(e.equal(e.expand_dims(number, axis=[1]), places), "int64"), axis=[1]) > 0
    if is_all is not None:
        is_given = is_given | is_all
    return is_given, e.argsort(e.cast(is_given, "int64") * e.const(rank) + number, dtype="int64")


def _axes_last(e: Emit, node: Node, *, adds: bool) -> tuple[Value, int] | None:
    """All axes, behind the others those that only a call knows, and the number of these; ``None`` if they are known.

    Each is given once, which the call checks. ``adds``: they are axes of the result, which has so many more.
    """
    given = node.input(1)
    if given is None or given.known is not None:
        return None
    count = length_of(node, 1, "its axes")
    is_given, order = axes_in_call(e, given, len(node.needed(0).sizes) + adds * count)
    asked(e, e.sum(e.cast(is_given, "int64"), axis=[0], keepdims=True), [count])
    return order, count


@operator("Unsqueeze")
def _unsqueeze(e: Emit, node: Node, x: Value) -> Any:
    if (last := _axes_last(e, node, adds=True)) is not None:
        order, count = last
        return shaped_in_call(e, x, e.take(listed(*x.sizes, *[1] * count), e.argsort(order, dtype="int64"), axis=0))
    axes = node.ints(1, "axes")
    if axes is None:
        raise node.wrong("has no axes")
    found = axes_of(axes, len(x.sizes) + len(axes), node, "its result")
    if len(set(found)) < len(found):
        raise node.wrong(f"has the axes {axes}; expected each once")
    return e.expand_dims(x, axis=found)


@operator("Squeeze")
def _squeeze(e: Emit, node: Node, x: Value) -> Any:
    if (last := _axes_last(e, node, adds=False)) is not None:
        order, count = last
        return shaped_in_call(e, x, e.cut(e.take(listed(*x.sizes), order, axis=0), 0, 0, len(x.sizes) - count))
    dims = [substituted(d, e.settled) for d in x.sizes]
    axes = node.ints(1, "axes") or (None if node.input(1) is None else [])
    text = f"({', '.join(map(str, dims))})"
    if axes is None and any(isinstance(d, Dim) for d in dims):
        raise node.refused(
            f"has no axes, and its input has the shape {text}: the number of dimensions of its result depends on the "
            "call. Fix the open ones, or give the node axes"
        )
    found = [axis for axis, d in enumerate(dims) if d == 1] if axes is None else axes_of(axes, len(dims), node)
    if any(isinstance(dims[a], int) and dims[a] != 1 for a in found):
        raise node.wrong(f"has the axes {axes} of a tensor of {text}; expected axes of size 1")
    if any(isinstance(d, Dim) for d in x.sizes):
        x = e.agree(x, [1 if a in found else d for a, d in enumerate(x.sizes)])
    return e.squeeze(x, axis=found) if found else x
