"""Attention: two products and a softmax, on views of the queries, keys and values.

    query (B, S, H, D) ── permute (0, 2, 1, 3) ──┐
    key   (B, T, H, D) ── permute (0, 2, 3, 1) ──┴─ matmul ── · scale ── + bias ── softmax ──┐
    value (B, T, H, E) ── permute (0, 2, 1, 3) ──────────────────────────────────────────────┴─ matmul ── permute

A memory descriptor says the permutations, so nothing is copied. A causal mask is a constant bias: oneDNN has none of
its own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...vendor import (
    CACHED_ATTENTION,
    GraphBuilder,
    Scope,
    Value,
    attributes_of,
    dtype_of,
    inputs_of,
    make_constant,
    register_lowering,
    require,
    rewrite_pass,
    static_shape,
    wanted_of,
)
from .common import require_float

_OPS = ("relax.nn.attention", "relax.nn.attention_bias")


@register_lowering("dnnl", list(_OPS))
def attention(g: GraphBuilder, call: Any) -> Value:
    """Scaled dot-product attention with a bias or a causal mask, without copies of its operands."""
    query, key, value, *bias = (g.value(a) for a in call.args)
    require_float(call.op.name, query, key, value, *bias)
    mask, window = call.attrs.causal_mask, call.attrs.window_size
    require(window is None, f"attention in a window of {window}")
    require(mask is None, f"attention with the causal mask {mask} of queries {query.shape} and keys {key.shape}")
    scale = 1 / math.sqrt(_width(query)) if call.attrs.scale is None else float(call.attrs.scale)
    heads, keys = g.permute(query, (0, 2, 1, 3)), g.permute(key, (0, 2, 3, 1))
    shape = (*heads.shape[:3], keys.shape[-1])
    scores = g.eltwise(g.emit("matmul", [heads, keys], shape), "linear", scale)
    for operand in bias:
        scores = g.binary("add", scores, operand, shape)
    shares = g.emit("softmax", [scores], shape, alg="accurate", axis=3)
    values = g.permute(value, (0, 2, 1, 3))
    out = g.emit("matmul", [shares, values], (*shape[:3], values.shape[-1]))
    return g.permute(out, (0, 2, 1, 3))


@register_lowering("dnnl", CACHED_ATTENTION)
def cached_attention(g: GraphBuilder, call: Any) -> tuple[Value, ...]:
    """Attention over a cache of keys and values in which each sequence has its own length, with windows and sinks."""
    query, key, value, past_key, past_value, starts, ends, _, bias, sinks = inputs_of(call)
    attrs = attributes_of(call)
    require(past_key is not None and past_value is not None, "attention over a cache that it does not read")
    require(bias is None, "attention over a cache with a bias")
    require(bool(attrs["causal"]), "attention over a cache that is not causal")
    require(not wanted_of(call)[3], "attention over a cache that gives its scores")
    query, starts, ends = g.value(query), g.value(starts), g.value(ends)
    types = call.ty.fields[1:3]
    caches = []
    for past, new, ty in zip((past_key, past_value), (key, value), types, strict=True):
        rows = [g.value(past), g.value(new)]
        for row in rows:
            require(row.dtype == "float32", f"attention over a cache of dtype {row.dtype}; expected float32")
        caches.append(g.emit("append", [*rows, starts, ends], g.shape_of(ty)))
    out = g.emit(
        "cached_attention",
        [query, *caches, starts, *([] if sinks is None else [g.value(sinks)])],
        (*query.shape[:3], caches[1].shape[3]),
        scale=float(attrs["scale"]) or 1 / math.sqrt(_width(query)),
        window=max(0, int(attrs["local_window_size"])),
        softcap=float(attrs["softcap"]),
    )
    return (out, *caches)


def _width(query: Value) -> int:
    width = query.shape[-1]
    require(isinstance(width, int) and width > 0, f"attention whose default scale is that of width {width}")
    assert isinstance(width, int)
    return width


# ---------------------------------------------------------------- causal masks
def _causal(scope: Scope, call: Any) -> Any:
    """The mask as a bias: -∞ where a query must not see a key."""
    mask = call.attrs.causal_mask
    query, key = (static_shape(a.ty) for a in call.args[:2])
    if mask is None or call.attrs.window_size is not None or query is None or key is None:
        return None
    rows, columns = query[1], key[1]
    if mask == "BottomRight" and columns < rows:  # the first queries would see nothing
        return None
    diagonal = columns - rows if mask == "BottomRight" else 0
    hidden = np.triu(np.full((1, 1, rows, columns), -np.inf, "float32"), diagonal + 1)
    bias = make_constant(hidden, dtype_of(call.args[0].ty))
    if len(call.args) > 3:
        bias = scope.emit(relax.op.add(call.args[3], bias))
    return relax.op.nn.attention(*call.args[:3], bias, scale=call.attrs.scale)


def CausalMasks() -> tvm.transform.Pass:
    """Causal masks of attention as constant biases, where all sizes are known."""
    return rewrite_pass("CausalMasks", {op: [_causal] for op in _OPS})
