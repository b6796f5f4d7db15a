"""Attention with keys and values of before: ONNX's operator, and those of ONNX Runtime."""

from __future__ import annotations

from typing import Any

from ..dim import Size
from ..emit import Emit, pieces, split_last
from ..table import operator
from ..value import Node, Value, listed
from .attention_parts import Mask, attend, column, joined, split_heads, written

_MS = "com.microsoft"


@operator("Attention", since=23, whole=True)
def _onnx_attention(e: Emit, node: Node, query: Value, key: Value, value: Value) -> list[Value | None]:
    is_flat, heads, own = query.rank == 3, node.attr("q_num_heads", 0), node.attr("kv_num_heads", 0)
    if is_flat:
        if not heads or not own:
            raise node.wrong("has inputs of rank 3 and no `q_num_heads` or `kv_num_heads`")
        query, key, value = split_heads(e, query, heads), split_heads(e, key, own), split_heads(e, value, own)
    past_key, past_value, valid = map(node.input, (4, 5, 6))
    before: Size = 0
    if past_key is not None and past_value is not None:
        before = past_key.sizes[2]
        key, value = _behind(e, past_key, key), _behind(e, past_value, value)
    rows, length = query.sizes[2], key.sizes[2]
    mask = Mask(e, query.dtype)
    _add_mask(e, mask, node.input(3), length)
    position = column(e, rows) + listed(before)  # of each row
    if valid is not None:
        valid = e.reshape(e.cast(valid, "int64"), [query.sizes[0], 1, 1, 1])
        mask.require(e.places(length) < valid, hides_all=True)
        if past_key is None:
            rest = valid - listed(rows)
            position = column(e, rows) + rest
    if node.attr("is_causal", 0):
        mask.see(e.places(length), position, right=0, hides_all=valid is not None)
    left, right = (node.attr(f"{side}_window_size", -1) for side in ("left", "right"))
    mask.see(e.places(length), position, left=left, right=right, hides_all=True)
    node.unused("softmax_precision")  # the scores are float32, or as precise as that
    found = attend(e, query, key, value, scale=node.attr("scale"), mask=mask, softcap=float(node.attr("softcap", 0.0)))
    mode = node.attr("qk_matmul_output_mode", 0)
    scores = (found.scaled, found.capped, found.biased, found.shares)[mode]
    return [joined(e, found.out) if is_flat else found.out, key, value, scores]


def _behind(e: Emit, past: Value, new: Value) -> Value:
    if past.dims is not None and new.dims is not None:
        past = e.agree(past, [*new.sizes[:2], past.sizes[2], new.sizes[3]])
    return e.concat([past, new], 2)


def _add_mask(e: Emit, mask: Mask, given: Value | None, length: Size) -> None:
    """ONNX's mask: what is kept, or what is added; a shorter one hides the keys behind its end."""
    if given is None:
        return
    dims = given.sizes
    own = dims[-1]
    if isinstance(own, int) and isinstance(length, int) and 1 < own < length:
        widths = [0, 0] * (len(dims) - 1) + [0, length - own]
        filled = 0.0 if given.dtype == "bool" else float("-inf")
        wide = e.cast(given, "int32") if given.dtype == "bool" else given
        given = e.cast(e.pad(wide, pad_width=widths, pad_value=filled), given.dtype)
    if given.dtype == "bool":
        mask.require(given, hides_all=True)
    else:
        mask.add(given)
        mask.may_hide_all = True


# ---------------------------------------------------------------- com.microsoft
def _add_padding(e: Emit, mask: Mask, given: Value | None, batch: Size, length: Size, penalty: float) -> None:
    """ONNX Runtime's masks: ends, ends and starts, or a number for each key, also for each row."""
    if given is None:
        return
    dims, rank = given.sizes, given.rank
    if rank == 1:
        count, ends, starts = dims[0], given, None
        if count == 2 * batch:
            ends, starts = pieces(e, e.reshape(given, [2, batch]), 0, 2)
        elif isinstance(count, int) and isinstance(batch, int) and count != batch:
            raise e.refused(f"has a mask of {count} numbers for a batch of {batch}, a form that no CPU computes")
        one, shape = e.places(length), [batch, 1, 1, 1]
        seen = one < e.reshape(e.cast(ends, "int64"), shape)
        if starts is not None:
            seen = seen & (one >= e.reshape(e.cast(starts, "int64"), shape))
        mask.penalise(seen, penalty)
        return
    if rank not in (2, 3):
        raise e.refused(f"has a mask of rank {rank}, a form that no CPU computes")
    shape = [dims[0], 1, 1, dims[1]] if rank == 2 else [dims[0], 1, dims[1], dims[2]]
    mask.penalise(e.reshape(given, shape) > 0, penalty)


