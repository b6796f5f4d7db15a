"""Resizing of images, nearest and linear; and long tables of positions along an axis, as one gather.

oneDNN samples at half-pixel coordinates, ``(o + ½)·in/out − ½``, and takes as nearest the pixel at ``⌊· + ½⌋``. Relax
has a dozen combinations of coordinates and roundings, many of which are the same thing at the sizes at hand: all of
them at a whole scale, half-pixel and asymmetric ones where nothing is scaled. So it is the sample points that are
compared, axis by axis, in exact arithmetic, and not the names. An open size must become 1, 2, 4, 8 … times as large:
pixel ``o + factor`` is then sampled one pixel behind pixel ``o``, and the first sizes show all there is.

    pad(reflect, 0, 64)                      concat(x, take(indices: n - 2, n - 3 … n - 65))
    flip                            ──>      take(indices: n - 1 … 0)
    strided_slice(step -1)                   take(indices: begin, begin - 1 …)

`shape.py` makes a few slices of such an operator. Where these would be too many, there is a `take` with a constant
table instead, which is a gather.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...vendor import Dim, GraphBuilder, Reject, Scope, Value, register_lowering, require, rewrite_pass, whole_factor
from .common import canonical_layout, floats, ints, to_layout
from .shape import PADDED, backwards, int_tuple, is_long, padded_sides, slice_axis

#: axes whose pixels are remembered: a network resizes many alike, and each is lowered twice
_MOST_KNOWN = 256
_HALF = Fraction(1, 2)
#: TVM moves a coordinate by this much before it rounds down or up
_NUDGE = Fraction(1, 100_000)
#: how far a coordinate in float32 may be from the exact one, for each pixel of the source
_SLACK = Fraction(1, 2**22)

#: coordinate mode → (output position, input size, output size) → input position
_COORDINATES: dict[str, Callable[[int, int, int], Fraction]] = {
    "half_pixel": lambda o, n, m: (o + _HALF) * Fraction(n, m) - _HALF,
    "pytorch_half_pixel": lambda o, n, m: (o + _HALF) * Fraction(n, m) - _HALF if m > 1 else Fraction(0),
    "align_corners": lambda o, n, m: o * Fraction(n - 1, m - 1) if m > 1 else Fraction(0),
    "asymmetric": lambda o, n, m: o * Fraction(n, m),
    "tf_half_pixel_for_nn": lambda o, n, m: (o + _HALF) * Fraction(n, m),
}
#: rounding → input position → index
_ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "round": round,
    "round_prefer_floor": lambda x: math.ceil(x - _HALF),
    "round_prefer_ceil": lambda x: math.floor(x + _HALF),
    "floor": lambda x: math.floor(x + _NUDGE),
    "ceil": lambda x: math.ceil(x - _NUDGE),
}


@register_lowering("dnnl", ["relax.image.resize2d", "relax.image.resize3d"])
def resize(g: GraphBuilder, call: Any) -> Value:
    """Nearest and linear resizing where oneDNN samples at the same points."""
    attrs, (src,) = call.attrs, floats(g, call, 1)
    layout, method, mode = str(attrs.layout), str(attrs.method), str(attrs.coordinate_transformation_mode)
    require(method in _METHODS, f"resize by method {method}; oneDNN resamples nearest and linear")
    require(mode in _COORDINATES, f"resize with coordinates {mode}")
    require(str(call.ty.dtype) == src.dtype, f"resize of {src.dtype} to {call.ty.dtype}")
    canonical = canonical_layout(layout, "NC")
    src = to_layout(g, src, layout, canonical)
    shape = [*src.shape[:2], *_wanted(g, call.args[1])]
    rounding = str(attrs.rounding_method) or ("round" if mode == "align_corners" else "floor")
    for axis in range(2, src.ndim):
        src = _METHODS[method](g, src, axis, shape[axis], mode, rounding)
    out = src
    if tuple(shape) != src.shape:
        out = g.emit("resampling", [src], shape, alg="linear" if method == "linear" else "nearest")
    return to_layout(g, out, canonical, layout)


def _linear(g: GraphBuilder, src: Value, axis: int, wanted: Dim, mode: str, rounding: str) -> Value:
    """``src``, if oneDNN resizes an axis as Relax does."""
    for n, m in _sizes(src.shape[axis], wanted):
        _compare_points(n, m, mode)
    return src


@functools.lru_cache(maxsize=_MOST_KNOWN)
def _compare_points(n: int, m: int, mode: str) -> None:
    """Refuse a linear resize that reads other positions than oneDNN's."""
    last = Fraction(n - 1)
    for o in range(m):
        theirs, ours = (_COORDINATES[name](o, n, m) for name in (mode, "half_pixel"))
        same = min(max(theirs, Fraction(0)), last) == min(max(ours, Fraction(0)), last)
        require(
            same,
            f"linear resize of {n} to {m} with {mode} coordinates, which reads position {float(theirs):.4g} for pixel "
            f"{o}; oneDNN reads {float(ours):.4g}",
        )


def _nearest(g: GraphBuilder, src: Value, axis: int, wanted: Dim, mode: str, rounding: str) -> Value:
    """``src`` ready for oneDNN; an axis of which Relax takes every n-th pixel, and oneDNN others, is sliced here."""
    if rounding not in _ROUNDINGS:
        raise Reject(f"nearest resize with rounding {rounding!r}")
    for n, m in _sizes(src.shape[axis], wanted):
        src = _nearest_of(g, src, axis, n, m, mode, rounding)
    return src


