"""Windows that move along the spatial axes, and pooling.

It is by Relax's operators where they count windows and padding as ONNX does, else by a function of our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, te, tirx

from ..dim import Dim, Size, at_least, equal, max_of, min_of, product
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, listed
from .computed import all_computed, computed, lowest, wide_dtype

_RANKS = (1, 2, 3)  # of Relax's pools


def _windows(node: Node, data: Value) -> Windows:
    kernel = node.attr("kernel_shape")
    if kernel is None:
        raise node.wrong("has no attribute kernel_shape")
    return Windows.of(node, data, kernel)


def _by_relax(e: Emit, kind: str, data: Value, windows: Windows, counts_pads: bool = True) -> Value | None:
    """A pooling by Relax's operator; ``None`` where it would count other windows, or pads that ONNX does not count."""
    if len(windows.kernel) not in _RANKS:
        return None
    if not windows.is_fixed:
        if not all(equal(b, 0) for b in windows.before) or (kind == "avg" and counts_pads):
            return None
        cut = replace(windows, before=[0] * len(windows.kernel), after=[0] * len(windows.kernel), rounds_up=True)
        if not all(a == b or equal(a, b) for a, b in zip(windows.counts, cut.counts, strict=True)):
            return None
        windows = cut
    if windows.rounds_up:
        declared, exact = windows, windows.exact()
        if kind == "avg" and counts_pads and not all(map(at_least, declared.after, exact.after)):
            return None  # the last windows have places that are no padding
        if exact.is_fixed:
            windows = exact
        elif not windows.never_starts_outside:
            return None
    pool = getattr(relax.op.nn, f"{kind}_pool{len(windows.kernel)}d")
    how = (windows.kernel, windows.strides, windows.pads, windows.dilations, windows.rounds_up, counts_pads)
    return e.call(lambda x: pool(x, *how), data)


@operator("MaxPool")
def _max_pool(e: Emit, node: Node, data: Value, *, storage_order: int = 0) -> Any:
    windows = _windows(node, data)
    if not any(node.wanted[1:]) and (made := _by_relax(e, "max", data, windows)) is not None:
        return made
    largest = _largest(windows, data.dtype, bool(storage_order))
    return all_computed(e, "max_pool", largest, data, windows.before, windows.counts)


def _taps(windows: Windows, axes: Any, index: Any, before: Any) -> list[Any]:
    """Positions in the data that a window reads."""
    every = zip(index, windows.strides, axes, windows.dilations, before, strict=True)
    return [i * s + tap * d - b for i, s, tap, d, b in every]


def are_inside(places: list[Any], sizes: Any) -> Any:
    return tirx.all(*(test for p, n in zip(places, sizes, strict=True) for test in (p >= 0, p < n)))


def _axes(windows: Windows) -> list[Any]:
    return [te.reduce_axis((0, k), f"tap{i}") for i, k in enumerate(windows.kernel)]


def _largest(windows: Windows, dtype: str, by_columns: bool) -> Callable[..., Any]:
    """The largest element of every window, the first of equal ones, and its place in the whole tensor."""

    def larger(a: Any, b: Any) -> Any:
        first = tirx.any(a[0] > b[0], tirx.all(a[0] == b[0], a[1] < b[1]))
        return tirx.Select(first, a[0], b[0]), tirx.Select(first, a[1], b[1])

    def least(value: Any, place: Any) -> Any:
        return tirx.const(lowest(value), value), tirx.const(2**62, place)

    def compute(x: Any, before: Any, counts: Any) -> Any:
        sizes, axes = x.shape[2:], _axes(windows)
        order = range(len(sizes))[::-1] if by_columns else range(len(sizes))
        reduced = te.comm_reducer(larger, least, name="largest")

        def element(n: Any, c: Any, *index: Any) -> Any:
            places = _taps(windows, axes, index, before)
            inside = are_inside(places, sizes)
            flat: Any = n * x.shape[1] + c
            for axis in order:
                flat = flat * sizes[axis] + places[axis]
            value = tirx.if_then_else(inside, x(n, c, *places), tirx.const(lowest(dtype), dtype))
            return reduced((value, tirx.Select(inside, flat, tirx.const(2**62, "int64"))), axis=axes)

        return te.compute((*x.shape[:2], *counts), element, name="max_pool")

    return compute


