"""Every spelling of Resize and Upsample: Relax's operators, or a function of our own.

TVM takes the ratio of the sizes for the scale. That is another one where the scaled size is not whole: 4 by 0.6 is 2,
and ONNX keeps on stepping by 1/0.6. It also has no antialiasing and not every transformation of coordinates, and
resizes no other axes than the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ....ir.tvm_compat import dtype_of
from ....te.mended import weight
from ..dim import Dim, Size, equal, expr_of, size_of
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, listed
from .computed import asked, computed, wide_dtype, within

_POLICIES = {"not_larger": min, "not_smaller": max}


@operator("Upsample")
def _upsample(e: Emit, node: Node) -> Any:
    """Scales are attributes of height and width in opset 1."""
    data, scales, sides = node.needed(0), node.input(1), [node.attr(f"{side}_scale") for side in ("height", "width")]
    if scales is None and None not in sides:
        scales = e.const(np.array([1.0, 1.0, *sides], "float32"))
    how = Way(node.attr("mode", "nearest").replace("bilinear", "linear"), "asymmetric", "floor")
    return _resized(e, node, data, how, None, scales or node.needed(1), None)


@operator("Resize", since=10)
def _resize(e: Emit, node: Node, data: Value) -> Any:
    way = Way.of(node)
    if node.opset < 11:
        return _resized(e, node, data, way, None, node.needed(1), None)
    roi, scales, sizes = (None if v is None or v.dims == (0,) else v for v in map(node.input, (1, 2, 3)))
    if (scales is None) == (sizes is None):
        raise node.wrong("has both scales and sizes, or none of them; expected one")
    return _resized(e, node, data, way, roi, scales, sizes)


def _resized(
    e: Emit, node: Node, data: Value, way: Way, roi: Value | None, scales: Value | None, sizes: Value | None
) -> Value:
    dims = data.sizes
    named = [int(a) % len(dims) for a in node.attr("axes") or range(len(dims))]
    policy, roi = node.attr("keep_aspect_ratio_policy", "stretch"), roi if way.crops else None
    outs, factors, asked_scales = _sizes(e, node, [dims[a] for a in named], scales, sizes)
    if policy in _POLICIES and sizes is not None:
        outs, factors, asked_scales = _of_one_scale(e, policy, [dims[a] for a in named], outs)
    asked_region = roi if roi is not None and roi.known is None else None
    # places in it, if only a call knows it
    region = range(2 * len(named)) if asked_region is not None else None if roi is None else roi.known
    axes = axes_of(way, named, dims, outs, factors, region)
    if asked_scales is not None or asked_region is not None:
        return resized(e, data, axes, way, asked_scales, asked_region)
    return _known(e, data, dims, axes, way) if axes else data


def _sizes(
    e: Emit, node: Node, lengths: Sequence[Size], scales: Value | None, sizes: Value | None
) -> tuple[list[Size], list[Any], Value | None]:
    """The new sizes, the scale of each axis or ``None`` for the ratio, and the scales that only a call knows."""
    names = [f"size{i}" for i in range(len(lengths))]
    if sizes is not None:
        outs: list[Any] = asked(e, sizes, names) if sizes.known is None else sizes.known.reshape(-1).tolist()
        if len(outs) != len(lengths):
            raise node.wrong(f"has {len(outs)} sizes for {len(lengths)} axes")
        return outs, [None] * len(outs), None
    assert scales is not None
    if scales.known is None:
        own = e.cast(listed(*lengths), "float32")
        asked_for = asked(e, e.floor(own * scales), names)
        return asked_for, list(range(len(names))), scales
    factors = scales.known.reshape(-1).astype("float32")
    if len(factors) != len(lengths):
        raise node.wrong(f"has {len(factors)} scales for {len(lengths)} axes")
    return [scaled(n, f) for n, f in zip(lengths, factors, strict=True)], [float(f) for f in factors], None


def _of_one_scale(
    e: Emit, policy: str, lengths: Sequence[Size], outs: Sequence[Size]
) -> tuple[list[Size], list[Any], Value | None]:
    """Sizes that keep the ratio of the lengths."""
    if any(isinstance(n, Dim) for n in (*lengths, *outs)):
        own = e.cast(listed(*lengths), "float64")
        ratios = e.cast(listed(*outs), "float64") / e.maximum(own, 1.0)
        factor = getattr(e, _POLICIES[policy].__name__)(ratios, axis=[0], keepdims=True)
        new = asked(e, e.floor(own * factor + 0.5), [f"size{i}" for i in range(len(outs))])
        return new, list(range(len(outs))), e.expand(factor, [len(outs)])
    factor = _POLICIES[policy](out / max(1, n) for out, n in zip(outs, lengths, strict=True))  # type: ignore[operator]
    return [math.floor(n * factor + 0.5) for n in lengths], [factor] * len(outs), None  # type: ignore[operator]


def _known(e: Emit, data: Value, dims: Sequence[Size], axes: Sequence[Axis], way: Way) -> Value:
    if any(a.out == 0 for a in axes):
        outs = {a.axis: a.out for a in axes}
        return e.zeros([outs.get(axis, n) for axis, n in enumerate(dims)], data.dtype)
    if any(a.size == 0 for a in axes) and 0 not in [n for i, n in enumerate(dims) if i not in {a.axis for a in axes}]:
        raise e.refused(f"resizes an axis without elements, of {data}; expected sizes of 1 or more")
    fits = way.fits_tvm(dims, axes) and (way.mode == "nearest" or "float" in data.dtype)
    made = _by_relax(e, data, dims, axes, way) if fits else None
    return made or resized(e, data, axes, way, None, None)


def _by_relax(e: Emit, data: Value, dims: Sequence[Size], axes: Sequence[Axis], way: Way) -> Value | None:
    outs = {a.axis: a.out for a in axes}
    size = [outs.get(axis, n) for axis, n in enumerate(dims)]
    function = getattr(relax.op.image, f"resize{len(dims) - 2}d", None)
    if function is None or (len(dims) == 5 and any(isinstance(n, Dim) for n in (*dims[2:], *size[2:]))):
        return None
    return e.call(
        function,
        data,
        size=e.shape(size[2:]),
        roi=[0.0] * 2 * (len(dims) - 2),
        layout="NCHW" if len(dims) == 4 else "NCDHW",
        method="nearest_neighbor" if way.mode == "nearest" else way.mode,
        coordinate_transformation_mode=way.transform,
        rounding_method=way.rounding,
        cubic_alpha=way.cubic,
        cubic_exclude=int(way.exclude_outside),
        extrapolation_value=way.extrapolation,
    )


@dataclass(frozen=True)
class Way:
    """How all axes of a node are resized."""

    mode: str = "nearest"
    transform: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0

    @classmethod
    def of(cls, node: Node) -> Way:
        before_11 = node.opset < 11
        grows = before_11 and (known := node.needed(1).known) is not None and bool((known >= 1).all())
        return cls(
            node.attr("mode", cls.mode),
            node.attr("coordinate_transformation_mode", "asymmetric" if before_11 else cls.transform),
            node.attr("nearest_mode", "floor" if grows else "by_scale" if before_11 else cls.rounding),
            float(node.attr("cubic_coeff_a", cls.cubic)),
            bool(node.attr("antialias", 0)),
            bool(node.attr("exclude_outside", 0)),
            float(node.attr("extrapolation_value", cls.extrapolation)),
        )

    @property
    def crops(self) -> bool:
        """Whether a region of interest is read, and what lies outside of the source has a value of its own."""
        return self.transform == "tf_crop_and_resize"

    def fits_tvm(self, shape: Sequence[Any], axes: Sequence[Axis]) -> bool:
        """Whether TVM's operators compute the same: they resize what follows the channels by the ratio of the sizes."""
        if self.antialias or self.crops or self.transform == "half_pixel_symmetric":
            return False
        if self.mode == "nearest" and self.rounding not in ("floor", "ceil") and not all(a.is_whole for a in axes):
            return False  # TVM multiplies by a rounded ratio, and a coordinate between two elements gets the other one
        sizes = (*shape[2:], *(a.out for a in axes))
        if self.transform == "align_corners" and any(not isinstance(n, int) or n == 1 for n in sizes):
            return False  # TVM divides by the length - 1
        is_open = any(not isinstance(n, int) for n in shape[2:])
        divides = any(isinstance(a.out, int) and not isinstance(a.size, int) for a in axes)
        if self.transform == "asymmetric" and (divides or (is_open and self.mode != "nearest")):
            return False  # TVM fails while it simplifies the coordinates, or divides a known size by an open one
        ranks = (4,) if self.mode == "cubic" else (3, 4, 5)
        return len(shape) in ranks and all(a.axis > 1 and a.is_even for a in axes)