def _nearest_of(g: GraphBuilder, src: Value, axis: int, n: int, m: int, mode: str, rounding: str) -> Value:
    table, ours = _pixels(n, m, mode, rounding)
    if table == ours:
        return src
    step = table[1] - table[0] if m > 1 else 1
    if src.shape[axis] == n and step >= 1 and table == list(range(table[0], table[0] + m * step, step)):
        return slice_axis(g, src, axis, table[0], m, step)
    first = next(o for o in range(m) if table[o] != ours[o])
    raise Reject(
        f"nearest resize of {n} to {m} with {mode} coordinates and rounding {rounding} takes pixel {table[first]} for "
        f"pixel {first}; oneDNN takes {ours[first]}"
    )


@functools.lru_cache(maxsize=_MOST_KNOWN)
def _pixels(n: int, m: int, mode: str, rounding: str) -> tuple[list[int], list[int]]:
    """The pixels of a nearest resize that TVM takes, and those that oneDNN takes."""
    ours = [(2 * o + 1) * n // (2 * m) for o in range(m)]  # the pixel in which the middle of the new one is
    return [_index(o, n, m, mode, rounding) for o in range(m)], ours


_METHODS = {"linear": _linear, "nearest_neighbor": _nearest}


def _wanted(g: GraphBuilder, size: Any) -> list[Dim]:
    """The sizes of the result by the argument that says them: the type of a composite's result forgets open ones."""
    dims = size.values if isinstance(size, relax.ShapeExpr) else size.ty.values
    if dims is None:
        raise Reject("resize to sizes that are known at the call only")
    return [g.dim(d) for d in dims]


def _sizes(size: Dim, wanted: Dim) -> list[tuple[int, int]]:
    """The sizes that show how an axis is resized: its own, or the smallest ones in the place of an open one."""
    if isinstance(size, int) and isinstance(wanted, int):
        require(size > 0, f"resize of an axis of size {size}")
        return [(size, wanted)]
    factor = whole_factor(wanted, size)
    if factor is None or factor & (factor - 1):  # not a power of two
        raise Reject(f"resize of {size} to the symbolic size {wanted}, which is not 1, 2, 4, 8 … times as large")
    return [(n, factor * n) for n in (1, 2, 3)]


def _index(o: int, n: int, m: int, mode: str, rounding: str) -> int:
    """The pixel that TVM takes, if rounding errors of its float32 arithmetic cannot change it."""
    exact = _COORDINATES[mode](o, n, m)
    dyadic = all(not d & (d - 1) for d in (exact.denominator, Fraction(n, m).denominator))
    around = (exact,) if dyadic else (exact - n * _SLACK, exact, exact + n * _SLACK)
    found = {min(max(_ROUNDINGS[rounding](x), 0), n - 1) for x in around}
    if len(found) > 1:
        raise Reject(f"nearest resize of {n} to {m}: which pixel is nearest to {float(exact):.4g} is a rounding error")
    return found.pop()


def _taken(scope: Scope, data: Any, axis: int, table: Sequence[int]) -> Any:
    return relax.op.take(data, scope.constant(np.array(table, "int64")), axis=axis, mode="clip")


def _pad(scope: Scope, call: Any) -> Any:
    """A padding with the tensor's own elements."""
    data, mode, dims = call.args[0], str(call.attrs.pad_mode), scope.dims(call.args[0])
    widths = ints(call.attrs.pad_width)
    padded = [axis for axis in range(len(widths) // 2) if any(widths[2 * axis : 2 * axis + 2])]
    if mode not in PADDED or dims is None or not all(isinstance(dims[axis], int) for axis in padded):
        return None
    sides = {axis: padded_sides(mode, dims[axis], *widths[2 * axis : 2 * axis + 2]) for axis in padded}
    tables = [(axis, both) for axis, both in sides.items() if both is not None]
    if len(tables) < len(padded) or not any(is_long(*both, range(1)) for _, both in tables):
        return None
    *others, last = tables
    for axis, both in others:
        data = scope.emit(_widened(scope, data, axis, both))
    return _widened(scope, data, *last)


def _widened(scope: Scope, data: Any, axis: int, sides: tuple[list[int], list[int]]) -> Any:
    """``data`` between what a padding repeats: most of it is copied as a whole."""
    before, after = ([scope.emit(_taken(scope, data, axis, side))] if side else [] for side in sides)
    return relax.op.concat([*before, data, *after], axis)


def _flip(scope: Scope, call: Any) -> Any:
    dims = scope.dims(call)
    axis = int(call.attrs.axis)
    if dims is None or not isinstance(dims[axis], int):
        return None
    table = range(dims[axis])[::-1]
    return _taken(scope, call.args[0], axis % len(dims), table) if is_long(table) else None


def _slice(scope: Scope, call: Any) -> Any:
    """A slice of one axis from back to front."""
    data, dims, result = call.args[0], scope.dims(call.args[0]), scope.dims(call)
    try:
        axes, begins, _, steps = (int_tuple(bound) for bound in call.args[1:])
    except (Reject, ValueError):  # open bounds, or no steps
        return None
    if dims is None or result is None or len(axes) != 1 or steps[0] >= 0:
        return None
    size, count = dims[axes[0]], result[axes[0]]
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    table = backwards(size, begins[0], steps[0], count)
    return _taken(scope, data, axes[0] % len(dims), table) if is_long(table) else None


_RULES = {"relax.nn.pad": [_pad], "relax.flip": [_flip], "relax.strided_slice": [_slice]}


def TakeTables() -> tvm.transform.Pass:
    """Pass: operators that would be many slices become a `take`."""
    return rewrite_pass("TakeTables", _RULES)
