"""Whether a result is right: the one rule of `verify`, of the conformance kit, of the benchmarks and of the tests.

Shape and dtype are those that are wanted. Booleans are equal, and integers too, unless some steps are allowed: a device
that rounds a half in its own way is one step off. A NaN is where a NaN is wanted, an infinity
where that infinity is wanted, and nowhere else. A finite float may be off by a tolerance, relative to the largest
finite value that is wanted: a sum cancels, so the error of a small element is as large as that of a large one. Where
nothing cancels, `elementwise` asks for more: the tolerance is then relative to each element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import InputError

#: Dtype → largest error. float32: sums of some hundred products in another order, and vectorised functions that are
#: good to a few units in the last place. float64: TVM approximates several functions to float32's precision whatever
#: the dtype. float16 and bfloat16 round each tensor once, by 2^-11 and 2^-9, and a library keeps or rounds the values
#: between two fused steps. Every other dtype is exact.
TOLERANCES: dict[str, float] = {"float64": 1e-5, "float32": 2e-5, "float16": 2**-8, "bfloat16": 2**-6}
#: Dtypes whose errors may be allowed as a number of steps.
STEPS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")

#: Error allowed for a chain of calls, in changes that the rounding of its input makes: each of its calls rounds too.
_ROUNDINGS = 4


def as_tolerances(given: Mapping[str, Any]) -> dict[str, float]:
    """Dtype → largest error, as numbers: ``{"float32": 1e-4, "int8": "1 step"}``; an `InputError` where one is none."""
    found = {}
    for dtype, value in given.items():
        words = str(value).split()
        in_steps = dtype in STEPS
        try:
            number = float(words[0])
        except (IndexError, ValueError):
            number = -1.0
        is_right = words[1:] in ([], ["step"], ["steps"]) and number.is_integer() if in_steps else len(words) == 1
        if dtype not in (*TOLERANCES, *STEPS) or not is_right or not 0 <= number < np.inf:
            raise InputError(
                f"tolerance {dtype}={value}; expected a share of the largest value as in float32=1e-4, of "
                f"{', '.join(TOLERANCES)}, or steps as in int8=1, of {', '.join(STEPS)}"
            )
        found[dtype] = number
    return found


def difference(
    got: Any,
    want: Any,
    tolerance: float | Mapping[str, float] | None = None,
    *,
    least: float = 0.0,
    slack: Any = 0.0,
    elementwise: bool = False,
) -> str:
    """The error in a result, ``""`` where it is right.

    Parameters
    ----------
    got, want : array
        The result, and the expected result.
    tolerance : float or mapping of str to float, optional
        Largest error relative to the largest finite value of ``want``, or one for each dtype; `TOLERANCES` by default.
        For integers it is a number of steps.
    least : float
        What counts as the largest value where all of ``want`` is smaller, for results that cancel.
    slack : float or array
        Added to the error that is allowed, see `sensitivity`.
    elementwise : bool
        Whether the tolerance is relative to each element of ``want`` instead of the largest.
    """
    got, want = np.asarray(got), np.asarray(want)
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"is {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    tolerance = _number(tolerance, want)
    mask = wrong(got, want, tolerance, least=least, slack=slack, elementwise=elementwise)
    if not mask.any():
        return ""
    worst = np.unravel_index(np.argmax(np.where(mask, _errors(got, want), -1.0)), mask.shape)
    return (
        f"differs: {got[worst]} instead of {want[worst]} at {tuple(map(int, worst))}, "
        f"{np.count_nonzero(mask)} of {got.size} wrong, tolerance {tolerance:g} ({want.dtype})"
    )


def wrong(
    got: np.ndarray,
    want: np.ndarray,
    tolerance: float | Mapping[str, float] | None = None,
    *,
    least: float = 0.0,
    slack: Any = 0.0,
    elementwise: bool = False,
) -> np.ndarray:
    """Where a result of the right shape and dtype is wrong, as a mask; the arguments are those of `difference`."""
    errors = _errors(got, want)
    scale = np.maximum(np.abs(want.astype("float64")), least) if elementwise else _largest(want, least)
    with np.errstate(invalid="ignore"):
        return errors > np.where(np.isinf(errors), 0.0, _number(tolerance, want) * scale + slack)


def differences(
    got: Sequence[Any],
    want: Sequence[Any],
    tolerance: float | Mapping[str, float] | None = None,
    *,
    least: float = 0.0,
    slack: Sequence[Any] = (),
    elementwise: bool = False,
) -> str:
    """The error in the first of several results that is not right; see `difference`."""
    if len(got) != len(want):
        return f"{len(got)} results instead of {len(want)}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        allowed = slack[i] if slack else 0.0
        if found := difference(g, w, tolerance, least=least, slack=allowed, elementwise=elementwise):
            return f"result {i} {found}"
    return ""


def gap(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest error of several results, relative to the largest finite value of each.

    It is infinite where a shape, a dtype, a NaN or an infinity differs.
    """
    if len(got) != len(want):
        return float("inf")
    worst = 0.0
    for a, b in zip(map(np.asarray, got), map(np.asarray, want), strict=True):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return float("inf")
        worst = max(worst, float(_errors(a, b).max(initial=0.0)) / (_largest(b, 0.0) or 1.0))
    return worst


