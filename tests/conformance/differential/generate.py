"""The hypothesis strategy: whole functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from .draw import Draw, NoFit
from .operators import ROWS, calls_of_a_chain
from .program import Program

__all__ = ["programs"]

_ROWS = [function for weight, function in ROWS for _ in range(weight)]
#: the batch of a function with a symbol for it: a size that nothing else has
_BATCH = 6


@st.composite
def programs(draw: Callable[[Any], Any]) -> Program:
    """A function of up to a dozen calls: chains, diamonds, values used often or leaking, constants anywhere."""
    symbolic = draw(st.integers(0, 9)) == 9
    d = Draw(draw, _BATCH if symbolic else None)
    for _ in range(draw(st.integers(1, 2))):
        shape = d.shape(draw(st.sampled_from([4, 2, 3, 4, 1, 5, 0])))
        if symbolic and shape:
            shape = (_BATCH, *shape[1:])
        dtype = "float32" if d.often(8) else draw(st.sampled_from(["int32", "uint8", "bool", "float16", "bfloat16"]))
        d.operand(shape, dtype, constant=False)
    wanted = draw(st.sampled_from([4, 1, 2, 3, 5, 6, 8, 10, 12]))
    for _ in range(2 * wanted):
        if len(d.steps) < wanted:
            _attempt(d, draw(st.sampled_from(_ROWS)))
    if draw(st.integers(0, 5)) == 5:
        for _ in range(draw(st.integers(3, 12))):
            _attempt(d, calls_of_a_chain)
    assume(d.steps)
    program = d.program(_outputs(d, draw))
    if symbolic:
        try:
            assert program.module
        except Exception:  # an attribute that holds the batch, or a rule that Relax has for numbers only
            assume(False)
    return program


def _attempt(d: Draw, row: Callable[[Draw], object]) -> None:
    """One row; what it began stays, as calls that lead nowhere do in models."""
    with contextlib.suppress(NoFit):
        row(d)


def _outputs(d: Draw, draw: Callable[[Any], Any]) -> tuple[str, ...]:
    """The newest value, and sometimes others: inner ones, a parameter, the same twice."""
    names = [v.name for v in d.values if v.name[0] == "v"]
    outputs = [names[-1]]
    if draw(st.integers(0, 2)) == 2:
        outputs += draw(st.lists(st.sampled_from(names), max_size=3))
    if draw(st.integers(0, 19)) == 19:
        outputs.append(draw(st.sampled_from([v.name for v in d.values if v.name[0] == "x"])))
    return tuple(outputs)
