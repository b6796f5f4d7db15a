"""When results are equal: relative to the largest value, and where calls are chained to what rounding alone changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["TOLERANCES", "difference", "nudged"]

#: Largest error, relative to the largest value of the result. TVM approximates several functions to float32's
#: precision whatever the dtype; float16 rounds each tensor once.
TOLERANCES: dict[str, float] = {"float64": 1e-5, "float32": 1e-5, "float16": 2**-8}

#: What a chain may be off, in changes that the rounding of its input makes: each of its calls rounds too.
_ROUNDINGS = 4


def nudged(arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """The arrays rounded up and rounded down by one place; nothing where none is a float."""
    if not any(a.dtype.kind == "f" for a in arrays):
        return []
    ends = [np.inf, -np.inf]
    return [[np.nextafter(a, a.dtype.type(end)) if a.dtype.kind == "f" else a for a in arrays] for end in ends]


def difference(
    got: Sequence[np.ndarray],
    want: Sequence[np.ndarray],
    tolerances: Mapping[str, float],
    nearby: Sequence[Sequence[np.ndarray]] = (),
) -> str:
    """What is wrong with the results, ``""`` where they are right.

    Parameters
    ----------
    got, want : sequence of ndarray
        The results, and what they should be.
    tolerances : mapping of str to float
        Dtype → largest error, see `TOLERANCES`.
    nearby : sequence of sequence of ndarray
        What the results should be for `nudged` inputs. Where a chain of calls is ill-conditioned, as ``tan`` of ``tan``
        is near its poles, two correct libraries differ as these do.
    """
    if len(got) != len(want):
        return f"{len(got)} results instead of {len(want)}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if g.shape != w.shape:
            return f"result {i} has shape {g.shape} instead of {w.shape}"
        within = tolerances.get(str(g.dtype), 0.0)
        a, b = g.astype("float64"), w.astype("float64")
        with np.errstate(invalid="ignore"):
            gap = np.abs(a - b)
            allowed = within * (np.abs(b) + np.abs(b[np.isfinite(b)]).max(initial=0))
            for other in nearby:
                allowed = allowed + _ROUNDINGS * np.nan_to_num(np.abs(other[i].astype("float64") - b), posinf=0)
            wrong = ~((a == b) | (gap <= allowed) & np.isfinite(b) | np.isnan(a) & np.isnan(b))
        if wrong.any():
            excess = np.where(wrong, np.nan_to_num(gap, nan=np.inf), -1.0)
            worst = np.unravel_index(np.argmax(excess), a.shape)
            place = tuple(map(int, worst))
            return f"result {i} differs: {g[worst]} instead of {w[worst]} at {place}, tolerance {within:g} ({g.dtype})"
    return ""