@dataclass(frozen=True)
class Axis:
    """The resizing of one axis, which is an index."""

    axis: int
    size: Any
    out: Any
    scale: float | None  # as the node gives it; `None` for the ratio of the lengths
    start: float = 0.0
    end: float = 1.0

    @property
    def is_even(self) -> bool:
        """Whether the scale is the ratio of the lengths; rounding in float32 is no difference."""
        if self.scale is None:
            return True
        if isinstance(self.size, int) and isinstance(self.out, int):
            return abs(self.size * self.scale - self.out) <= 1e-5 * self.out
        return self.scale == int(self.scale)

    @property
    def is_whole(self) -> bool:
        """Whether one length is known to be a multiple of the other."""
        if isinstance(self.size, int) and isinstance(self.out, int):
            return self.out % self.size == 0 or self.size % self.out == 0
        return self.scale is not None and self.scale == int(self.scale)

    def is_kept(self, way: Way) -> bool:
        """Whether the result of this axis is its source."""
        same = self.out == self.size or equal(self.out, self.size)
        return same and self.is_even and not (way.crops and (self.start, self.end) != (0.0, 1.0))

    def coordinate(self, i: Any, transform: str) -> Any:
        """The position in the source of element ``i`` of the result: of a NumPy scalar, or of an expression."""
        size, out = _like(i, self.size), _like(i, self.out)
        scale = out / size if self.scale is None else _like(i, self.scale)
        half, one = _like(i, 0.5), _like(i, 1.0)
        if transform == "asymmetric":
            return i / scale
        if transform == "align_corners":
            length = size * scale  # ONNX's tests have fractions of an element here
            return i * (size - one) / tirx.Select(length == one, one, length - one)
        if transform == "tf_crop_and_resize":
            start, end = (_like(i, bound) * (size - one) for bound in (self.start, self.end))
            steps = tirx.Select(out == one, one, out - one)
            return tirx.Select(out == one, half * (start + end), start + i * (end - start) / steps)
        if transform == "tf_half_pixel_for_nn":
            return (i + half) / scale
        half_pixel = (i + half) / scale - half
        if transform == "pytorch_half_pixel":
            return tirx.Select(out == one, _like(i, 0.0), half_pixel)
        if transform == "half_pixel_symmetric":
            return size * half * (one - out / (scale * size)) + half_pixel
        return half_pixel

    def nearest(self, i: Any, way: Way) -> Any:
        """The nearest element of the source, as a real; in float32, as ONNX Runtime: 1 / (1/3) is 3."""
        x, half = self.coordinate(i, way.transform), _like(i, 0.5)
        if way.rounding == "by_scale":  # before opset 11, as ONNX Runtime
            return tirx.Select(_like(x, self.scale) < _like(x, 1.0), tirx.ceil(x), tirx.floor(x))
        if way.rounding in ("floor", "ceil"):
            return getattr(tirx, way.rounding)(x)
        return tirx.floor(x + half) if way.rounding == "round_prefer_ceil" else tirx.ceil(x - half)

    def taps(self, way: Way) -> tuple[Any, Any, Any]:
        """First element that is read, counted from the floor of the coordinate; how many are; the kernel's stretch.

        Of a scale that only a call knows, so many as the rounding of the new length allows: those behind have no part.
        """
        size, out, scale, support = self.size, self.out, self.scale, 2 if way.mode == "cubic" else 1
        if not way.antialias:
            return 1 - support, 2 * support, 1.0
        if not any(isinstance(n, tirx.Expr) for n in ((size, out) if scale is None else (scale,))):
            stretch = min(out / size if scale is None else scale, 1.0)
            reach = math.floor(-support / stretch) + 1
            return reach, 2 - 2 * reach, stretch
        most = tirx.floordiv(2 * support * size + 2 * out - 2, tirx.max(2 * out - 1, 1))
        reach, one = 1 - tirx.max(most, support), tirx.const(1.0, "float64")
        return reach, 2 - 2 * reach, tirx.min(_like(one, out) / _like(one, size) if scale is None else scale, one)