def nudged(arrays: Sequence[np.ndarray], tolerances: Mapping[str, float] | None = None) -> list[list[np.ndarray]]:
    """The arrays rounded up and rounded down by one place, integers by the steps that are allowed of their dtype.

    Nothing where nothing moves.
    """
    steps = {dtype: number for dtype, number in (tolerances or {}).items() if dtype in STEPS and number}
    if not any(a.dtype.kind == "f" or str(a.dtype) in steps for a in arrays):
        return []

    def moved(array: np.ndarray, end: float) -> np.ndarray:
        if array.dtype.kind == "f":
            return np.nextafter(array, array.dtype.type(end))
        if str(array.dtype) not in steps:
            return array
        info, by = np.iinfo(array.dtype), int(np.copysign(steps[str(array.dtype)], end))
        limits = (info.min, info.max - by) if by > 0 else (info.min - by, info.max)
        return np.asarray(np.clip(array, *limits) + array.dtype.type(by), array.dtype)

    return [[moved(a, end) for a in arrays] for end in (np.inf, -np.inf)]


def sensitivity(want: Sequence[Any], nearby: Sequence[Sequence[Any]]) -> list[Any]:
    """The ``slack`` of each result, from the expected results for `nudged` inputs.

    Where a chain of calls is ill-conditioned, as ``tan`` of ``tan`` is near its poles, two correct libraries differ as
    these do.
    """
    slack = []
    for i, w in enumerate(want):
        center = np.asarray(w).astype("float64")
        with np.errstate(invalid="ignore"):
            changes = [np.abs(np.asarray(other[i]).astype("float64") - center) for other in nearby]
        slack.append(_ROUNDINGS * sum(np.nan_to_num(c, posinf=0) for c in changes))
    return slack


def _number(tolerance: float | Mapping[str, float] | None, want: np.ndarray) -> float:
    if isinstance(tolerance, (int, float)):
        return tolerance
    return (TOLERANCES if tolerance is None else tolerance).get(str(want.dtype), 0.0)


def _errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """The error of each element, infinite where only one side is finite."""
    if want.dtype.kind == "b":
        return np.where(got == want, 0.0, np.inf)
    if want.dtype.kind in "iu":  # float64 does not hold every 64-bit integer
        return np.where(got == want, 0.0, np.maximum(np.abs(got.astype("float64") - want.astype("float64")), 1.0))
    a, b = got.astype("float64"), want.astype("float64")
    with np.errstate(invalid="ignore"):
        errors = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return np.where(np.isnan(errors), np.inf, errors)


def _largest(want: np.ndarray, least: float) -> float:
    if want.dtype.kind in "biu":
        return 1.0
    wide = np.abs(want.astype("float64"))
    return max(float(wide[np.isfinite(wide)].max(initial=0.0)), least)
