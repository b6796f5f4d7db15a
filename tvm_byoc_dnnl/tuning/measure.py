"""Measured times, with a word on how far they can be trusted."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.machine_load import Neighbours

_BLOCK_S = 0.02  # of one block of calls: shorter ones are below the resolution of /proc/stat
_BLOCKS = 5
_WARM_UP_S = 0.05  # of calls that do not count, before a block in turns with others
_ATTEMPTS = 3  # a block in which others kept the cores busy is measured again so many times


@dataclass(frozen=True)
class Timing:
    """The time of one call.

    Attributes
    ----------
    seconds : float
        Median over the blocks.
    spread : float
        (slowest - fastest block) / median.
    quiet : bool
        Whether other processes left the cores alone in these blocks; those that they disturbed do not count, unless
        they disturbed all.
    blocks : int
        How many blocks count.
    """

    seconds: float
    spread: float
    quiet: bool
    blocks: int = 1


def measure(call: Callable[[], object], budget_s: float) -> Timing:
    """The time of one call, after a first one that does not count.

    Parameters
    ----------
    call : callable
        What to measure.
    budget_s : float
        Seconds after which no further block begins. A first call that takes longer is the only one.
    """
    deadline = time.perf_counter() + budget_s
    first = _block(call, 1)
    if first[0] > budget_s > 0:
        return summary([first])
    once = _block(call, 1)[0]
    count = max(1, int(_BLOCK_S / max(once, 1e-7)))
    blocks = [_quiet_block(call, count, deadline) for _ in range(_BLOCKS) if time.perf_counter() < deadline]
    return summary(blocks or [(once, False)])


def race(calls: Sequence[Callable[[], object]], rounds: int) -> list[Timing]:
    """The times of several calls that take turns, so that a change of the machine's speed meets all of them.

    Before each turn are calls that do not count, because libraries with thread pools of their own disturb each other
    for a while. A turn in which other processes kept the cores busy is repeated.
    """
    turns = [Turns(call) for call in calls]
    blocks = [[each.next() for each in turns] for _ in range(rounds)]
    return [summary(each) for each in zip(*blocks, strict=True)]


class Turns:
    """Blocks of calls of one of several that take turns."""

    def __init__(self, call: Callable[[], object]) -> None:
        call()
        self._call = call
        self._count = max(1, int(_BLOCK_S / max(_block(call, 1)[0], 1e-7)))

    def next(self) -> tuple[float, bool]:
        """Seconds of one call, and whether other processes left the cores alone."""
        return _quiet_block(self._call, self._count, math.inf, _WARM_UP_S)


def _block(call: Callable[[], object], count: int) -> tuple[float, bool]:
    with Neighbours() as neighbours:
        started = time.perf_counter()
        for _ in range(count):
            call()
        seconds = time.perf_counter() - started
    return seconds / count, neighbours.quiet


def _quiet_block(call: Callable[[], object], count: int, deadline: float, warm_up_s: float = 0.0) -> tuple[float, bool]:
    """A block that nothing disturbed, if one of a few attempts is so; else the fastest."""
    attempts: list[tuple[float, bool]] = []
    while not attempts or (not attempts[-1][1] and len(attempts) < _ATTEMPTS and time.perf_counter() < deadline):
        warm = time.perf_counter() + warm_up_s
        while time.perf_counter() < warm:
            call()
        attempts.append(_block(call, count))
    return attempts[-1] if attempts[-1][1] else min(attempts)


def summary(blocks: Sequence[tuple[float, bool]]) -> Timing:
    """The median of the blocks that nothing disturbed; of all where there are no such."""
    quiet = [seconds for seconds, was_quiet in blocks if was_quiet]
    times = quiet or [seconds for seconds, _ in blocks]
    middle = statistics.median(times)
    return Timing(middle, (max(times) - min(times)) / middle, bool(quiet), len(times))