@operator("AveragePool")
def averaged(e: Emit, node: Node, data: Value) -> Value:
    windows = _windows(node, data)
    counts_pads = bool(node.attr("count_include_pad", 0))
    if counts_pads and node.domain and windows.rounds_up:  # ONNX Runtime counts what is behind the pads, too
        return _summed(e, "avg_pool", data, windows) / float(math.prod(windows.kernel))
    made = _by_relax(e, "avg", data, windows, counts_pads)
    return made or _summed(e, "avg_pool", data, windows, "padded" if counts_pads else "inside")


def _summed(e: Emit, name: str, data: Value, windows: Windows, divided: str = "") -> Value:
    """The sum of every window, divided by its elements ``inside`` of the data, or of the data that is ``padded``."""

    def compute(x: Any, before: Any, after: Any, counts: Any) -> Any:
        sizes, axes, wide = x.shape[2:], _axes(windows), wide_dtype(data.dtype)

        def total(n: Any, c: Any, *index: Any) -> Any:
            places = _taps(windows, axes, index, before)
            value = tirx.if_then_else(are_inside(places, sizes), x(n, c, *places).astype(wide), tirx.const(0.0, wide))
            return te.sum(value, axis=axes)

        def count(*index: Any) -> Any:
            own = _axes(windows)
            places, ends = _taps(windows, own, index, before), list(sizes)
            if divided == "padded":
                places = [p + b for p, b in zip(places, before, strict=True)]
                ends = [n + b + a for n, b, a in zip(sizes, before, after, strict=True)]
            one, none = tirx.const(1.0, wide), tirx.const(0.0, wide)
            return te.sum(tirx.Select(are_inside(places, ends), one, none), axis=own)

        sums = te.compute((*x.shape[:2], *counts), total, name="sums")
        if not divided:
            return te.compute(sums.shape, lambda *i: sums(*i).astype(data.dtype), name=name)
        parts = te.compute(tuple(counts), count, name="counts")
        return te.compute(sums.shape, lambda *i: (sums(*i) / parts(*i[2:])).astype(data.dtype), name=name)

    return computed(e, name, compute, data, windows.before, windows.after, windows.counts)


def _powers(e: Emit, data: Value, p: float) -> Value:
    return abs(data) if p == 1 else data * data if p == 2 else e.power(abs(data), float(p))


def _root(e: Emit, total: Value, p: float) -> Value:
    return total if p == 1 else e.sqrt(total) if p == 2 else e.power(total, 1.0 / p)


@operator("LpPool")
def _lp_pool(e: Emit, node: Node, data: Value, *, p: int = 2) -> Any:
    windows, powers = _windows(node, data), _powers(e, data, p)
    made = _by_relax(e, "avg", powers, windows)
    total = _summed(e, "lp_pool", powers, windows) if made is None else made * float(math.prod(windows.kernel))
    return _root(e, total, p)


def _spatial(data: Value) -> list[int]:
    return list(range(2, len(data.sizes)))


operator("GlobalAveragePool")(lambda e, x: e.mean(x, axis=_spatial(x), keepdims=True))
operator("GlobalMaxPool")(lambda e, x: e.max(x, axis=_spatial(x), keepdims=True))


@operator("GlobalLpPool")
def _global_lp(e: Emit, x: Value, *, p: int = 2) -> Any:
    return _root(e, e.sum(_powers(e, x, p), axis=_spatial(x), keepdims=True), p)


