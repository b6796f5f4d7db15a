"""Resize as a product with one constant matrix per axis, where TVM's own resizing fails or gives another result.

TVM takes the ratio of the sizes for the scale. That is another one where the scaled size is not whole: 4 by 0.6 is 2,
and ONNX keeps on stepping by 1/0.6. It also has no antialiasing and not every transformation of coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes
from .integers import dtype_of

__all__ = ["by_matrices"]


@dataclass(frozen=True)
class _Axis:
    """The resizing of one axis; the names are those of ONNX's specification."""

    axis: int
    size: int
    out: int
    scale: float
    start: float = 0.0  # of the region of interest, for tf_crop_and_resize
    end: float = 1.0

    def coordinate(self, i: int, mode: str) -> float:
        """The position in the source of an element of the result."""
        if mode == "asymmetric":
            return i / self.scale
        if mode == "align_corners":
            length = self.size * self.scale
            return 0.0 if length == 1 else i * (self.size - 1) / (length - 1)
        if mode == "tf_crop_and_resize":
            if self.out == 1:
                return 0.5 * (self.start + self.end) * (self.size - 1)
            step = (self.end - self.start) * (self.size - 1) / (self.out - 1)
            return self.start * (self.size - 1) + i * step
        if mode == "pytorch_half_pixel" and self.out == 1:
            return 0.0
        half_pixel = (i + 0.5) / self.scale - 0.5
        if mode == "half_pixel_symmetric":
            return self.size / 2 * (1 - self.out / (self.scale * self.size)) + half_pixel
        return half_pixel


def by_matrices(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """The products; ``None`` where TVM is right, and where the sizes are not known."""
    b = Builder(graph, node)
    mode, transform = b.attrs.get("mode", "nearest"), b.attrs.get("coordinate_transformation_mode", "half_pixel")
    if not _is_special(b.attrs, transform) and _has_whole_scales(graph, b):
        return None  # whatever the shape is, which takes long to infer
    shape, dtype = graph.static_shape(node.input[0]), dtype_of(graph, node.input[0])
    axes = None if shape is None else _axes(graph, b, shape)
    crops = transform == "tf_crop_and_resize"
    if axes is None or dtype is None or not _is_needed(b.attrs, axes, transform):
        return None
    if crops and b.attrs.get("extrapolation_value", 0.0) != 0:
        return None
    changed = [a for a in axes if a.scale != 1 or crops]
    if mode == "nearest":
        return None if crops else _gathers(b, changed, transform)
    if dtype.kind != "f":
        return None
    value, rank = node.input[0], len(shape or ())
    for a in changed:
        matrix = _matrix(a, mode, transform, b.attrs)
        value = _multiply(b, value, matrix.astype(dtype), a.axis, rank)
    b.add("Identity", [value], node.output[0])
    return b.nodes


def _has_whole_scales(graph: Graph, b: Builder) -> bool:
    """Whether each axis becomes a whole number of times as long."""
    scales = graph.constant(b.inputs[2]) if b.inputs[2] else None
    return scales is not None and bool(scales.size) and bool(((scales >= 1) & (scales == np.floor(scales))).all())


def _axes(graph: Graph, b: Builder, shape: tuple[int, ...]) -> list[_Axis] | None:
    """The axes with their scales, where these are known; sizes that keep an aspect ratio are left alone."""
    roi, scales, sizes = (graph.constant(n) if n else None for n in b.inputs[1:4])
    named = [int(a) % len(shape) for a in b.attrs.get("axes", range(len(shape)))]
    if scales is not None and scales.size == len(named):
        factors = [float(s) for s in scales]
        # in float32, as ONNX infers the shape: 3 by 5/3 is 5
        outs = [int(np.floor(np.float32(shape[a]) * np.float32(s))) for a, s in zip(named, scales, strict=True)]
    elif (
        sizes is not None and sizes.size == len(named) and b.attrs.get("keep_aspect_ratio_policy") in (None, "stretch")
    ):
        outs = [int(size) for size in sizes]
        factors = [size / max(1, shape[a]) for a, size in zip(named, outs, strict=True)]
    else:
        return None
    if 0 in shape or 0 in outs:
        return None
    region = [0.0] * len(named) + [1.0] * len(named) if roi is None or not roi.size else [float(r) for r in roi]
    bounds = zip(region[: len(named)], region[len(named) :], strict=True)
    rows = zip(named, outs, factors, bounds, strict=True)
    return [_Axis(a, shape[a], out, factor, *ends) for a, out, factor, ends in rows]


def _is_special(attrs: dict[str, Any], transform: str) -> bool:
    """Whether TVM computes something else, whatever the sizes are."""
    crops_some = transform == "tf_crop_and_resize" and "axes" in attrs
    return bool(attrs.get("antialias")) or transform == "half_pixel_symmetric" or crops_some


def _is_needed(attrs: dict[str, Any], axes: list[_Axis], transform: str) -> bool:
    uneven = any(abs(a.size * a.scale - a.out) > 1e-5 * a.out for a in axes)  # rounding in float32 is no difference
    return uneven or _is_special(attrs, transform)


def _gathers(b: Builder, axes: list[_Axis], transform: str) -> Nodes:
    """The nearest element of each axis."""
    rounding = {
        "round_prefer_floor": lambda x: math.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: math.floor(x + 0.5),
        "floor": math.floor,
        "ceil": math.ceil,
    }[b.attrs.get("nearest_mode", "round_prefer_floor")]
    value = b.old.input[0]
    for a in axes:
        indices = [rounding(a.coordinate(i, transform)) for i in range(a.out)]
        value = b.add("Gather", [value, b.ints(np.clip(indices, 0, a.size - 1).tolist())], axis=a.axis)
    b.add("Identity", [value], b.old.output[0])
    return b.nodes


def _matrix(a: _Axis, mode: str, transform: str, attrs: dict[str, Any]) -> np.ndarray:
    """[result, source]: the weights of every element of one axis."""
    matrix = np.zeros((a.out, a.size))
    stretch = min(a.scale, 1.0) if attrs.get("antialias") else 1.0
    reach = math.floor(-(2 if mode == "cubic" else 1) / stretch) + 1
    for i in range(a.out):
        x = a.coordinate(i, transform)
        if transform == "tf_crop_and_resize" and not 0 <= x <= a.size - 1:
            continue  # extrapolated, with 0
        base = math.floor(x)
        taps = np.arange(base + reach, base + 2 - reach)
        weights = _kernel((taps - x) * stretch, mode, attrs.get("cubic_coeff_a", -0.75))
        if attrs.get("exclude_outside"):
            weights = np.where((taps >= 0) & (taps < a.size), weights, 0)
        np.add.at(matrix[i], np.clip(taps, 0, a.size - 1), weights / weights.sum())
    return matrix


def _kernel(x: np.ndarray, mode: str, a: float) -> np.ndarray:
    x = np.abs(x)
    if mode == "linear":
        return np.clip(1 - x, 0, 1)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _multiply(b: Builder, value: str, matrix: np.ndarray, axis: int, rank: int) -> str:
    constant = b.graph.add_constant(f"{b.old.output[0]}_weights", matrix)
    if axis == rank - 2:
        return b.add("MatMul", [constant, value])
    order = [i for i in range(rank) if i != axis] + [axis]
    transposed = b.graph.add_constant(f"{b.old.output[0]}_weights", np.ascontiguousarray(matrix.T))
    if axis == rank - 1:
        return b.add("MatMul", [value, transposed])
    product = b.add("MatMul", [b.add("Transpose", [value], perm=order), transposed])
    return b.add("Transpose", [product], perm=np.argsort(order).tolist())