def axes_of(
    way: Way, named: Sequence[int], dims: Sequence[Size], outs: Sequence[Size], scales: Any, roi: Any
) -> list[Axis]:
    """The axes that change; ``scales`` are numbers, expressions or ``None`` for the ratios of the sizes."""
    region = [0.0] * len(named) + [1.0] * len(named) if roi is None or not way.crops else list(roi)
    ends = zip(region[: len(named)], region[len(named) :], strict=True)
    every = zip(named, outs, scales, ends, strict=True)
    axes = [Axis(axis, dims[axis], out, scale, *both) for axis, out, scale, both in every]
    return [a for a in axes if not a.is_kept(way)]


def scaled(length: Size, scale: np.float32) -> Size:
    """A length by a scale, in float32, as ONNX infers the shape: 3 by 5/3 is 5."""
    if isinstance(length, int):
        return int(np.floor(np.float32(length) * scale))
    if scale == int(scale):
        return length * int(scale)
    return size_of((expr_of(length).astype("float32") * tirx.const(float(scale), "float32")).astype("int64"))


def resized(e: Emit, data: Value, axes: Sequence[Axis], way: Way, scales: Value | None, roi: Value | None) -> Value:
    """A tensor with these axes resized, by a function of our own for each of them.

    Scales and regions are given if only a call knows them; what an axis has of them is the place in them.
    """
    if "int" in data.dtype and way.mode != "nearest":  # cut at the end alone
        return e.cast(resized(e, e.cast(data, "float64"), axes, way, scales, roi), data.dtype)
    computed_of = [v for v in (scales, roi) if v is not None]
    for axis in axes:
        compute = _along(axis, way, data.dtype, scales is not None, roi is not None)
        data = computed(e, "resize", compute, data, axis.out, *computed_of)
    return data


