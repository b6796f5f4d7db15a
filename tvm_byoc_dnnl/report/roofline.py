"""The limits of this machine: how fast it computes, and how fast it reads its memory."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

_BYTES = {"f32": 4, "s32": 4, "f16": 2, "bf16": 2, "s8": 1, "u8": 1}
_PRODUCT = 1536
_BUFFER = 1 << 28  # bytes, more than any cache


class Roof:
    """Peak arithmetic and bandwidth of the memory.

    Parameters
    ----------
    gflops : float
        Billions of operations per second.
    gbytes : float
        Billions of bytes per second.
    """

    def __init__(self, gflops: float, gbytes: float) -> None:
        self.gflops, self.gbytes = gflops, gbytes

    def seconds(self, flops: float, size: float) -> float:
        """The least time for so many operations on so many bytes."""
        return max(flops / self.gflops, size / self.gbytes) / 1e9


def _best(run: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def roof(threads: int) -> Roof:
    """Measure both: a large product in float32, and a large buffer read by all threads."""
    a = np.random.default_rng(0).standard_normal((_PRODUCT, _PRODUCT), dtype="float32")
    out = np.empty_like(a)
    product = _best(lambda: np.matmul(a, a, out=out), 8)
    parts = np.array_split(np.ones(_BUFFER // 4, "float32"), threads)
    with ThreadPoolExecutor(threads) as pool:
        reading = _best(lambda: list(pool.map(np.max, parts)), 8)
    return Roof(2 * _PRODUCT**3 / product / 1e9, _BUFFER / reading / 1e9)


def bytes_of(layout: str) -> int:
    """The size of a tensor whose layout is written as ``f32:acdb:1x64x56x56``."""
    dtype, _, *dims = layout.split(":")
    return _BYTES.get(dtype, 0) * math.prod(int(d) for d in dims[-1].split("x") if d)
