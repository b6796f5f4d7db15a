"""Random numbers: a hash of the seed and the element's place, the same in every call.

A compiled model has no state, so a call does not continue where the last one ended. A node without a seed has one of
its name: two nodes give different numbers, and one node gives the same numbers everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import te, tirx

from ..dim import Size
from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .computed import computed, int64

_BITS = 24  # of a float32 between 0 and 1


def _mixed(h: Any) -> Any:
    """32 bits of 32 bits, each of which depends on all of them; in int64, where no product wraps.

    TVM's simplifier takes products of uint32 for such that do not wrap, and gives one number for all elements.
    """
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):
        h = ((h ^ (h >> int64(shift))) * int64(factor)) & int64(0xFFFFFFFF)
    return h ^ (h >> int64(15))


def _uniform(place: Any, seed: int, above: int) -> Any:
    """A multiple of 2⁻²⁴: from 0 to below 1, or with ``above`` 1 from above 0 to 1."""
    bits = _mixed(_mixed(place & int64(0xFFFFFFFF)) ^ int64(seed)) >> int64(32 - _BITS)
    return (bits + int64(above)).astype("float32") * tirx.const(2.0**-_BITS, "float32")


def _drawn(e: Emit, node: Node, dims: Sequence[Size], *, is_normal: bool) -> Value:
    """Numbers in float32, uniform in [0, 1) or normal with mean 0 and variance 1 (Box and Muller)."""
    given = node.attr("seed")
    seed = zlib.crc32(node.name.encode()) if given is None else int(np.float32(given).view("uint32"))

    def compute(sizes: Any) -> Any:
        def element(*at: Any) -> Any:
            place = int64(0)
            for i, size in zip(at, sizes, strict=True):
                place = place * size + i
            if not is_normal:
                return _uniform(place, seed, 0)
            radius = tirx.sqrt(tirx.const(-2.0, "float32") * tirx.log(_uniform(place * 2, seed, 1)))
            return radius * tirx.cos(tirx.const(2 * np.pi, "float32") * _uniform(place * 2 + 1, seed, 0))

        return te.compute(tuple(sizes), element, name="random")

    return computed(e, "random", compute, list(dims))


def _dtype(node: Node, default: str) -> str:
    kind = node.attr("dtype")
    return default if kind is None else str(helper.tensor_dtype_to_np_dtype(kind))


@operator("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def _random(e: Emit, node: Node) -> Any:
    like, is_normal = node.needed(0) if node.op.endswith("Like") else None, "Normal" in node.op
    start = node.attr("mean" if is_normal else "low", 0.0)
    width = node.attr("scale", 1.0) if is_normal else node.attr("high", 1.0) - start
    dims = tuple(node.attr("shape") or ()) if like is None else like.sizes
    drawn = _drawn(e, node, dims, is_normal=is_normal) * e.const(width, "float32")
    return e.cast(drawn + e.const(start, "float32"), _dtype(node, "float32" if like is None else like.dtype))


@operator("Bernoulli", since=15)
def _bernoulli(e: Emit, node: Node, p: Value) -> Any:
    drawn = _drawn(e, node, p.sizes, is_normal=False)
    return e.cast(drawn < e.cast(p, "float32"), _dtype(node, p.dtype))


@operator("Multinomial", since=7)
def _multinomial(e: Emit, node: Node, data: Value, *, sample_size: int = 1) -> Any:
    """The class whose part of the sum of all probabilities the number falls into."""
    x = e.cast(data, "float32")
    if x.dims is None or len(x.sizes) != 2:
        raise node.refused(f"has the input {x}; expected (rows, classes)")
    rows, classes = x.sizes
    ends = e.cumsum(e.softmax(x, axis=1), axis=1)
    drawn = _drawn(e, node, (rows, sample_size, 1), is_normal=False)
    passed = e.expand_dims(ends, axis=[1]) <= drawn
    # the last end is 1 but for rounding, so it is not counted
    passed = e.strided_slice(passed, axes=[2], begin=[0], end=[-1])
    kind = helper.tensor_dtype_to_np_dtype(node.attr("dtype", TensorProto.INT32))
    if classes == 1:
        return e.zeros(e.shape((rows, sample_size)), dtype=str(kind))
    return e.sum(e.cast(passed, str(kind)), axis=2)
