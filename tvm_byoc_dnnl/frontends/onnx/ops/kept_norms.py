"""Norms of ONNX Runtime: those that also give statistics, and those that add before they normalise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..emit import Emit
from ..table import operator
from ..value import Node, Type, Value
from .attention_parts import arange
from .norms import rms_norm

__all__: list[str] = []

R = relax.op
_MS = "com.microsoft"


def _statistics(x: Value, axis: int) -> Type:
    dims = x.sizes
    axis %= len(dims)
    return Type("float32", (*dims[:axis], *(1 for _ in dims[axis:])))


def _inverse(e: Emit, x: Value, axes: Sequence[int], epsilon: float, *, centred: bool) -> tuple[Value, Value]:
    """The mean, and 1 over the root of the mean square of what is left of it (or of all), float32."""
    wide = e.cast(x, "float32")
    mean = e.mean(wide, axis=list(axes), keepdims=True)
    rest = wide - mean if centred else wide
    square = e.mean(rest * rest, axis=list(axes), keepdims=True)
    return mean, e.const(1.0, "float32") / e.sqrt(square + epsilon)


def _rms_types(node: Node) -> list[Type]:
    x = node.needed(0)
    return [x.type, _statistics(x, int(node.attr("axis", -1)))]


@operator("SimplifiedLayerNormalization", types=_rms_types, whole=True)
def _root_mean_square(e: Emit, node: Node) -> list[Value | None]:
    x, scale = node.needed(0), node.needed(1)
    axis, epsilon = int(node.attr("axis", -1)), float(node.attr("epsilon", 1e-5))
    node.attr("stash_type")
    inverse = None
    if len(node.wanted) > 1 and node.wanted[1]:
        rank = len(x.sizes)
        _, inverse = _inverse(e, x, range(axis % rank, rank), epsilon, centred=False)
    return [rms_norm(e, x, scale, axis, epsilon), inverse]


# ---------------------------------------------------------------- a sum, then a norm
def _skip_types(node: Node) -> list[Type]:
    x = node.needed(0)
    return [x.type, _statistics(x, -1), _statistics(x, -1), x.type]


def _sum(e: Emit, x: Value, skip: Value, bias: Value | None) -> Value:
    total = x + skip
    return total if bias is None else total + bias


@operator("SkipSimplifiedLayerNormalization", domain=_MS, types=_skip_types, whole=True)
def _skip_root(e: Emit, node: Node, x: Value, *, epsilon: float = 1e-12) -> list[Value | None]:
    total = _sum(e, x, node.needed(1), node.input(3))
    return [rms_norm(e, total, node.needed(2), -1, epsilon), *_wanted_statistics(e, node, total, epsilon, False), total]


@operator("SkipLayerNormalization", domain=_MS, types=_skip_types, whole=True)
def _skip_norm(e: Emit, node: Node, x: Value, *, epsilon: float = 1e-12) -> list[Value | None]:
    total = _sum(e, x, node.needed(1), node.input(4))
    out = _layer_norm(e, total, node.needed(2), node.input(3), epsilon)
    return [out, *_wanted_statistics(e, node, total, epsilon, True), total]


def _layer_norm(e: Emit, x: Value, gamma: Value, beta: Value | None, epsilon: float) -> Value:
    if beta is None:
        beta = e.const(np.zeros(gamma.shape or (1,)), gamma.dtype)
    return e.layer_norm(x, gamma, beta, axes=[-1], epsilon=epsilon)


def _wanted_statistics(
    e: Emit, node: Node, total: Value, epsilon: float, centred: bool
) -> tuple[Value | None, Value | None]:
    if not any(node.wanted[1:3]):
        return None, None
    return _inverse(e, total, [-1], epsilon, centred=centred)


# ---------------------------------------------------------------- embeddings
def _embedded_types(node: Node) -> list[Type]:
    ids, words = node.needed(0), node.needed(2)
    dims = (*ids.sizes, words.sizes[1])
    return [Type(words.dtype, dims), Type("int32", (dims[0],)), Type(words.dtype, dims)]


@operator("EmbedLayerNormalization", domain=_MS, types=_embedded_types, whole=True)
def _embed_norm(e: Emit, node: Node) -> list[Value | None]:
    ids, segments, words, places, parts = (node.input(i) for i in range(5))
    assert ids is not None
    assert words is not None
    assert places is not None
    mask, positions = node.input(7), node.input(8)
    node.attr("mask_index_type")
    batch, length = ids.sizes
    total = e.take(words, e.cast(ids, "int64"), axis=0)
    if positions is None:
        rows = e.reshape(e.take(places, arange(e, length), axis=0), [1, length, places.sizes[1]])
    else:
        rows = e.take(places, e.cast(positions, "int64"), axis=0)
    total = total + rows
    if parts is not None and segments is not None:
        total = total + e.take(parts, e.cast(segments, "int64"), axis=0)
    out = _layer_norm(e, total, node.needed(5), node.needed(6), float(node.attr("epsilon", 1e-12)))
    ends = None
    if len(node.wanted) > 1 and node.wanted[1]:
        ends = (
            e.expand(e.const(np.zeros(1, "int32")), [batch])
            if mask is None
            else e.sum(e.cast(e.equal(mask, 1), "int32"), axis=[1])
        )
    return [out, ends, total]


# ---------------------------------------------------------------- groups, with channels last
def _group_types(node: Node) -> list[Type]:
    return [node.needed(0).type, node.needed(0).type]


@operator("GroupNorm", domain=_MS, types=_group_types, whole=True)
def _group_norm(e: Emit, node: Node, x: Value) -> Value:
    return _grouped(e, node, x)


@operator("SkipGroupNorm", domain=_MS, types=_group_types, whole=True)
def _skip_group_norm(e: Emit, node: Node, x: Value) -> list[Value | None]:
    skip, bias = node.needed(3), node.input(4)
    dims = x.sizes
    if skip.rank == 2:
        skip = e.reshape(skip, [dims[0], 1, 1, dims[3]])
    total = _sum(e, x, skip, bias)
    return [_grouped(e, node, total), total]


def _grouped(e: Emit, node: Node, x: Value) -> Value:
    is_last = node.attr("channels_last", 1)
    moved = e.transpose(x, [0, 3, 1, 2]) if is_last else x
    gamma, beta = (e.cast(node.needed(i), x.dtype) for i in (1, 2))
    groups, epsilon = int(node.attr("groups")), float(node.attr("epsilon", 1e-5))
    out = e.group_norm(moved, gamma, beta, num_groups=groups, channel_axis=1, axes=[2, 3], epsilon=epsilon)
    if node.attr("activation", 0):
        out = e.silu(out)
    return e.transpose(out, [0, 2, 3, 1]) if is_last else out
