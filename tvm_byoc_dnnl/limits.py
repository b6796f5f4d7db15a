"""Limits of what a model and a call may ask for, each with its reason; `docs/limits.md` shows this table.

A model or a call beyond a limit is refused with an error that names the limit, before memory or time is spent on it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIMITS", "MOST_ELEMENTS", "MOST_SAMPLES", "Limit"]


@dataclass(frozen=True)
class Limit:
    """One limit.

    Attributes
    ----------
    name : str
        Its name in this module.
    value : int
        The largest value that is accepted.
    what : str
        What is counted.
    reason : str
        What would happen without it.
    """

    name: str
    value: int
    what: str
    reason: str


MOST_ELEMENTS = 1 << 38
MOST_SAMPLES = 1 << 10

LIMITS = (
    Limit(
        "MOST_ELEMENTS",
        MOST_ELEMENTS,
        "elements of one tensor whose sizes a call computes",
        "the number of bytes would not fit into 64 bits, and a small buffer would be written beyond its end",
    ),
    Limit(
        "MOST_SAMPLES",
        MOST_SAMPLES,
        "samples along one axis of one bin of roi_align",
        "a box of 10⁹ pixels is sampled 10¹⁸ times",
    ),
)