@operator("MaxUnpool", since=9)
def _max_unpool(e: Emit, node: Node, data: Value, places: Value, *, kernel_shape: Any = None) -> Any:
    """Every element at its place in the tensor that was pooled; a larger ``output_shape`` adds zeros behind that."""
    kernel = list(kernel_shape or ())
    rank = len(kernel)
    strides, pads = (list(node.attr(a) or [d] * n) for a, d, n in (("strides", 1, rank), ("pads", 0, 2 * rank)))
    every = zip(data.sizes[2:], kernel, strides, pads, pads[rank:], strict=False)
    pooled = [*data.sizes[:2], *((n - 1) * s + k - b - a for n, k, s, b, a in every)]
    wanted = node.ints(2, "output_shape") or pooled
    zeros = e.full(e.shape([product(pooled)]), e.const(0, data.dtype), dtype=data.dtype)
    flat = [e.reshape(v, [product(v.sizes)]) for v in (places, data)]
    made = e.reshape(e.scatter_elements(zeros, *flat, axis=0), pooled)
    if all(a == b or equal(a, b) for a, b in zip(pooled, wanted, strict=True)):
        return made
    behind = [w - p for w, p in zip(wanted, pooled, strict=True)]
    return e.onnx("Pad", made, listed(*[0] * len(pooled), *behind), opset=18)


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution or a pooling; all lists are of the spatial axes."""

    sizes: list[Size]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[Size]
    after: list[Size]
    rounds_up: bool = False  # a window for a rest

    @classmethod
    def of(cls, node: Node, data: Value, kernel: Sequence[Any]) -> Windows:
        rank = len(data.sizes) - 2
        if len(kernel) != rank:
            raise node.wrong(f"has windows of {list(kernel)} for {rank} spatial axes")
        sizes = list(data.sizes[2:])
        strides = list(node.attr("strides") or [1] * rank)
        dilations = list(node.attr("dilations") or [1] * rank)
        pads: list[Any] = list(node.attr("pads") or [0] * 2 * rank)
        kind = node.attr("auto_pad", "NOTSET")
        if kind in ("SAME_UPPER", "SAME_LOWER"):
            reaches = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
            total = [_same(*each) for each in zip(sizes, reaches, strides, strict=True)]
            pads = halves(total, kind == "SAME_UPPER", reaches)
        elif kind == "VALID":
            pads = [0] * 2 * rank
        elif kind != "NOTSET":
            raise node.wrong(f"has auto_pad {kind}; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
        rounds_up = bool(node.attr("ceil_mode", 0)) and kind == "NOTSET"
        return cls(sizes, list(kernel), strides, dilations, pads[:rank], pads[rank:], rounds_up)

    @property
    def spans(self) -> list[int]:
        """How far a window reaches."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def counts(self) -> list[Size]:
        """The number of windows along each axis; none begins behind the data and the pads in front of it."""
        found = []
        for n, k, s, b, a in zip(self.sizes, self.spans, self.strides, self.before, self.after, strict=True):
            count = (n + b + a - k) // s + 1
            if self.rounds_up:
                count = min_of((n + b + a - k + s - 1) // s + 1, (n + b - 1) // s + 1)
            found.append(count)
        return found

    @property
    def is_fixed(self) -> bool:
        return not any(isinstance(p, Dim) for p in (*self.before, *self.after))

    @property
    def pads(self) -> list[Size]:
        return [*self.before, *self.after]

    @property
    def never_starts_outside(self) -> bool:
        """Whether rounding up makes no window that begins behind the data, whatever the sizes are."""
        return all(at_least(k, a + s) for k, s, a in zip(self.spans, self.strides, self.after, strict=True))

    def exact(self) -> Windows:
        """The same windows without rounding up: what the last ones reach behind the data is padding."""
        every = zip(self.counts, self.strides, self.spans, self.sizes, self.before, strict=True)
        return replace(self, after=[max_of(0, (c - 1) * s + k - n - b) for c, s, k, n, b in every], rounds_up=False)


def _same(size: Size, reach: int, stride: int) -> Size:
    """What SAME adds to an axis for windows that reach so far behind their first element."""
    added = reach - (size - 1) % stride
    return 0 if equal(reach, 0) else added if at_least(reach, stride - 1) else max_of(added, 0)


def halves(total: Sequence[Size], upper: bool, most: Sequence[Size]) -> list[Any]:
    """Pads as before... after...; for SAME_UPPER the odd one is added behind. No total is above its ``most``."""
    small = [0 if at_least(1, m) else t // 2 for t, m in zip(total, most, strict=True)]
    large = [t - s for t, s in zip(total, small, strict=True)]
    return small + large if upper else large + small
