"""Operators of ONNX Runtime's domain that are older forms of the standard's, or small sums of others."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim
from ..emit import Emit
from ..table import operator
from ..value import Node, Type, Value
from .attention_parts import number
from .quantised_blocks import shaped

__all__: list[str] = []

R = relax.op
_MS = "com.microsoft"


# ---------------------------------------------------------------- those that became the standard's
_BECAME = {"GatherND": 12, "GridSample": 16, "Pad": 13, "Range": 11, "Trilu": 14}


@operator(*_BECAME, domain=_MS)
def _standard(e: Emit, node: Node, x: Value) -> Value:
    inputs = list(node.inputs)
    if node.op == "Range" and len(inputs) < 3:
        inputs.append(e.const(1, x.dtype))
    attrs = {name: node.attr(name) for name in node.attrs}
    return e.onnx(node.op, *inputs, opset=_BECAME[node.op], **attrs)


@operator("ExpandDims", domain=_MS)
def _expand_dims(e: Emit, node: Node, x: Value) -> Value:
    return e.expand_dims(x, axis=[int(i) for i in node.ints(1, "its axis") or ()])


@operator("ConvTransposeWithDynamicPads", domain=_MS)
def _conv_transpose(e: Emit, node: Node, x: Value) -> Value:
    attrs = {name: node.attr(name) for name in node.attrs}
    if node.input(2) is not None:
        attrs["pads"] = tuple(int(n) for n in node.ints(2, "its pads") or ())
    given = [x, node.needed(1), *([node.needed(3)] if node.input(3) is not None else [])]
    return e.onnx("ConvTranspose", *given, opset=11, **attrs)


# ---------------------------------------------------------------- integers
@operator("ReduceSumInteger", domain=_MS)
def _sum(e: Emit, node: Node, x: Value, *, keepdims: int = 1) -> Value:
    axes, keep = list(node.attr("axes")), bool(keepdims)
    return e.sum(e.cast(x, "int32"), axis=axes, keepdims=keep)


@operator("MulInteger", domain=_MS)
def _product(e: Emit, node: Node) -> Value:
    factors = []
    for i in (0, 2):
        whole = e.cast(node.needed(i), "int32")
        zero = node.input(i + 1)
        factors.append(whole if zero is None else whole - e.cast(zero, "int32"))
    return e.multiply(*e.broadcast(*factors))


# ---------------------------------------------------------------- distances, complex numbers
@operator("CDist", domain=_MS)
def _distances(e: Emit, node: Node, a: Value, b: Value, *, metric: str = "sqeuclidean") -> Value:
    """Of each row of A and each of B."""
    (m, k), (n, other) = a.sizes, b.sizes
    apart = e.reshape(a, [m, 1, k]) - e.reshape(b, [1, n, other])
    square = e.sum(apart * apart, axis=[2])
    if metric not in ("euclidean", "sqeuclidean"):
        raise node.wrong(f"has the metric `{metric}`; expected euclidean or sqeuclidean")
    return e.sqrt(square) if metric == "euclidean" else square


@operator("ComplexMul", "ComplexMulConj", domain=_MS)
def _complex(e: Emit, node: Node, data: Value) -> Value:
    """Products of pairs along the last axis, the second perhaps conjugated."""
    parts = []
    for x in (data, node.needed(1)):
        rank = len(x.sizes)
        parts.append([e.strided_slice(x, axes=[rank - 1], begin=[i], end=[i + 1]) for i in range(2)])
    (a, b), (c, d) = parts
    if node.op == "ComplexMulConj":
        d = -d
    real = _times(e, a, c) - _times(e, b, d)
    imaginary = _times(e, a, d) + _times(e, b, c)
    return e.concat([real, imaginary], -1)


def _times(e: Emit, a: Value, b: Value) -> Value:
    return a * b


@operator("Unique", domain=_MS, value=lambda node: _unique(node))
def _unknown_unique(_e: Emit, node: Node) -> Value:
    raise node.refused("has a result whose size depends on the numbers of a call")


def _unique(node: Node) -> Any:
    x = node.needed(0)
    if not x.is_constant or x.known is None:
        return None
    found, first, counts = np.unique(x.known, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    place = {value: i for i, value in enumerate(found[order].tolist())}
    return [found[order], np.array([place[v] for v in x.known.tolist()], "int64"), counts[order].astype("int64")]


# ---------------------------------------------------------------- a convolution over time that goes on
@operator("CausalConvWithState", domain=_MS, whole=True)
def _causal(e: Emit, node: Node) -> list[Value | None]:
    """Each channel with a filter of its own, on the last columns of before and the new ones."""
    for name, usual in (("ndim", 1), ("dilation", 1), ("channels_last", 0), ("state_window", 0), ("input_channels", 0)):
        if node.attr(name, usual) != usual:
            raise node.refused(f"has {name}={node.attr(name)}; expected {usual}")
    x, weights, bias, past = node.needed(0), node.needed(1), node.input(2), node.input(3)
    batch, channels, length = x.sizes
    width = weights.sizes[2]
    if isinstance(width, Dim) or isinstance(channels, Dim):
        raise node.refused("has a filter, or channels, of an open number; fix it")
    if past is None:
        past = e.expand(e.const(np.zeros((1, 1, 1)), x.dtype), [batch, channels, width - 1])
    whole = e.concat([past, x], 2)
    out = e.conv1d(whole, weights, groups=channels)
    if bias is not None:
        out = out + e.reshape(bias, [1, channels, 1])
    kind = node.attr("activation", "none")
    if kind in ("silu", "swish"):
        out = e.silu(out)
    elif kind != "none":
        raise node.refused(f"has the activation `{kind}`")
    last = number(length) + e.const(np.arange(width - 1))
    state = e.take(whole, last, axis=2)
    return [e.agree(out, x.sizes), e.agree(state, [batch, channels, width - 1])]


# ---------------------------------------------------------------- weights of bitsandbytes
_NORMAL = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_HALVES = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
#: the numbers that four bits stand for, by `quant_type`
_TABLES = ((*_HALVES, *(-v for v in _HALVES)), _NORMAL)


def _product_types(node: Node) -> list[Type]:
    x = node.needed(0)
    return [Type(x.dtype, (*x.sizes[:-1], int(node.attr("N"))))]


@operator("MatMulBnb4", domain=_MS, types=_product_types, whole=True)
def _bits_and_bytes(e: Emit, node: Node, x: Value, *, transB: int = 1) -> Value:
    k, n, block, kind = (int(node.attr(name)) for name in ("K", "N", "block_size", "quant_type"))
    if kind not in (0, 1):
        raise node.refused(f"has quant_type {kind}; expected 0 or 1")
    node.attr("training_mode")
    if not transB:
        raise node.refused("has weights that are not transposed (`transB` 0)")
    stored = node.known(1, "its weights").reshape(-1)
    scales = shaped(node, "scales", node.known(2, "its scales"), (-(-n * k // block),))
    pairs = np.stack([stored >> 4, stored & 15], -1).reshape(-1)[: n * k]
    real = np.array(_TABLES[kind], "float32")[pairs] * np.repeat(scales, block)[: n * k]
    weights = e.const(np.ascontiguousarray(real.reshape(n, k).T.astype(x.dtype)))
    return e.matmul(x, weights)
