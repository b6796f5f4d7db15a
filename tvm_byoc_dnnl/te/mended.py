"""Computes of operators in which TVM takes a NaN for a number: here, as in ONNX, it stays, and is equal to nothing.

In host code, a cast to bfloat16 rounds the number before: TVM leaves the cast out where the kernel goes on in float32.
Where TVM makes places of such numbers, or of infinite ones, it reads memory of others: `grid_sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from operator import mul
from typing import Any

import numpy as np
from tvm import te, tirx, topi

from ..ir.tvm_compat import analyzer, dtype_of


def relu(attrs: Any, data: te.Tensor) -> te.Tensor:
    if "float" not in dtype_of(data):
        return topi.nn.relu(data)
    zero = tirx.const(0, dtype_of(data))
    return te.compute(data.shape, lambda *at: tirx.Select(data[at] < zero, zero, data[at]), tag=topi.tag.ELEMWISE)


def cast(attrs: Any, x: te.Tensor) -> te.Tensor:
    if attrs.dtype != "bfloat16" or dtype_of(x) == "bfloat16":
        return topi.cast(x, attrs.dtype)

    def one(*at: Any) -> Any:
        number = tirx.Cast("float32", x[at])
        bits = tirx.reinterpret("uint32", number)
        half = tirx.const(0x7FFF, "uint32") + ((bits >> 16) & 1)
        rounded = tirx.reinterpret("float32", (bits + half) & tirx.const(0xFFFF0000, "uint32"))
        return tirx.Cast("bfloat16", tirx.Select(tirx.isnan(number), tirx.const(np.nan, "float32"), rounded))

    return te.compute(x.shape, one, name="cast", tag=topi.tag.ELEMWISE)


def _in_range(bound: Any, dtype: str) -> Any:
    """A bound that is a number, or the nearest that an integer of this dtype can be."""
    value = getattr(bound, "value", None)
    if value is None or dtype == "bool":
        return bound
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return bound if low <= value <= high else tirx.const(low if value < low else high, dtype)


def clip(attrs: Any, data: te.Tensor, least: Any, most: Any) -> te.Tensor:
    if "float" not in dtype_of(data):
        return topi.clip(data, *(_in_range(bound, dtype_of(data)) for bound in (least, most)))
    low, high = (tirx.Cast(dtype_of(data), bound) for bound in (least, most))

    def one(*at: Any) -> Any:
        lowered = tirx.Select(data[at] > high, high, data[at])
        return tirx.Select(lowered < low, low, lowered)

    return te.compute(data.shape, one, tag=topi.tag.ELEMWISE)


def is_nan(tensor: te.Tensor, at: Sequence[Any]) -> Any:
    """TVM cannot ask it of bfloat16."""
    return tirx.isnan(tirx.Cast("float32", tensor[at]) if dtype_of(tensor) == "bfloat16" else tensor[at])


def of_two(binary: Callable[[Any, Any], Any], scalar: Callable[[Any, Any], Any]) -> Callable[..., te.Tensor]:
    def compute(attrs: Any, first: te.Tensor, second: te.Tensor) -> te.Tensor:
        usual = binary(first, second)
        if "float" not in dtype_of(usual):
            return usual

        def one(*at: Any) -> Any:
            here, there = (broadcast_index(operand, at) for operand in (first, second))
            x, y = first[here], second[there]
            return tirx.Select(is_nan(first, here), x, scalar(x, y))

        return te.compute(usual.shape, one, tag=topi.tag.BROADCAST)

    return compute


def broadcast_index(operand: te.Tensor, at: Sequence[Any]) -> tuple[Any, ...]:
    own = at[len(at) - len(operand.shape) :]
    return tuple(
        0 if isinstance(size, tirx.IntImm) and size == 1 else i for size, i in zip(operand.shape, own, strict=True)
    )


def _extreme(is_max: bool, dtype: str) -> tuple[Callable[..., Any], Any]:
    """A reducer that keeps a NaN, and what it starts at: an infinity, where TVM's starts at a finite number."""
    is_float = "float" in dtype
    start: Any = np.inf if is_float else np.iinfo(dtype).max
    if is_max:
        start = -np.inf if is_float else np.iinfo(dtype).min

    def one(a: Any, b: Any) -> Any:
        is_first = a > b if is_max else a < b
        if is_float:
            is_first = tirx.any(is_first, tirx.isnan(tirx.Cast("float32", a) if dtype == "bfloat16" else a))
        return tirx.Select(is_first, a, b)

    first = tirx.const(start.item() if hasattr(start, "item") else start, dtype)
    return te.comm_reducer(one, lambda _: first, name="extreme"), first


