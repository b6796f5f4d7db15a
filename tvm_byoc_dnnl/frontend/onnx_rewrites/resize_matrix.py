"""Resize as a product with one constant matrix per axis, where TVM's own resizing fails or gives another result.

TVM takes the ratio of the sizes for the scale. That is another one where the scaled size is not whole: 4 by 0.6 is 2,
and ONNX keeps on stepping by 1/0.6. It also has no antialiasing and not every transformation of coordinates, and
resizes no other axes than the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..onnx_resize import Axis, Way
from .builder import Builder, Nodes

__all__ = ["by_matrices"]


def by_matrices(b: Builder, rank: int, dtype: np.dtype, axes: Sequence[Axis], way: Way) -> Nodes | None:
    """The products, or gathers of the nearest elements; ``None`` for linear resizing of integers."""
    value = b.old.input[0]
    for a in axes:
        if way.mode == "nearest":
            indices = [int(a.nearest(np.float32(i), way)) for i in range(a.out)]
            value = b.add("Gather", [value, b.ints(np.clip(indices, 0, a.size - 1).tolist())], axis=a.axis)
        elif dtype.kind == "f":
            value = _multiply(b, value, _matrix(a, way).astype(dtype), a.axis, rank)
        else:
            return None
    b.add("Identity", [value], b.old.output[0])
    return b.nodes


def _matrix(a: Axis, way: Way) -> np.ndarray:
    """[result, source]: the weights of every element of one axis."""
    matrix = np.zeros((a.out, a.size))
    first, count, stretch = a.taps(way)
    for i in range(a.out):
        x = a.coordinate(np.float64(i), way.transform)
        taps = np.arange(count) + int(np.floor(x)) + first
        weights = np.array([a.weight(np.float64(distance), way) for distance in (taps - x) * stretch])
        if way.exclude_outside:
            weights = np.where((taps >= 0) & (taps < a.size), weights, 0)
        np.add.at(matrix[i], np.clip(taps, 0, a.size - 1), weights / (weights.sum() or 1))
    return matrix


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
