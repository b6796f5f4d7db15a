"""Open sizes: equal ones have one form, whatever they were written as; comparisons are proved or refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tvm import tirx

from tvm_byoc_dnnl.frontends.onnx.dim import (
    Dim,
    Undecided,
    at_least,
    differ,
    equal,
    expr_of,
    max_of,
    min_of,
    product,
    quotient,
    size_of,
    substituted,
    symbols_of,
)
from tvm_byoc_dnnl.ir.tvm_compat import analyzer, substitute

N, M, H, W = (Dim.symbol(name) for name in "nmhw")


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (N + M, M + N),
        (N * H * W, W * N * H),
        ((N + M) * H, N * H + M * H),
        (2 * N - N * 2 + M, M),
        ((N * 64) // 64, N),
        ((N * H * W) // (H * W), N),
        ((N * H + M * H) // (N + M), H),
        (((N - 1) // 2 + 1 - 1) // 2 + 1, (N - 1) // 4 + 1),
        ((3 * N) // 2, N + N // 2),
        ((N + 7) // 4, (N + 3) // 4 + 1),
        (N // -3, (-N) // 3),
        (N % 4, N - N // 4 * 4),
        (max_of(N, 0), N),
        (min_of(N + 2, N), N),
        (max_of(N, M), max_of(M, N)),
        (product([N, 2, H]), 2 * N * H),
        (N - N, 0),
        (7 - (N - N), 7),
    ],
    ids=str,
)
def test_equal_sizes_are_one(a: Any, b: Any) -> None:
    assert a == b and equal(a, b) and not differ(a, b)
    assert hash(a) == hash(b)
    assert size_of(expr_of(a)) == a


VALUES = (0, 1, 2, 3, 5, 8)


def number(size: Any, values: dict[Any, int]) -> int:
    """The value of a size, by TVM's own arithmetic."""
    expr = substitute(expr_of(size), {s: tirx.IntImm("int64", v) for s, v in values.items()})
    return int(analyzer().simplify(expr))


@pytest.mark.parametrize(
    ("size", "python"),
    [
        (N * H + 3 * M - 2, lambda n, m, h: n * h + 3 * m - 2),
        ((N * 3 + 5) // 4 * 2, lambda n, m, h: (n * 3 + 5) // 4 * 2),
        ((N - 1) // 2 // 3 + M % 5, lambda n, m, h: (n - 1) // 2 // 3 + m % 5),
        (max_of(N - M, 0) * H, lambda n, m, h: max(n - m, 0) * h),
        (min_of(N, M // 2, 3), lambda n, m, h: min(n, m // 2, 3)),
        (-(-N // 3), lambda n, m, h: -(-n // 3)),
        ((N * 6 + M * 4 + 7) // 2, lambda n, m, h: (n * 6 + m * 4 + 7) // 2),
    ],
)
def test_sizes_are_computed_as_python_computes_them(size: Any, python: Any) -> None:
    symbols = [expr_of(s) for s in (N, M, H)]
    for values in itertools.product(VALUES, repeat=3):
        given = dict(zip(symbols, values, strict=True))
        assert number(size, given) == python(*values)
        assert substituted(size, given) == python(*values)


@pytest.mark.parametrize(
    ("a", "b", "holds"),
    [
        (N, 0, True),
        (N + 1, 1, True),
        (N, 1, False),
        (N * H + M, M, True),
        (N, min_of(N, 512), True),
        (N, N // 4 * 4, True),
        (max_of(N - 3, 0), N - 3, True),
        (N, M, False),
        (-N - 1, 0, False),
    ],
    ids=str,
)
def test_what_is_surely_not_below(a: Any, b: Any, holds: bool) -> None:
    assert at_least(a, b) is holds


def test_comparisons_that_depend_on_the_call_are_undecided() -> None:
    assert N + 1 > 0 and N >= 0 and not N < 0 and N > -1
    assert differ(N, N + 1) and bool(N + 1)
    for undecided in (lambda: N > 3, lambda: N < M, lambda: bool(N), lambda: N <= 3):
        with pytest.raises(Undecided):
            undecided()


def test_quotients_that_are_none() -> None:
    assert quotient(N * H, W) is None and quotient(N + 1, 2) is None and quotient(N, 0) is None
    assert quotient(12, 4) == 3 and quotient(13, 4) is None
    with pytest.raises(ZeroDivisionError):
        N // 0
    with pytest.raises(TypeError):
        N * 0.5


def test_symbols() -> None:
    found = symbols_of(max_of(N, M) + (H * N) // 3)
    assert {s.name for s in found} == {"n", "m", "h"} and len(found) == 3
    assert symbols_of(3) == []