def run_attention(
    e: Emit,
    node: Node,
    query: Value,
    key: Value,
    value: Value,
    padding: Value | None,
    bias: Value | None,
    *,
    before: Value,
    end: Value | None = None,
) -> Any:
    """Attention of ONNX Runtime's older operators, on ``(B, N, S, H)``.

    ``before`` is the length of the past, ``end`` that of all keys, where there is room for more.
    """
    batch, _, rows, _ = query.sizes
    length = key.sizes[2]
    mask = Mask(e, query.dtype)
    _add_padding(e, mask, padding, batch, length, float(node.attr("mask_filter_value", -10000.0)))
    if bias is not None:
        mask.add(bias)
    if end is not None:
        mask.require(e.places(length) < end)
    if node.attr("unidirectional", 0):
        mask.see(e.places(length), column(e, rows) + before, right=0)
    return attend(e, query, key, value, scale=node.attr("scale", 0.0) or None, mask=mask)


@operator("MultiHeadAttention", domain=_MS, whole=True)
def _multi_head_attention(e: Emit, node: Node, *, num_heads: Any = None) -> list[Value | None]:
    if node.input(9) is not None:
        raise node.refused("has `cache_indirection`, which is for beam search inside of the model; export without it")
    query, key, value = _mha_operands(e, node, num_heads)
    past_key, past_value, length = map(node.input, (6, 7, 8))
    before, end, present = listed(0), None, None
    if past_key is not None and past_value is not None and length is None:
        before = listed(past_key.sizes[2])
        key, value = _behind(e, past_key, key), _behind(e, past_value, value)
    elif past_key is not None and past_value is not None and length is not None:
        before = e.reshape(e.cast(length, "int64"), [1])  # rows of the past that are used: behind them go the new ones
        start, size, end = e.expand(before, [query.sizes[0]]), past_key.sizes[2], before + listed(key.sizes[2])
        present, (key, value) = (
            [written(e, *pair, start, size, keeps_rest=keeps) for pair in ((past_key, key), (past_value, value))]
            for keeps in (True, False)
        )
    found = run_attention(e, node, query, key, value, node.input(4), node.input(5), before=before, end=end)
    return [joined(e, found.out), *(present or (key, value)), found.biased]


def _mha_operands(e: Emit, node: Node, heads: int) -> Any:
    """Queries, keys and values as ``(B, N, S, H)``, with the bias."""
    query, key, bias = node.needed(0), node.input(1), node.input(3)
    if query.rank == 5:
        if bias is not None:
            raise node.refused("has a bias of packed queries, keys and values")
        return tuple(_packed(e, query, 3))
    if key is not None and key.rank == 5:
        if bias is not None:
            raise node.refused("has a bias of packed keys and values")
        return (split_heads(e, query, heads), *_packed(e, key, 2))
    operands = [query, node.needed(1), node.needed(2)]
    if bias is not None:
        width = query.sizes[2]
        wide = value.sizes[2] if (value := operands[2]).rank == 3 else heads * value.sizes[3]
        parts = split_last(e, bias, [width, width, wide])
        for i, part in enumerate(parts):
            if operands[i].rank == 3:
                operands[i] = operands[i] + part
            elif i == 0:
                raise node.wrong("has queries of rank 4 and a bias")
    return [split_heads(e, x, heads) if x.rank == 3 else x for x in operands]


def _packed(e: Emit, x: Value, count: int) -> Any:
    """``count`` tensors ``(B, N, S, H)`` of ``(B, S, N, count, H)``."""
    return [e.transpose(part, [0, 2, 1, 3]) for part in pieces(e, x, 3, count)]


@operator("Attention", domain=_MS, whole=True)
def _attention(e: Emit, node: Node, x: Value, weights: Value, bias: Value | None = None) -> list[Value | None]:
    product = e.matmul(x, weights)
    if bias is not None:
        product = product + bias
    return attention_of_product(e, node, product, mask=node.input(3), past=node.input(4), bias=node.input(5))


def attention_of_product(
    e: Emit, node: Node, product: Value, *, mask: Value | None, past: Value | None, bias: Value | None = None
) -> list[Value | None]:
    """Attention of ``product (B, S, q + k + v)``, with a past ``(2, B, N, P, H)``; also gives the present."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if node.attr(name, 0):
            raise node.refused(f"has `{name}`, which ONNX Runtime computes on no CPU")
    node.unused("rotary_embedding_dim")
    heads = int(node.attr("num_heads"))
    width = product.sizes[2]
    sizes = list(node.attr("qkv_hidden_sizes") or (width // 3,) * 3)
    query, key, value = (split_heads(e, part, heads) for part in split_last(e, product, sizes))
    before = listed(0)
    if past is not None:
        before = listed(past.sizes[3])
        key, value = (_behind(e, *pair) for pair in zip(pieces(e, past, 0, 2), (key, value), strict=True))
    found = run_attention(e, node, query, key, value, mask, bias, before=before)
    return [joined(e, found.out), e.stack([key, value], 0) if any(node.wanted[1:2]) else None]
