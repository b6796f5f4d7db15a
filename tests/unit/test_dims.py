"""Arithmetic on open dims."""

from __future__ import annotations

import pytest

from tvm_byoc_dnnl.graph.sizes import whole_factor

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
    ],
)
def test_no_whole_factor(dim, of):
    assert whole_factor(dim, of) is None
