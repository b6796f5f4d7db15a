"""Operators of object detection, and pictures between their pixels."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from ....core.limits import MOST_PIXELS, MOST_SAMPLES
from ..dim import Size, max_of, min_of, product
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, whole
from .computed import asked, computed, int64, within, written
from .ordering import keys
from .shapes import ints_of


def _corners(boxes: Any, at: tuple[Any, Any], is_centre: bool) -> tuple[Any, Any, Any, Any]:
    """The lowest and highest coordinates of a box along both axes."""
    a, b, c, d = (boxes[at[0], at[1], i] for i in range(4))
    if is_centre:  # x, y, width, height
        half = tirx.const(0.5, "float32")
        return b - d * half, a - c * half, b + d * half, a + c * half
    return tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)


def _overlap(boxes: Any, one: tuple[Any, Any], other: tuple[Any, Any], is_centre: bool) -> Any:
    """Intersection over union."""
    low0, low1, high0, high1 = _corners(boxes, one, is_centre)
    low2, low3, high2, high3 = _corners(boxes, other, is_centre)
    zero = tirx.const(0.0, "float32")
    shared = tirx.max(tirx.min(high0, high2) - tirx.max(low0, low2), zero) * tirx.max(
        tirx.min(high1, high3) - tirx.max(low1, low3), zero
    )
    union = (high0 - low0) * (high1 - low1) + (high2 - low2) * (high3 - low3) - shared
    return tirx.if_then_else(union > zero, shared / union, zero)


@operator("NonMaxSuppression", since=10)
def _suppression(e: Emit, node: Node, boxes: Value, scores: Value, *, center_point_box: int = 0) -> Any:
    """Boxes of each class from the highest score on, but those that overlap by more than the threshold."""
    is_centre = bool(center_point_box)
    batch, classes, count = scores.sizes
    boxes = e.agree(boxes, [batch, count, 4])
    most, overlap, least = node.input(2) or e.const([0]), node.input(3) or e.const([0.0], "float32"), node.input(4)
    limit = int(most.known.item()) if most.is_constant and most.known is not None else None
    if limit is not None and limit <= 0:
        return e.zeros([0, 3], "int64")
    order = e.argsort(keys(e, scores), axis=-1, descending=True, dtype="int64")
    single = [e.reshape(v, [1]) for v in (e.cast(most, "int64"), overlap, least) if v is not None]

    def write(boxes: Any, scores: Any, order: Any, most: Any, overlap: Any, *rest: Any) -> None:
        *lowest_score, picked, total, kept, state, batch, classes, count = rest
        held, is_kept = 0, 1  # of each class of each picture, which threads share
        with T.parallel(0, batch * classes) as lane:
            b, c = lane // classes, lane % classes
            state[b, c, held] = int64(0)
            with T.serial(0, count) as i:
                box = order[b, c, i]
                is_open = state[b, c, held] < most[0]
                if lowest_score:
                    is_open = tirx.all(is_open, scores[b, c, box] > lowest_score[0][0])
                with T.If(is_open), T.Then():
                    state[b, c, is_kept] = int64(1)
                    with T.serial(0, state[b, c, held]) as k:
                        other = (b, kept[b, c, k])
                        with T.If(_overlap(boxes, (b, box), other, is_centre) > overlap[0]), T.Then():
                            state[b, c, is_kept] = int64(0)
                    with T.If(state[b, c, is_kept] == 1), T.Then():
                        kept[b, c, state[b, c, held]] = box
                        state[b, c, held] = state[b, c, held] + 1
        total[0] = int64(0)
        with T.serial(0, batch) as b, T.serial(0, classes) as c, T.serial(0, state[b, c, held]) as k:
            for column, value in enumerate((b, c, kept[b, c, k])):
                picked[total[0], column] = value
            total[0] = total[0] + 1

    each: Size = count if limit is None else min_of(count, limit)
    results: list[tuple[list[Size], str]] = [([product([batch, classes, each]), 3], "int64"), ([1], "int64")]
    results += [([batch, classes, each], "int64"), ([batch, classes, 2], "int64")]
    sizes = [batch, classes, count]
    picked, total, *_ = written(e, "suppress", write, [boxes, scores, order, *single], results, sizes)
    (found,) = asked(e, total, ["selected"])
    return e.cut(picked, 0, 0, found)


@operator("RoiAlign", since=10)
def _roi_align(e: Emit, node: Node, x: Value, boxes: Value, batch: Value) -> Any:
    mode, ratio = node.attr("mode", "avg"), node.attr("sampling_ratio", 0)
    scale, default = node.attr("spatial_scale", 1.0), "output_half_pixel" if node.opset < 16 else "half_pixel"
    is_half = node.attr("coordinate_transformation_mode", default) == "half_pixel"
    size = (node.attr("output_height", 1), node.attr("output_width", 1))
    if mode not in ("avg", "max"):
        raise node.wrong(f"has the mode {mode}; expected avg or max")
    boxes = e.agree(boxes, [*batch.sizes, 4])
    if mode == "max":
        return _largest_of_boxes(e, x, boxes, batch, scale, is_half, size, ratio)
    if is_half:  # Relax scales first and moves no box
        boxes = boxes - e.const(0.5 / scale, boxes.dtype)
    number = e.cast(e.reshape(batch, [*batch.sizes, 1]), boxes.dtype)
    every = e.concat([number, boxes], 1)
    how = {"pooled_size": size, "spatial_scale": scale, "sample_ratio": ratio, "aligned": is_half, "layout": "NCHW"}
    return e.roi_align(x, every, mode="avg", **how)


def _largest_of_boxes(
    e: Emit, x: Value, boxes: Value, batch: Value, scale: float, is_half: bool, size: tuple[int, int], ratio: int
) -> Value:
    """Of each bin the largest weighted corner of all of its samples, which is what ONNX means by ``max``."""
    dtype = x.dtype
    boxes, batch = _checked(e, x, e.cast(boxes, dtype), batch, scale, size)

    def compute(data: Any, rois: Any, numbers: Any) -> Any:
        def number(value: Any) -> Any:
            return tirx.const(value, dtype) if isinstance(value, float) else tirx.Cast(dtype, value)

        def along(i: Any, axis: int) -> tuple[Any, Any, Any]:
            """Where a box begins, how long a bin is, and how many samples it has: none if it is turned around."""
            first, last = (rois(i, a) * number(scale) - number(0.5 if is_half else 0.0) for a in (axis, axis + 2))
            length = last - first if is_half else tirx.max(last - first, number(1.0))
            step = length / number(size[1 - axis])
            return first, step, tirx.const(ratio, "int64") if ratio > 0 else tirx.ceil(step).astype("int64")

        def element(i: Any, c: Any, ph: Any, pw: Any) -> Any:
            picture, places, grids = within(numbers(i), data.shape[0]), [], []
            for axis, place in ((1, ph), (0, pw)):
                first, step, grid = along(i, axis)
                sample = te.reduce_axis((int64(0), grid), "xy"[1 - axis])
                places.append(first + number(place) * step + (number(sample) + number(0.5)) * step / number(grid))
                grids.append(sample)
            outside = tirx.any(*(tirx.any(p < -1.0, p > number(n)) for p, n in zip(places, data.shape[2:])))
            ways = []
            for p, n in zip(places, data.shape[2:], strict=True):
                p = tirx.max(p, number(0.0))
                low = tirx.min(p.astype("int64"), n - 1)
                high = tirx.min(low + 1, n - 1)
                share = tirx.Select(low >= n - 1, number(0.0), p - number(low))
                ways.append(((low, number(1.0) - share), (high, share)))
            corners = [wy * wx * data(picture, c, y, px) for y, wy in ways[0] for px, wx in ways[1]]
            value = tirx.max(tirx.max(corners[0], corners[1]), tirx.max(corners[2], corners[3]))
            return te.max(tirx.if_then_else(outside, number(0.0), value), axis=grids)

        def found(i: Any, *at: Any) -> Any:
            is_empty = tirx.any(*(along(i, axis)[2] <= 0 for axis in (0, 1)))
            return tirx.Select(is_empty, number(0.0), largest(i, *at))

        largest = te.compute((rois.shape[0], data.shape[1], *size), element, name="largest_of_boxes")
        return te.compute(largest.shape, found, name="roi_align")

    return computed(e, "roi_align_max", compute, x, boxes, batch)


def _checked(e: Emit, x: Value, boxes: Value, batch: Value, scale: float, size: tuple[int, int]) -> list[Value]:
    """Boxes and the numbers of their pictures, whose copies a call makes only if they can be computed."""
    count, pictures = (boxes.dims or (0,))[0], (x.dims or (0,))[0]
    farthest = max(MOST_SAMPLES * min(size) / 2, MOST_PIXELS) / scale

    def write(corners: Any, numbers: Any, own: Any, places: Any, count: Any, pictures: Any) -> None:
        far = tirx.const(farthest, x.dtype)
        message = f"roi_align: a corner of a box is not a number from {-farthest:g} to {farthest:g}"
        with T.serial(0, count) as i:
            inside = tirx.all(numbers[i] >= 0, numbers[i] < pictures)
            with T.Assert(inside, "roi_align: an index is out of range of the pictures", "IndexError"):
                places[i] = numbers[i]
            with (
                T.serial(0, 4) as k,
                T.Assert(tirx.all(corners[i, k] >= -far, corners[i, k] <= far), message, "ByocInputValueError"),
            ):
                own[i, k] = corners[i, k]

    results: list[tuple[list[Size], str]] = [([count, 4], x.dtype), ([count], "int64")]
    return written(e, "check_boxes", write, [boxes, e.cast(batch, "int64")], results, [count, pictures])


@operator("MaxRoiPool")
def _max_roi_pool(e: Emit, x: Value, boxes: Value, *, spatial_scale: float = 1.0, pooled_shape: Any = None) -> Any:
    return e.roi_pool(x, boxes, pooled_size=tuple(pooled_shape), spatial_scale=spatial_scale, layout="NCHW")


_METHODS = {"linear": "bilinear", "cubic": "bicubic"}


@operator("AffineGrid", since=20)
def _affine_grid(e: Emit, node: Node, theta: Value, *, align_corners: int = 0) -> Any:
    """The points of a regular grid, each times ``theta (N, r, r + 1)``, whose columns begin with the last axis."""
    size: list[Size] = (ints_of(e, node, 1, "size") or [])[2:]
    rank = len(size)
    # between -1 and 1; the first point is alone at -1 where the corners are points
    first, steps = (0.0, [max_of(n - 1, 1) for n in size]) if align_corners else (1.0, size)
    numbers = [(e.cast(e.places(n), theta.dtype), e.cast(whole(s), theta.dtype)) for n, s in zip(size, steps)]
    lines = [(place * 2.0 + first) / step - 1.0 for place, step in numbers]
    along = [e.reshape(line, [n, *[1] * (rank - 1 - a)]) for a, (line, n) in enumerate(zip(lines, size, strict=True))]
    points = [e.expand(line, size) for line in (*reversed(along), e.const(1, theta.dtype))]
    flat = e.reshape(e.stack(points, -1), [product(size), rank + 1])
    return e.reshape(e.matmul(flat, e.transpose(theta, [0, 2, 1])), [theta.sizes[0], *size, rank])


@operator("GridSample", since=16)
def _grid_sample(e: Emit, node: Node, data: Value, grid: Value, *, mode: str = "bilinear") -> Any:
    method, rank = _METHODS.get(mode, mode), data.rank
    if rank not in (4, 5) or (rank == 5 and method == "bicubic"):
        raise node.refused(f"has data of {data} and the mode {mode}; expected 4 axes, or 5 and another mode than cubic")
    wide = "float64" if "float64" in (data.dtype, grid.dtype) or "int" in data.dtype else "float32"
    given = [data, grid] if data.dtype == grid.dtype else [e.cast(data, wide), e.cast(grid, wide)]
    made = e.grid_sample(
        given[0],
        e.transpose(given[1], [0, rank - 1, *range(1, rank - 1)]),
        method=method,
        layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=node.attr("padding_mode", "zeros"),
        align_corners=bool(node.attr("align_corners", 0)),
    )
    return e.cast(made, data.dtype)
