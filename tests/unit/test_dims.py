"""Arithmetic on open dims."""

from __future__ import annotations

import itertools

import pytest
from tvm import tirx

from tvm_byoc_dnnl.graph.sizes import whole_factor
from tvm_byoc_dnnl.ir.relax_utils import straight_line

HALF = ("//", ("-", "h", 1), 2)


@pytest.mark.parametrize(
    ("dim", "of", "factor"),
    [
        ("h", "h", 1),
        (("*", "h", 2), "h", 2),
        (("*", 4, "h"), "h", 4),
        (("+", ("*", HALF, 8), 8), ("+", HALF, 1), 8),
        (("-", ("*", "h", 6), ("+", 9, ("*", 3, "w"))), ("-", ("*", 2, "h"), ("+", "w", 3)), 3),
        (("+", ("*", "h", "w"), ("*", "h", "w")), ("*", "h", "w"), 2),
        (12, 4, 3),
        (("-", ("+", "h", "w"), "w"), "h", 1),
        (("*", ("//", ("+", "h", 31), 32), 2), ("+", ("//", ("-", "h", 1), 32), 1), 2),
        (("//", ("+", ("*", "h", 9), 7), 4), ("+", ("//", ("+", ("-", "h", 4), 3), 4), ("+", ("*", "h", 2), 2)), 1),
        (("//", ("+", ("*", "h", 6), 2), 3), "h", 2),
    ],
)
def test_a_whole_factor(dim, of, factor):
    assert whole_factor(dim, of) == factor


@pytest.mark.parametrize(
    ("dim", "of"),
    [
        ("h", "w"),
        ("h", ("*", "h", 2)),
        (("+", "h", 1), "h"),
        (("+", ("*", "h", 2), 1), ("+", "h", 1)),
        (("*", "h", -1), "h"),
        (("*", "h", "h"), "h"),
        (8, "h"),
        ("h", 8),
        (0, 0),
        (("-", "h", "h"), "h"),
        (("//", ("+", "h", 1), 2), ("//", "h", 2)),
        (("//", "h", 2), ("//", "h", 4)),
    ],
)
def test_no_whole_factor(dim, of):
    assert whole_factor(dim, of) is None


@pytest.mark.parametrize(("times", "plus", "by"), itertools.product((-2, 0, 1, 4, 5, 6), (0, 3, 8), (1, 2, 3, 4)))
def test_a_straight_line_is_one_everywhere(times: int, plus: int, by: int) -> None:
    """``5 * n // 4`` is one at 0, 1 and 2 alone."""
    line = straight_line(lambda n: tirx.floordiv(n * times + plus, by))
    values = [(times * n + plus) // by for n in range(40)]
    steps = {b - a for a, b in itertools.pairwise(values)}
    if line is None:
        assert len(steps) > 1 or steps.pop() < 1
    else:
        assert (int(line[0]), {line[1]}) == (values[0], steps)
