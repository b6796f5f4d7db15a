"""Mixtures of experts: of many small networks each row takes a few, chosen by a router."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..dim import product
from ..emit import Emit
from ..table import operator
from ..value import Node, Type, Value
from .attention_parts import arange, columns, split_last
from .quantised_blocks import unpacked

__all__: list[str] = []

R = relax.op
_MS = "com.microsoft"


def _types(node: Node) -> list[Type]:
    return [node.needed(0).type]


@operator("MoE", domain=_MS, types=_types, whole=True)
def _mixture(e: Emit, node: Node) -> Value:
    layers = [(node.input(i), node.input(i + 1)) for i in (2, 4, 6)]
    return _mixed(e, node, layers)


@operator("QMoE", domain=_MS, types=_types, whole=True)
def _quantised_mixture(e: Emit, node: Node) -> Value:
    for name in ("accuracy_level", "weights_prepacked"):
        node.attr(name)
    if node.attr("quant_type", "int") != "int":
        raise node.refused(f"has weights of the kind `{node.attr('quant_type')}`; expected int")
    for position in range(14, 21):
        if node.input(position) is not None:
            raise node.refused(f"has its input {position}, which ONNX Runtime computes on no CPU")
    default = node.attr("expert_weight_bits", 4)
    layers = []
    for layer, i in enumerate((2, 5, 8), 1):
        bits = node.attr(f"fc{layer}_expert_weight_bits") or default
        weights = None if node.input(i) is None else _real(e, node, i, 10 + layer, bits)
        layers.append((weights, node.input(i + 2)))
    return _mixed(e, node, layers)


def _real(e: Emit, node: Node, position: int, zeros_at: int, bits: int) -> Value:
    """Weights [E, N, K] of numbers with a scale for each row, or for each block of it."""
    if bits not in (2, 4, 8):
        raise node.refused(f"has weights of {bits} bits; expected 2, 4 or 8")
    stored = node.known(position, "the weights of its experts")
    scales = node.known(position + 1, "the scales of its experts")
    k = stored.shape[-1] * 8 // bits
    numbers = unpacked(stored, bits, k).astype("float32")
    block = int(node.attr("block_size", 0) or 0) or k
    scales = scales.reshape(*stored.shape[:2], -1)
    places = np.arange(k) // block
    origin: Any = float(1 << (bits - 1))
    if node.input(zeros_at) is not None:
        packed = node.known(zeros_at, "the zero points of its experts").reshape(*stored.shape[:2], -1)
        origin = unpacked(packed, bits, scales.shape[-1]).astype("float32")[..., places]
    return e.const(((numbers - origin) * scales[..., places]).astype("float32"))


def _mixed(e: Emit, node: Node, layers: list[tuple[Value | None, Value | None]]) -> Value:
    """Each row through every expert, with a share that is 0 for those that it does not take."""
    x, scores = node.needed(0), node.needed(1)
    if node.attr("use_sparse_mixer", 0):
        raise node.refused("has `use_sparse_mixer`, which ONNX Runtime computes on no CPU")
    if node.attr("swiglu_limit_after_activation", 0):
        raise node.refused("has `swiglu_limit_after_activation`")
    (up, up_bias), (down, down_bias), (gate, gate_bias) = layers
    assert up is not None
    assert down is not None
    dims = x.dims or ()
    rows = e.reshape(x, [1, product(dims[:-1]), dims[-1]])
    count = (up.dims or ())[0]
    hidden = _each(e, rows, up, up_bias)
    kind = node.attr("activation_type", "relu")
    if kind == "swiglu":
        hidden = _swiglu(e, node, hidden)
    else:
        hidden = _activation(e, node, hidden, kind)
        for name in ("activation_alpha", "activation_beta", "swiglu_fusion", "swiglu_limit"):
            node.attr(name)
        if gate is not None:
            hidden = e.call(R.multiply, hidden, _each(e, rows, gate, gate_bias))
    out = _each(e, hidden, down, down_bias)  # (E, rows, width)
    share = e.transpose(_shares(e, node, scores, count), [1, 0])
    share = e.reshape(share, [count, product(dims[:-1]), 1])
    mixed = e.call(R.sum, e.call(R.multiply, *e.broadcast(out, share)), axis=[0])
    return e.reshape(mixed, dims)


def _each(e: Emit, x: Value, weights: Value, bias: Value | None) -> Value:
    out = e.call(R.matmul, x, e.transpose(weights, [0, 2, 1]))
    if bias is None:
        return out
    experts, width = bias.dims or ()
    return e.call(R.add, *e.broadcast(out, e.reshape(bias, [experts, 1, width])))


def _activation(e: Emit, node: Node, x: Value, kind: str) -> Value:
    functions = {"relu": R.nn.relu, "gelu": R.nn.gelu, "silu": R.nn.silu}
    if kind == "identity":
        return x
    if kind not in functions:
        raise node.refused(f"has the activation `{kind}`")
    return e.call(functions[kind], x)


def _swiglu(e: Emit, node: Node, x: Value) -> Value:
    """``g · sigmoid(alpha · g) · (u + beta)`` of pairs of neighbouring columns, or of halves."""
    fusion, limit = node.attr("swiglu_fusion", 0), node.attr("swiglu_limit")
    alpha, beta = float(node.attr("activation_alpha", 1.0)), float(node.attr("activation_beta", 0.0))
    *lead, width = x.dims or ()
    if fusion == 1:
        pairs = e.reshape(x, [*lead, width // 2, 2])
        gate, up = (e.reshape(columns(e, pairs, len(lead) + 1, i, i + 1), [*lead, width // 2]) for i in range(2))
    elif fusion == 2:
        gate, up = split_last(e, x, [width // 2, width // 2])
    else:
        raise node.refused("has swiglu of weights that are apart (`swiglu_fusion` 0)")
    if limit is not None:
        gate = e.call(R.minimum, gate, e.const(limit, x.dtype))
        up = e.call(R.maximum, e.call(R.minimum, up, e.const(limit, x.dtype)), e.const(-limit, x.dtype))
    open_ = e.call(R.multiply, gate, e.call(R.sigmoid, e.call(R.multiply, gate, alpha)))
    return e.call(R.multiply, open_, e.call(R.add, up, beta))


def _shares(e: Emit, node: Node, scores: Value, count: Any) -> Value:
    """``(rows, experts)``: the share that each expert has in a row; 0 for those that are not among its best."""
    k = int(node.attr("k", 1))
    shares = e.call(R.nn.softmax, e.cast(scores, "float32"), axis=-1)
    best = e.bb.emit(R.topk(e.tensor(scores), k=k, axis=-1, ret_type="indices", largest=True, dtype="int64"))
    each = e.reshape(e.value(best), [*(scores.dims or ())[:-1], k, 1])
    taken = e.cast(e.call(R.equal, each, arange(e, count)), "float32")  # (rows, k, experts)
    kept = e.call(R.multiply, shares, e.call(R.sum, taken, axis=[-2]))
    if not node.attr("normalize_routing_weights", 0):
        return kept
    return e.call(R.divide, kept, e.call(R.sum, kept, axis=[-1], keepdims=True))
