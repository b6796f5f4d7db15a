"""Attention over a cache: one call of an operator that is kept whole; tests/e2e/test_language_model.py has models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tests.harness import accept, data, refuse, table_tests
from tvm_byoc_dnnl.frontends.onnx import walk  # noqa: F401 - declares the operator
from tvm_byoc_dnnl.whole.table import DOMAIN, NAME, operator


def _call(starts: Sequence[int], rows: int, total: int, *, sinks: bool = False, **attrs: Any) -> Callable[..., Any]:
    entry = operator(DOMAIN, NAME)
    assert entry is not None
    first = np.array(starts, "int64")
    numbers = [relax.const(x, "int64") for x in (first, first + rows, np.array([total]))]
    usual = {"scale": 0.0, "local_window_size": -1, "softcap": 0.0, "causal": 1, "qk_output": 0}

    def function(*x: Any) -> Any:
        behind = [None, x[5] if sinks else None]
        return entry.call([*x[:5], *numbers, *behind], usual | attrs, [True, True, True, False], "attention")

    return function


def _reference(
    starts: Sequence[int], total: int, scale: float = 0.0, local_window_size: int = -1, softcap: float = 0.0
) -> Callable[..., Any]:
    def function(query: Any, key: Any, value: Any, past_key: Any, past_value: Any, sinks: Any = None) -> Any:
        rows, length = query.shape[2], max(past_key.shape[2], total)
        caches = []
        for past, new in ((past_key, key), (past_value, value)):
            cache = np.zeros((*past.shape[:2], length, past.shape[3]))
            cache[:, :, : past.shape[2]] = past
            for sequence, start in enumerate(starts):
                cache[sequence, :, start : start + rows] = new[sequence]
            caches.append(cache)
        keys, values = (np.repeat(c, query.shape[1] // key.shape[1], axis=1) for c in caches)
        scores = query.astype("float64") @ keys.swapaxes(2, 3) * (scale or query.shape[3] ** -0.5)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        at = np.array(starts)[:, None, None, None] + np.arange(rows)[:, None]
        column = np.arange(length)
        seen = (column <= at) & ((local_window_size <= 0) | (column > at - local_window_size))
        scores = np.where(seen, scores, -np.inf)
        rest = np.full((*scores.shape[:3], 1), -np.inf)
        if sinks is not None:
            rest[:] = sinks[:, None, None]
        shares = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), rest))
        shares /= shares.sum(-1, keepdims=True) + np.exp(rest - np.maximum(scores.max(-1, keepdims=True), rest))
        return shares @ values, *caches

    return function


def _operands(
    batch: int, heads: int, groups: int, rows: int, past: int, width: int, dtype: str = "float32", cache: str = ""
) -> list[Any]:
    shapes = [*[(batch, groups, rows, width)] * 2, *[(batch, groups, past, width)] * 2]
    kept = [data(*shape, dtype=cache or dtype, low=-1, high=1 if cache != "int8" else 5) for shape in shapes]
    return [data(batch, heads, rows, width, dtype=dtype, low=-1, high=1), *kept]


#: where sequences begin to write; batch, heads, groups, rows, past, width; total; attributes
_ROWS: dict[str, tuple[list[int], tuple[int, ...], int, dict[str, Any]]] = {
    "one token": ([1], (1, 1, 1, 1, 2, 1), 2, {}),
    "sequences of their own lengths": ([5, 0, 7], (3, 6, 2, 2, 9, 5), 9, {}),
    "no past": ([0, 0], (2, 2, 1, 3, 0, 8), 3, {}),
    "a window and a softcap": ([5, 2], (2, 4, 2, 3, 8, 16), 8, {"local_window_size": 3, "softcap": 2.0}),
    "a scale": ([13], (1, 3, 3, 4, 17, 33), 17, {"scale": 0.25}),
}

ACCEPT = [
    *(
        accept(
            name,
            _call(starts, sizes[3], total, **attrs),
            *_operands(*sizes),
            reference=_reference(starts, total, **attrs),
        )
        for name, (starts, sizes, total, attrs) in _ROWS.items()
    ),
    *(
        accept(
            f"a cache in {cache}",
            _call([5, 0], 2, 9, scale=0.25),
            *_operands(2, 4, 2, 2, 9, 7, cache=cache),
            reference=_reference([5, 0], 9, scale=0.25),
        )
        for cache in ("bfloat16", "float16", "int8")
    ),
    accept(
        "sinks",
        _call([4, 6], 2, 8, sinks=True),
        *_operands(2, 4, 2, 2, 8, 8),
        data(4, low=-1, high=1),
        reference=_reference([4, 6], 8),
    ),
]


#: domain of an operator → the order of its inputs of x, cosines, sines and positions
_ORDERS = {"com.microsoft": (0, 3, 1, 2), "": (0, 1, 2, 3)}


def _turn(at: Any, domain: str, attrs: dict[str, int]) -> Callable[..., Any]:
    entry = operator(domain, "RotaryEmbedding")
    assert entry is not None

    def function(*x: Any) -> Any:
        inputs = [*x, relax.const(at, "int64")]
        return entry.call([inputs[i] for i in _ORDERS[domain]], attrs, [True], "rotary")

    return function


def _rotary(name: str, *sizes: int, rank: int = 4, domain: str = "com.microsoft", interleaved: int = 0) -> Any:
    """Heads at positions in tables of 20 rows."""
    batch, heads, rows, width, pairs = sizes
    at = np.random.default_rng(2).integers(0, 20, (batch, rows))
    attrs = {"num_heads": heads, "rotary_embedding_dim": 2 * pairs, "interleaved": interleaved}

    def reference(x: Any, cos: Any, sin: Any) -> Any:
        apart = x if rank == 4 else x.reshape(batch, rows, heads, width).swapaxes(1, 2)
        made = apart.astype("float64")
        a, b = np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2)
        if not interleaved:
            a, b = np.arange(pairs), np.arange(pairs, 2 * pairs)
        c, s = cos[at][:, None], sin[at][:, None]
        made[..., a] = apart[..., a] * c - apart[..., b] * s
        made[..., b] = apart[..., b] * c + apart[..., a] * s
        return made if rank == 4 else made.swapaxes(1, 2).reshape(x.shape)

    shape = (batch, heads, rows, width) if rank == 4 else (batch, rows, heads * width)
    tables = [data(20, pairs, low=-1, high=1) for _ in range(2)]
    return accept(name, _turn(at, domain, attrs), data(*shape, low=-1, high=1), *tables, reference=reference)


ACCEPT += [
    row
    for domain, of in (("com.microsoft", "ONNX Runtime"), ("", "ONNX"))
    for row in (
        _rotary(f"halves of heads, {of}", 2, 3, 5, 8, 4, domain=domain),
        _rotary(f"neighbours, of some columns, {of}", 1, 2, 7, 13, 3, interleaved=1, domain=domain),
        _rotary(f"heads side by side, {of}", 2, 3, 5, 8, 4, rank=3, domain=domain),
        _rotary(f"no rows, {of}", 1, 2, 0, 8, 4, domain=domain),
    )
]

REFUSE = [
    refuse(
        "float64",
        "attention of dtype float64; expected one of float32",
        _call([2, 3], 1, 4),
        *_operands(2, 2, 1, 1, 4, 8, "float64"),
    ),
    refuse(
        "angles in float64",
        "RotaryEmbedding of dtype float64",
        _turn(np.array([[1, 2]]), "com.microsoft", {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": 0}),
        data(1, 2, 2, 4, dtype="float64"),
        *(data(20, 2, dtype="float64") for _ in range(2)),
    ),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)
