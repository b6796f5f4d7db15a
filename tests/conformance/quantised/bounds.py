"""What the definition of a quantised operator allows its result to be: a lowest and a highest number per element.

The operators of ONNX are defined in real numbers, and steps between integers in float32. Two things are left open: the
order in which a sum is added, and the last bits of a division or an exponential. So a real number is an interval here,
a few roundings of float32 wide, and `stored` rounds and clamps both of its ends. Where no half lies between the ends,
which is nearly everywhere, one integer is right and no other. What was clamped has two equal ends, whatever was in
front of it: a result whose clamp is lost lies outside.

Steps whose float32 result is defined to the last bit (dequantise, move, pick, relu, clip, quantise) do not widen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

__all__ = ["RANGES", "Real", "Whole", "real", "stored", "widened"]

RANGES = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
#: roundings of float32 that a sum of this package's sizes may be off by, as a share of its largest operand
_ROUNDING = 2.0**-21


@dataclass(frozen=True)
class Real:
    """Real numbers: their ends, and the largest number that took part in making them.

    ``exact``: both ends are float32 numbers that the definition gives.
    """

    low: np.ndarray
    high: np.ndarray
    size: float
    exact: bool = True

    @property
    def middle(self) -> np.ndarray:
        """The number that it most likely is."""
        return (self.low + self.high) / 2

    def each(self, function) -> Real:  # type: ignore[no-untyped-def]
        """A function that never decreases, and gives float32 numbers for float32 numbers."""
        return Real(function(self.low), function(self.high), self.size, self.exact)


@dataclass(frozen=True)
class Whole:
    """Integers of a dtype with a scale and a zero point."""

    low: np.ndarray
    high: np.ndarray
    dtype: str
    scale: np.ndarray
    point: np.ndarray
    axis: int | None = None

    def spread(self, value: np.ndarray) -> np.ndarray:
        """A scale or zero point in a shape that broadcasts."""
        if self.axis is None:
            return value
        return value.reshape([-1 if i == self.axis else 1 for i in range(self.low.ndim)])


def real(whole: Whole) -> Real:
    """Dequantised: a difference of integers times the scale, in float32."""
    scale, point = whole.spread(whole.scale), whole.spread(whole.point).astype("float64")
    ends = [((end - point).astype("float32") * scale).astype("float64") for end in (whole.low, whole.high)]
    limits = RANGES.get(whole.dtype, (-1, 1))
    size = float(whole.scale.max()) * max(abs(float(limit) - float(p)) for limit in limits for p in np.ravel(point))
    return Real(*ends, size=size)


def stored(x: Real, scale: np.ndarray, point: np.ndarray, dtype: str, axis: int | None = None) -> Whole:
    """Quantised: divided in float32, rounded to even, moved, clamped."""
    whole = Whole(x.low, x.high, dtype, np.asarray(scale, "float32"), np.asarray(point), axis)
    unit, moved = whole.spread(whole.scale), whole.spread(whole.point).astype("float64")
    if x.exact:
        ends = [(end.astype("float32") / unit).astype("float64") for end in (x.low, x.high)]
    else:
        ends = [end / unit * (1 + side * 2.0**-22 * np.sign(end)) for end, side in ((x.low, -1), (x.high, 1))]
    ends = [np.clip(np.rint(end) + moved, *RANGES[dtype]) for end in ends]
    return replace(whole, low=ends[0], high=ends[1])


def widened(low: np.ndarray, high: np.ndarray, size: float | np.ndarray, of: float = _ROUNDING) -> Real:
    """The result of an operation whose roundings are open: ``of`` is their share of ``size``."""
    room = of * np.asarray(size)
    return Real(low - room, high + room, max(float(np.max(size, initial=0)), 1e-30), exact=False)
