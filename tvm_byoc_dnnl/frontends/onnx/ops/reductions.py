"""Reductions: axes as an attribute or as an input, sets without elements, infinities and integers as ONNX has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ..dim import Dim, product
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, listed, whole
from .computed import asked, computed, int64
from .moving import from_start
from .shapes import axes_of, length_of


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
    number, lengths, one = e.const(np.arange(rank)), listed(*dims), e.const(1)
    places = from_start(e, e.expand_dims(e.cast(given, "int64"), axis=[0]), [rank])
    is_reduced = e.sum(e.cast(e.equal(e.expand_dims(number, axis=[1]), places), "int64"), axis=[1]) > 0
    if isinstance(given.sizes[0], Dim) and not node.attr("noop_with_empty_axes", 0):
        is_reduced = is_reduced | e.equal(listed(*given.sizes), 0)
    order = e.argsort(e.cast(is_reduced, "int64") * e.const(rank) + number, dtype="int64")
    sizes, steps = (
        e.take(v, order, axis=0) for v in (lengths, listed(*(product(dims[axis + 1 :]) for axis in range(rank))))
    )
    moved = computed(e, "rows", _moved, e.reshape(x, [total]), sizes, steps, total)
    kept, gone = (e.where(is_reduced, *pair) for pair in ((one, lengths), (lengths, one)))
    counts = e.concat([e.prod(side, axis=[0], keepdims=True) for side in (kept, gone)], 0)
    rows = reduced(e.reshape(moved, asked(e, counts, ["rows", "elements"])))
    if not node.attr("keepdims", 1):
        rank -= length_of(node, 1, "its axes")
        kept = e.cut(sizes, 0, 0, rank)
    return e.reshape(rows, asked(e, kept, [f"kept{axis}" for axis in range(rank)]))


def _moved(x: te.Tensor, sizes: te.Tensor, steps: te.Tensor, total: Any) -> te.Tensor:
    def element(at: Any) -> Any:
        place = int64(0)
        for axis in reversed(range(int(sizes.shape[0]))):
            place, at = place + tirx.floormod(at, sizes(axis)) * steps(axis), tirx.floordiv(at, sizes(axis))
        return x(place)

    return te.compute((total,), element, name="rows")
