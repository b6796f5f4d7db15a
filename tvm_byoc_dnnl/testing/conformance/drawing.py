"""The choice of some out of many cases."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import groupby

from .case import Case


def drawn(cases: Sequence[Case], share: float, draw: random.Random) -> list[Case]:
    """About ``share`` of the cases in their order, the first of each subject among them."""
    found = []
    for _, group in groupby(cases, key=lambda case: case.subject):
        first, *others = group
        kept = set(draw.sample(range(len(others)), round(len(others) * share)))
        found += [first, *(case for i, case in enumerate(others) if i in kept)]
    return found


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """``count`` of the cases, from all over; all, where there are fewer."""
    if len(cases) <= count:
        return list(cases)
    return [cases[i * len(cases) // count] for i in range(count)]
