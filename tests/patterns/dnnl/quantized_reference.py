"""Quantised operands, and exact integers as the reference: float64 holds every sum of products here."""

from __future__ import annotations

import math

import numpy as np

from tests.harness import const

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}
SCALE, WEIGHTS, RESULT = 0.02, 0.003, 0.11
ERF = np.vectorize(math.erf, otypes=["float64"])


def number(value, dtype="float32"):
    return const(values=np.asarray(value), dtype=dtype)


def whole(*shape, dtype="int8", make=const, worst=False, seed=0, most=255):
    """Bytes, up to the ends of their range or only these; of magnitudes up to ``most``."""
    low, high = np.clip(RANGES[dtype], -most, most)
    rng = np.random.default_rng(sum(shape) + seed)
    values = rng.choice([low, high, high], shape) if worst else rng.integers(low, high + 1, shape)
    return make(values=values, dtype=dtype)


def spread(value, rank, axis):
    value = np.asarray(value)
    return value.reshape([-1 if i == axis else 1 for i in range(rank)]) if value.size > 1 else value.reshape(())


def stored(value, scale, zero, dtype):
    return np.clip(np.round(value / scale) + zero, *RANGES[dtype])


def within_a_step(case, share=0.02):
    """The results against the reference; the nearest integer may be another one where a value lies halfway."""
    wanted = case.reference(*[a.astype("float64") for a in case.arrays])
    for got, want in zip(case.run(), wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        off = np.abs(got.astype("float64") - want)
        assert off.max() <= 1, f"{(off > 1).sum()} of {off.size} are off, by up to {off.max()}"
        assert (off > 0).mean() <= share
    return case


def windows(x, kernel, stride, pad):
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    return np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))[:, :, ::stride, ::stride]


def convolved(x, w, stride=1, pad=0, groups=1):
    parts = zip(np.split(x, groups, 1), np.split(w, groups), strict=True)
    sums = [np.einsum("nihwyx,oiyx->nohw", windows(a, b.shape[2:], stride, pad), b) for a, b in parts]
    return np.concatenate(sums, 1)