def extreme(reduced: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    def compute(attrs: Any, data: te.Tensor) -> te.Tensor:
        axes = None if attrs.axis is None else [int(axis) for axis in attrs.axis]
        if dtype_of(data) == "bool":
            return reduced(data, axes, bool(attrs.keepdims))
        rank, (largest, _) = len(data.shape), _extreme(reduced is topi.max, dtype_of(data))
        gone = set(range(rank)) if axes is None else {axis % rank for axis in axes}
        over = {axis: te.reduce_axis((0, data.shape[axis]), f"r{axis}") for axis in sorted(gone)}
        kept = [axis for axis in range(rank) if attrs.keepdims or axis not in gone]

        def element(*at: Any) -> Any:
            places = dict(zip(kept, at, strict=True)) | over
            return largest(data[tuple(places[axis] for axis in range(rank))], axis=list(over.values()))

        shape = tuple(1 if axis in gone else data.shape[axis] for axis in kept)
        return te.compute(shape, element, name="extreme")

    return compute


def max_pool(attrs: Any, data: te.Tensor) -> te.Tensor:
    """Windows over the axes of a layout whose letters are D, H and W."""
    layout = [letter for letter in str(attrs.layout) if not letter.isdigit()]
    spatial = [layout.index(letter) for letter in "DHW" if letter in layout]
    before, after = [0] * len(layout), [0] * len(layout)
    windows = {}
    for i, axis in enumerate(spatial):
        before[axis], after[axis] = int(attrs.padding[i]), int(attrs.padding[i + len(spatial)])
        size, stride, step = (int(each[i]) for each in (attrs.pool_size, attrs.strides, attrs.dilation))
        after[axis] += stride - 1 if attrs.ceil_mode else 0
        windows[axis] = te.reduce_axis((0, size), f"tap{i}"), stride, step
    largest, least = _extreme(True, dtype_of(data))
    padded = topi.nn.pad(data, before, after, least) if any([*before, *after]) else data
    shape = list(data.shape)
    for axis, (tap, stride, step) in windows.items():
        count = (padded.shape[axis] - (tap.dom.extent - 1) * step - 1) // stride + 1
        if attrs.ceil_mode:  # a window that begins behind the data does not count, as Relax has it
            behind = (count - 1) * stride >= data.shape[axis] + before[axis]
            count = analyzer().simplify(tirx.if_then_else(behind, count - 1, count))
        shape[axis] = count

    def element(*at: Any) -> Any:
        places = list(at)
        for axis, (tap, stride, step) in windows.items():
            places[axis] = at[axis] * stride + tap * step
        return largest(padded[tuple(places)], axis=[tap for tap, _, _ in windows.values()])

    return te.compute(shape, element, name="max_pool")


def not_equal(attrs: Any, first: te.Tensor, second: te.Tensor) -> te.Tensor:
    usual = topi.not_equal(first, second)
    if "float" not in dtype_of(first):
        return usual

    def one(*at: Any) -> Any:
        nans = [is_nan(operand, broadcast_index(operand, at)) for operand in (first, second)]
        return tirx.any(usual[at], *nans)

    return te.compute(usual.shape, one, tag=topi.tag.BROADCAST)


def weight(distance: Any, cubic: float | None) -> Any:
    """The part of an element at this distance from a point: linear, or by Keys' cubic kernel of this coefficient."""
    dtype = dtype_of(distance.ty)
    zero, one, two, three, four, five, eight = (tirx.const(float(n), dtype) for n in (0, 1, 2, 3, 4, 5, 8))
    x = tirx.abs(distance)
    if cubic is None:
        return tirx.Select(x < one, one - x, zero)
    a = tirx.const(cubic, dtype)
    near = ((a + two) * x - (a + three)) * x * x + one
    far = ((x - five) * x + eight) * x * a - four * a
    return tirx.Select(x <= one, near, tirx.Select(x < two, far, zero))


def grid_sample(attrs: Any, data: te.Tensor, grid: te.Tensor) -> te.Tensor:
    """Of each axis first the elements that each point reads, -1 for none, and their weights."""
    method, dtype, layout = str(attrs.method), dtype_of(data), str(attrs.layout)
    usual = "NC" + "".join(axis for axis in "DHW" if axis in layout)
    if layout != usual:
        data = topi.transpose(data, [layout.index(axis) for axis in usual])
    spatial, count = data.shape[2:], {"nearest": 1, "bicubic": 4}.get(method, 2)
    zero, one, half = (tirx.const(value, dtype) for value in (0.0, 1.0, 0.5))
    points = (grid.shape[0], *grid.shape[2:])

    def bounded(x: Any, last: Any) -> Any:
        if attrs.padding_mode == "reflection":
            start, twice = (zero, last * 2.0) if attrs.align_corners else (-half, (last + one) * 2.0)
            twice = tirx.max(twice, one)  # the only element is 0
            x = start + tirx.abs(x - start - tirx.nearbyint((x - start) / twice) * twice)
        return x if attrs.padding_mode == "zeros" else tirx.max(tirx.min(x, last), zero)

    def along(axis: int) -> tuple[te.Tensor, te.Tensor]:
        last = tirx.Cast(dtype, spatial[axis]) - one

        def place(n: Any, *at: Any) -> Any:
            x = tirx.Cast(dtype, grid(n, len(spatial) - 1 - axis, *at)) + one
            x = x * last * half if attrs.align_corners else x * (last + one) * half - half
            return x if method == "bicubic" else bounded(x, last)

        def offset(k: Any) -> Any:
            return tirx.Cast(dtype, k - (count - 1) // 2)

        def read(*at: Any) -> Any:
            x = firsts(*at[:-1]) + offset(at[-1])
            return bounded(x, last) if method == "bicubic" else x

        def element(*at: Any) -> Any:  # an infinite one, or none, is outside
            is_inside = tirx.all(reads(*at) >= zero, reads(*at) <= last)
            return tirx.Cast("int64", tirx.Select(is_inside, reads(*at), -one))

        def part(*at: Any) -> Any:
            distance = offset(at[-1]) - (places(*at[:-1]) - firsts(*at[:-1]))
            own = one if method == "nearest" else weight(distance, -0.75 if method == "bicubic" else None)
            return tirx.Select(elements(*at) >= 0, own, zero)

        whole = tirx.nearbyint if method == "nearest" else tirx.floor
        places = te.compute(points, place, name="places")
        firsts = te.compute(points, lambda *at: whole(places(*at)), name="firsts")
        reads = te.compute((*points, count), read, name="reads")
        elements = te.compute(reads.shape, element, name="elements")
        return elements, te.compute(reads.shape, part, name="weights")

    axes = [along(axis) for axis in range(len(spatial))]

    def sampled(n: Any, c: Any, *at: Any) -> Any:
        total = zero
        for taps in product(range(count), repeat=len(axes)):
            elements = [elements(n, *at, k) for (elements, _), k in zip(axes, taps, strict=True)]
            value = tirx.if_then_else(tirx.all(*(i >= 0 for i in elements)), data(n, c, *elements), zero)
            total = total + reduce(mul, [weights(n, *at, k) for (_, weights), k in zip(axes, taps, strict=True)], value)
        return total

    made = te.compute((*data.shape[:2], *grid.shape[2:]), sampled, name="grid_sample")
    return made if layout == usual else topi.transpose(made, [usual.index(axis) for axis in layout])
