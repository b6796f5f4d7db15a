"""Finds blocks of calls that a network repeats, as the layers of a transformer, so that one of each can be drawn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ..calls.model import CallReport


@dataclass(frozen=True)
class Repeat:
    """Equal blocks of calls that follow each other.

    Attributes
    ----------
    first, length, times : int
        The id of the first call, the calls of one block, and how many blocks there are.
    """

    first: int
    length: int
    times: int

    @property
    def end(self) -> int:
        """The id after the last call of the last block."""
        return self.first + self.length * self.times


def find_repeats(calls: Sequence[CallReport]) -> list[Repeat]:
    """The blocks that save most boxes, in program order; they do not overlap."""
    known: dict[Hashable, int] = {}
    words = [known.setdefault((c.label, c.compiler, c.output, c.attrs, len(c.inputs)), len(known)) for c in calls]
    operands = np.full((len(calls), max((len(c.inputs) for c in calls), default=0)), -1, dtype=np.int64)
    for row, call in zip(operands, calls):
        row[: len(call.inputs)] = call.inputs
    return _search(np.array(words, dtype=np.int64), operands, 0, len(calls))


def _search(words: np.ndarray, operands: np.ndarray, first: int, end: int) -> list[Repeat]:
    found = (_longest(words, operands, first, end, length) for length in range(2, (end - first) // 2 + 1))
    best = max(found, key=_saved, default=None)
    if best is None or best.times < 2:
        return []
    return [*_search(words, operands, first, best.first), best, *_search(words, operands, best.end, end)]


def _saved(repeat: Repeat) -> tuple[int, int]:
    return repeat.length * (repeat.times - 1), -repeat.length


def _longest(words: np.ndarray, operands: np.ndarray, first: int, end: int, length: int) -> Repeat:
    """The longest run of blocks of this length: of the same calls, with the same operands or those of their block."""
    one, next_one = slice(first, end - length), slice(first + length, end)
    step = operands[next_one] - operands[one]
    differs = np.flatnonzero((words[one] != words[next_one]) | ((step != 0) & (step != length)).any(axis=1))
    ends = np.concatenate([[-1], differs, [end - first - length]])
    at = int(np.argmax(np.diff(ends)))
    return Repeat(first + int(ends[at]) + 1, length, (int(ends[at + 1]) - int(ends[at]) - 1) // length + 1)
