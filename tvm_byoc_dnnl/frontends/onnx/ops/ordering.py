"""Elements that are chosen by their order or by what they are.

A NaN counts as larger and as smaller than every number, as in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from ..dim import Dim, Size, at_least, max_of, min_of, product
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, listed, whole
from .computed import asked, computed, int64, written
from .moving import axes_in_call
from .shapes import axes_of, int_of, length_of, shaped_in_call


def _axis(node: Node, dims: Sequence[Size], default: int) -> int:
    return int(node.attr("axis", default)) % max(len(dims), 1)


def cut_checked(e: Emit, x: Value, axis: int, end: Size) -> Value:
    """The first elements of an axis; that it has so many is checked in the call."""
    dims = list(x.sizes)
    if not at_least(dims[axis], end):
        x = e.agree(x, [max_of(d, end) if a == axis else d for a, d in enumerate(dims)])
    return e.cut(x, axis, 0, end)


@operator("ArgMax", "ArgMin")
def _arg(e: Emit, node: Node, x: Value, *, select_last_index: int = 0, keepdims: int = 1) -> Any:
    """The first NaN if there is one, else the first extreme; the last ones with ``select_last_index``."""
    dims = x.sizes
    axis, keeps = _axis(node, dims, 0), bool(keepdims)
    if not dims:
        return e.const(0, "int64")
    x = e.flip(x, axis=axis) if select_last_index else x
    if x.dtype in ("bfloat16", "float16", "bool"):
        x = e.cast(x, "float32" if "float" in x.dtype else "int32")
    pick = relax.op.argmax if node.op == "ArgMax" else relax.op.argmin
    # TVM's is -1 where nothing is above the number that it begins with: all are equal to the least one, or -∞.
    found = e.maximum(e.call(pick, x, axis=axis, keepdims=keeps), 0)
    if "float" in x.dtype:
        is_nan = e.cast(e.isnan(x), "int32")
        some = e.cast(e.max(is_nan, axis=axis, keepdims=keeps), "bool")
        found = e.where(some, e.argmax(is_nan, axis=axis, keepdims=keeps), found)
    return whole(dims[axis] - 1) - found if select_last_index else found


def keys(e: Emit, x: Value) -> Value:
    """Numbers in the order of a tensor's, of a dtype that TVM sorts.

    Of reals they are float64 in which a NaN is ∞, and ∞ a number that no narrower type has.
    """
    if "float" in x.dtype:
        wide = e.cast(x, "float64")
        largest = e.const(np.finfo("float64").max)
        number = e.where(e.equal(wide, e.const(np.inf)), largest, wide)
        return e.where(e.isnan(wide), e.const(np.inf), number)
    whole = e.cast(x, "int64")
    # Of uint64 the highest bit is a sign now: without it, the order is the same.
    return whole ^ e.const(np.iinfo("int64").min, "int64") if x.dtype == "uint64" else whole


@operator("TopK")
def _top(e: Emit, node: Node, x: Value) -> Any:
    dims = x.sizes
    axis, largest = _axis(node, dims, -1), bool(node.attr("largest", 1))
    node.unused("sorted")  # results that may have any order are sorted
    k = int_of(e, node, 1, "k")
    if k == 0:  # TVM takes all for 0
        none = e.cut(x, axis, 0, 0)
        return [none, e.zeros(none.sizes, "int64")]
    how = {"k": k if isinstance(k, int) else -1, "axis": axis, "ret_type": "indices", "largest": largest}
    places = e.topk(keys(e, x), dtype="int64", **how)
    if isinstance(k, Dim):
        places = cut_checked(e, places, axis, k)
    values = e.gather_elements(x, places, axis=axis) if node.wanted[0] else None
    return [values, places]


# ---- results with as many elements as the data says: only a call knows how many ---------------------------


def _places(e: Emit, x: Value) -> Value:
    """The places of the elements that are not 0, counted through all axes."""
    count = product(x.sizes)
    flat = e.reshape(e.cast(e.cast(x, "bool"), "int32"), [count])

    def write(data: Any, places: Any, total: Any, count: Any) -> None:
        total[0] = int64(0)
        with T.serial(0, count) as i, T.If(data[i] != 0), T.Then():
            places[total[0]] = i
            total[0] = total[0] + 1

    places, total = written(e, "not_zero", write, [flat], [([count], "int64"), ([1], "int64")], [count])
    return e.cut(places, 0, 0, asked(e, total, ["selected"])[0])


@operator("NonZero", since=9)
def _non_zero(e: Emit, x: Value) -> Any:
    """The coordinates, one row for each axis."""
    dims, places = x.sizes, _places(e, x)
    count = (places.dims or (0,))[0]
    if not dims:
        return e.zeros([0, count], "int64")
    rows = []
    for axis, size in enumerate(dims):
        along = places // whole(max_of(product(dims[axis + 1 :]), 1))
        rows.append(e.reshape(along % whole(max_of(size, 1)), [1, count]))
    return e.concat(rows, 0)


@operator("Compress", since=9)
def _compress(e: Emit, node: Node, x: Value, condition: Value, *, axis: Any = None) -> Any:
    if condition.rank != 1:
        raise node.wrong(f"has a condition of {condition}; expected a vector")
    if axis is None:
        x, axis = e.reshape(x, [product(node.needed(0).sizes)]), 0
    axis %= x.rank or 1
    size, length = x.sizes[axis], condition.sizes[0]
    if not at_least(size, length):  # what is beyond the elements says nothing
        condition = e.cut(condition, 0, 0, min_of(size, length))
    return e.take(x, _places(e, condition), axis=axis)


@operator("Unique", since=11)
def _unique(e: Emit, x: Value, *, axis: Any = None, sorted: int = 1) -> Any:
    """Elements, or slices of an axis, once each: sorted, or in the order in which they come first."""
    if axis is None:
        rows, axis = e.reshape(x, [product(x.sizes)]), 0
        found = _of_elements(e, rows)
    else:
        axis %= len(x.sizes)
        rows = x
        found = _of_slices(e, e.transpose(x, [axis, *(a for a in range(len(x.sizes)) if a != axis)]))
    first, inverse, counts, total = found
    (count,) = asked(e, total, ["different"])
    first, counts = (e.cut(v, 0, 0, count) for v in (first, counts))
    if not sorted:
        order = e.argsort(first, axis=0, dtype="int64")
        place = e.argsort(order, axis=0, dtype="int64")
        first, counts = (e.take(v, order, axis=0) for v in (first, counts))
        inverse = e.take(place, inverse, axis=0)
    return [e.take(rows, first, axis=axis), first, inverse, counts]


def _results(count: Size) -> list[tuple[Any, str]]:
    """The first place of each, which of them every element is, how often each is there, and how many there are."""
    return [([count], "int64"), ([count], "int64"), ([count], "int64"), ([1], "int64")]


def _of_elements(e: Emit, x: Value) -> list[Value]:
    """Of a vector, by sorting it; all NaN are the same."""
    (count,), key = x.dims or (0,), keys(e, x)
    order = e.argsort(key, axis=0, dtype="int64")

    def write(data: Any, order: Any, first: Any, inverse: Any, counts: Any, total: Any, count: Any) -> None:
        total[0] = int64(0)
        with T.serial(0, count) as i:
            before = order[tirx.max(i - 1, int64(0))]
            with T.If(tirx.any(i == 0, data[order[i]] != data[before])), T.Then():
                first[total[0]] = order[i]
                counts[total[0]] = int64(0)
                total[0] = total[0] + 1
            counts[total[0] - 1] = counts[total[0] - 1] + 1
            inverse[order[i]] = total[0] - 1

    return written(e, "unique", write, [key, order], _results(count), [count])


def _of_slices(e: Emit, x: Value) -> list[Value]:
    """Of the slices of the first axis, by comparing each with each, from the first of their elements on."""
    dims = x.sizes
    count, length = dims[0], product(dims[1:])
    key = keys(e, e.reshape(x, [count, length]))

    def write(data: Any, first: Any, inverse: Any, counts: Any, total: Any, same: Any, state: Any, *sizes: Any) -> None:
        order, rank, (count, length) = 0, 1, sizes

        def compare(a: Any, b: Any) -> None:
            state[order] = int64(0)
            with T.serial(0, length) as k, T.If(state[order] == 0), T.Then():
                more = tirx.Select(data[a, k] > data[b, k], int64(1), int64(0))
                state[order] = tirx.Select(data[a, k] < data[b, k], int64(-1), more)

        total[0] = int64(0)
        with T.serial(0, count) as i:
            same[i] = i
            with T.serial(0, i) as j, T.If(same[i] == i), T.Then():
                compare(j, i)
                with T.If(state[order] == 0), T.Then():
                    same[i] = j
        with T.serial(0, count) as i, T.If(same[i] == i), T.Then():
            state[rank] = int64(0)
            with T.serial(0, count) as j, T.If(same[j] == j), T.Then():
                compare(j, i)
                with T.If(state[order] < 0), T.Then():
                    state[rank] = state[rank] + 1
            inverse[i] = state[rank]
            first[state[rank]] = i
            counts[state[rank]] = int64(0)
            total[0] = total[0] + 1
        with T.serial(0, count) as i:
            inverse[i] = inverse[same[i]]
            counts[inverse[i]] = counts[inverse[i]] + 1

    results = [*_results(count), ([count], "int64"), ([2], "int64")]
    return written(e, "unique_slices", write, [key], results, [count, length])[:4]


def _eliminated(e: Emit, node: Node, x: Value) -> tuple[Value, Value]:
    """Determinants and inverses, by elimination with the largest pivot of each column."""
    dims = x.sizes
    if len(dims) < 2:
        raise node.wrong(f"reads a tensor of {len(dims)} axes; expected 2 or more")
    outer, size = list(dims[:-2]), dims[-1]
    x = e.agree(x, [*outer, size, size])
    batch, wide = product(outer), "float64"
    flat = e.cast(e.reshape(x, [batch, size, size]), wide)

    def write(data: Any, det: Any, inverse: Any, work: Any, state: Any, batch: Any, rows: Any) -> None:
        """``work``: the matrix, and beside it what the same steps make of the identity; the last row is spare."""
        with T.serial(0, batch) as b:
            det[b] = tirx.const(1, wide)
            with T.serial(0, rows) as i, T.serial(0, rows) as j:
                work[i, j] = data[b, i, j]
                work[i, rows + j] = tirx.Select(i == j, tirx.const(1, wide), tirx.const(0, wide))
            with T.serial(0, rows) as k:
                state[0] = k
                with (
                    T.serial(0, rows - k - 1) as i,
                    T.If(tirx.abs(work[k + 1 + i, k]) > tirx.abs(work[state[0], k])),
                    T.Then(),
                ):
                    state[0] = k + 1 + i
                with T.If(state[0] != k), T.Then():
                    det[b] = -det[b]
                    with T.serial(0, 2 * rows) as j:
                        work[rows, j] = work[k, j]
                        work[k, j] = work[state[0], j]
                        work[state[0], j] = work[rows, j]
                det[b] = det[b] * work[k, k]
                with T.serial(0, rows) as i, T.If(tirx.all(i != k, work[k, k] != 0)), T.Then():
                    work[rows, 0] = work[i, k] / work[k, k]
                    with T.serial(0, 2 * rows) as j:
                        work[i, j] = work[i, j] - work[rows, 0] * work[k, j]
            with T.serial(0, rows) as i, T.serial(0, rows) as j:
                inverse[b, i, j] = work[i, rows + j] / work[i, i]

    memory: list[tuple[list[Size], str]] = [([size + 1, 2 * size], wide), ([1], "int64")]
    results: list[tuple[list[Size], str]] = [([batch], wide), ([batch, size, size], wide), *memory]
    det, inverse, *_ = written(e, "eliminated", write, [flat], results, [batch, size])
    return e.cast(e.reshape(det, outer), x.dtype), e.cast(e.reshape(inverse, dims), x.dtype)


operator("Det", since=11)(lambda e, node, x: _eliminated(e, node, x)[0])
operator("Inverse", domain="com.microsoft")(lambda e, node, x: _eliminated(e, node, x)[1])


def _axes(node: Node) -> list[int] | None:
    given, rank = node.ints(1, "its axes"), node.needed(0).rank
    if not given:
        return None
    return list(given) if rank is None else axes_of(given, rank, node)


def _is_float(x: Value) -> bool:
    return not x.dtype.startswith(("int", "uint", "bool"))


def _mean(e: Emit, x: Value, axes: list[int] | None, keep: bool) -> Value:
    if _is_float(x):
        return e.mean(x, axis=axes, keepdims=keep)
    total = e.sum(e.cast(x, "int64"), axis=axes, keepdims=keep)  # cut towards zero
    count = product(d for axis, d in enumerate(x.sizes) if axes is None or axis in axes)
    return e.cast(total / whole(count), x.dtype)


def _by_float(function: Callable[..., Value]) -> Callable[..., Value]:
    """Of integers, the result of a function of real numbers, cut."""

    def compute(e: Emit, x: Value, axes: list[int] | None, keep: bool) -> Value:
        if _is_float(x):
            return function(e, x, axes, keep)
        return e.cast(function(e, e.cast(x, "float64"), axes, keep), x.dtype)

    return compute


def _sum(e: Emit, x: Value, axes: list[int] | None, keep: bool) -> Value:
    return e.sum(x, axis=axes, keepdims=keep)


def _log_sum_exp(e: Emit, x: Value, axes: list[int] | None, keep: bool) -> Value:
    largest = e.max(x, axis=axes, keepdims=True)
    largest = e.where(abs(largest) < math.inf, largest, 0)  # ∞ − ∞ is no number
    found = e.log(e.sum(e.exp(x - largest), axis=axes, keepdims=True)) + largest
    return found if keep else e.squeeze(found, axis=axes)


def _extreme(call: Any) -> Callable[..., Value]:
    def compute(e: Emit, x: Value, axes: list[int] | None, keep: bool) -> Value:
        if x.dtype == "bool":
            return e.call(call, e.cast(x, "int32"), axis=axes, keepdims=keep) > 0  # the largest of nothing is below 0
        return e.call(call, x, axis=axes, keepdims=keep)

    return compute


_Reduce = Callable[[Emit, Value, "list[int] | None", bool], Value]
#: operator → the reduction, and the result of no elements
_REDUCTIONS: dict[str, tuple[_Reduce, Callable[[np.dtype], Any]]] = {
    "ReduceL1": (lambda e, x, axes, keep: _sum(e, abs(x), axes, keep), lambda _: 0),
    "ReduceL2": (_by_float(lambda e, x, *how: e.sqrt(_sum(e, x * x, *how))), lambda _: 0),
    "ReduceLogSum": (_by_float(lambda e, x, *how: e.log(_sum(e, x, *how))), lambda _: -math.inf),
    "ReduceLogSumExp": (_by_float(_log_sum_exp), lambda _: -math.inf),
    "ReduceMax": (_extreme(relax.op.max), lambda t: _least(t, False)),
    "ReduceMean": (_mean, lambda _: math.nan),
    "ReduceMin": (_extreme(relax.op.min), lambda t: _least(t, True)),
    "ReduceProd": (lambda e, x, axes, keep: e.prod(x, axis=axes, keepdims=keep), lambda _: 1),
    "ReduceSum": (_sum, lambda _: 0),
    "ReduceSumSquare": (lambda e, x, axes, keep: _sum(e, x * x, axes, keep), lambda _: 0),
}


def _least(dtype: np.dtype, is_highest: bool) -> Any:
    """The extreme of nothing: the number of a dtype that is beyond no other."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if is_highest else np.iinfo(dtype).min
    return is_highest if dtype.kind == "b" else math.inf if is_highest else -math.inf