def _along(axis: Axis, way: Way, dtype: str, asks_scales: bool, asks_region: bool) -> Callable[..., te.Tensor]:
    at, is_open = axis.axis, isinstance(axis.out, Dim) or isinstance(axis.size, Dim)

    def compute(x: te.Tensor, out: Any, *given: te.Tensor) -> te.Tensor:
        waiting = list(given)
        scale = waiting.pop(0)(axis.scale) if asks_scales else axis.scale
        if axis.scale is None and way.transform == "asymmetric" and is_open:
            # TVM fails while it simplifies the floor of i / (out / size)
            scale = te.compute((1,), lambda _: out.astype("float64") / x.shape[at].astype("float64"), name="scale")(0)
        start, end = (waiting[0](i) for i in (axis.start, axis.end)) if asks_region else (axis.start, axis.end)
        size, out = (
            known if isinstance(known, int) else open_ for known, open_ in ((axis.size, x.shape[at]), (axis.out, out))
        )
        own = Axis(at, size, out, scale, start, end)
        shape = [*x.shape[:at], out, *x.shape[at + 1 :]]
        read = _nearest(x, own, way) if way.mode == "nearest" else _weighted(x, own, way, dtype)

        def element(*index: Any) -> Any:
            value = read(index)
            if not way.crops:
                return value
            # in float32, the last place of a region is not behind its end
            place = own.coordinate(index[at].astype("float64"), way.transform).astype("float32")
            outside = tirx.any(place < _like(place, 0.0), place > _like(place, own.size) - _like(place, 1.0))
            return tirx.Select(outside, tirx.const(way.extrapolation, dtype), value)

        return te.compute(shape, element, name="resized")

    return compute


def _nearest(x: te.Tensor, axis: Axis, way: Way) -> Callable[[Sequence[Any]], Any]:
    def read(index: Sequence[Any]) -> Any:
        place = axis.nearest(index[axis.axis].astype("float32"), way).astype("int64")
        return x(*index[: axis.axis], within(place, axis.size), *index[axis.axis + 1 :])

    return read


def _weighted(x: te.Tensor, axis: Axis, way: Way, dtype: str) -> Callable[[Sequence[Any]], Any]:
    """The parts of every element in a table of their own, so that they are computed once for each row."""
    first, count, stretch = axis.taps(way)
    at = axis.axis
    wide = wide_dtype(dtype)

    def place(i: Any) -> Any:
        return axis.coordinate(i.astype("float64"), way.transform)

    def part(i: Any, k: Any) -> Any:
        tap = tirx.floor(place(i)) + (k + first).astype("float64")
        distance = (tap - place(i)) * _like(tap, stretch)
        value = weight(distance, way.cubic if way.mode == "cubic" else None)  # before all parts are made 1 together
        if not way.exclude_outside:
            return value
        inside = tirx.all(tap >= tirx.const(0.0, "float64"), tap < _like(tap, axis.size))
        return tirx.Select(inside, value, tirx.const(0.0, "float64"))

    parts = te.compute((axis.out, count), part, name="parts")
    tap = te.reduce_axis((0, count), "tap")
    total = te.compute((axis.out,), lambda i: te.sum(parts[i, tap], axis=tap), name="total")
    weights = te.compute((axis.out, count), lambda i, k: (parts[i, k] / _or_one(total[i])).astype(wide), name="weights")
    from_ = te.compute(
        (axis.out, count),
        lambda i, k: within(tirx.floor(place(i)).astype("int64") + k + first, axis.size),
        name="elements",
    )

    def term(index: Sequence[Any], k: Any) -> Any:
        i = index[at]
        return x(*index[:at], from_[i, k], *index[at + 1 :]).astype(wide) * weights[i, k]

    if isinstance(count, int):
        return lambda index: sum((term(index, k) for k in range(1, count)), term(index, 0)).astype(dtype)
    shape = [*x.shape[:at], axis.out, *x.shape[at + 1 :]]
    sums = te.compute(shape, lambda *index: te.sum(term(index, tap), axis=tap), name="sums")
    return lambda index: sums(*index).astype(dtype)


def _or_one(total: Any) -> Any:
    """The sum of all parts: 1 where all of them are outside of the source, and so nothing."""
    return tirx.Select(total == _like(total, 0.0), _like(total, 1.0), total)


def _like(i: Any, value: Any) -> Any:
    """A number of the type of ``i``."""
    dtype = dtype_of(getattr(i, "ty", i))
    return value.astype(dtype) if isinstance(value, tirx.Expr) else tirx.const(value, dtype)
