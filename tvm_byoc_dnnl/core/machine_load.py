"""The share of the cores that other processes use, which decides whether a measured time can be trusted."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["QUIET", "Neighbours"]

#: Share of this process's cores; if other processes use more than this, measured times are not reliable.
QUIET = 0.1
# Fields of a row of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal (by other virtual machines).
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)


class Neighbours:
    """A block, and the share of the usable cores that others took while it ran.

    Attributes
    ----------
    share : float
        0 to 1, known at the end of the block: other processes', and other virtual machines' on the same host. It is 0
        where the system does not say.
    """

    share: float = 0.0

    def __enter__(self) -> Neighbours:
        self._start = _sample()
        return self

    def __exit__(self, *_: object) -> None:
        busy, own, wall = (after - before for before, after in zip(self._start, _sample(), strict=True))
        cores = len(os.sched_getaffinity(0))
        self.share = min(max((busy - own) / (wall * cores), 0.0), 1.0)

    @property
    def quiet(self) -> bool:
        """Whether other processes took less than `QUIET`."""
        return self.share <= QUIET


def _sample() -> tuple[float, float, float]:
    """Seconds: of work on the usable cores, of this process's work, of the clock."""
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        rows = []
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = sum(int(row[1:][i]) for row in rows if row and row[0] in usable for i in _BUSY_FIELDS)
    return ticks / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()