@operator(*_REDUCTIONS)
def _reduce(e: Emit, node: Node, x: Value, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
    reduction, of_nothing = _REDUCTIONS[node.op]
    keep, given = bool(keepdims), node.input(1)
    if given is not None and (given.dims == (0,) or (given.known is None and x.rank == 0)):
        given = node.inputs[1] = None
    if given is not None and given.known is None:
        return _by_rows(e, node, x, given, lambda rows: reduction(e, rows, [1], False))
    if noop_with_empty_axes and given is None:  # each element is a set of its own
        return reduction(e, e.expand_dims(x, axis=[-1]), [len(x.sizes)], False)
    axes = _axes(node)
    if x.dims is not None:
        sizes = [1 if axes is None or a in axes else d for a, d in enumerate(x.sizes)]
        is_empty = any(d == 0 for a, d in enumerate(x.sizes) if axes is None or a in axes)
        kept = [s for a, s in enumerate(sizes) if keep or not (axes is None or a in axes)]
        if is_empty and node.op == "ReduceMean" and not _is_float(x) and 0 not in kept:
            raise node.wrong(f"has the mean of no integers, of a tensor of {x}; expected sizes of 1 or more")
        if is_empty:
            with np.errstate(invalid="ignore"):  # -∞ as an integer is the least one
                one = np.asarray(of_nothing(np.dtype(x.dtype))).astype(np.dtype(x.dtype))
            known = [s for s in kept if isinstance(s, int)]
            return e.const(np.full(known, one)) if len(known) == len(kept) else e.expand(e.const(one), kept)
    return reduction(e, x, axes, keep)


def _by_rows(e: Emit, node: Node, x: Value, given: Value, reduced: Callable[[Value], Value]) -> Value:
    """A reduction along axes that only a call knows: of rows, in which the elements of these axes are the last."""
    dims, rank, total = x.sizes, len(x.sizes), product(x.sizes)
    lengths, one, is_all = listed(*dims), e.const(1), None
    if isinstance(given.sizes[0], Dim) and not node.attr("noop_with_empty_axes", 0):
        is_all = e.equal(listed(*given.sizes), 0)
    is_reduced, order = axes_in_call(e, given, rank, is_all)
    sizes, steps = (
        e.take(v, order, axis=0) for v in (lengths, listed(*(product(dims[axis + 1 :]) for axis in range(rank))))
    )
    moved = computed(e, "rows", _moved, e.reshape(x, [total]), sizes, steps, total)
    kept, gone = (e.where(is_reduced, *pair) for pair in ((one, lengths), (lengths, one)))
    counts = e.concat([e.prod(side, axis=[0], keepdims=True) for side in (kept, gone)], 0)
    rows = reduced(e.reshape(moved, asked(e, counts, ["rows", "elements"])))
    if not node.attr("keepdims", 1):
        kept = e.cut(sizes, 0, 0, rank - length_of(node, 1, "its axes"))
    return shaped_in_call(e, rows, kept)


def _moved(x: te.Tensor, sizes: te.Tensor, steps: te.Tensor, total: Any) -> te.Tensor:
    def element(at: Any) -> Any:
        place = int64(0)
        for axis in reversed(range(int(sizes.shape[0]))):
            place, at = place + tirx.floormod(at, sizes(axis)) * steps(axis), tirx.floordiv(at, sizes(axis))
        return x(place)

    return te.compute((total,), element, name="rows")
