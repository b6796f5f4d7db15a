"""Regions that are not worth a call of oneDNN: measured by ``python -m bench.regions``, one thread against one.

TVM fuses its calls, so a cheap call between them is not faster in oneDNN at any size. And two operations are slower in
oneDNN than in TVM's own loops at any size: a reduction over a few neighbouring elements, which has a fixed cost for
each result, and a small window over rows of a channels-first image, which is copied before it is pooled. In a region
with products both are worth it: they read data that is in the cache, in the layout of a convolution.
"""

from __future__ import annotations

import math
from typing import Any

from ...vendor import RegionPolicy, Work, is_cheap, static_shape
from .common import ints

_REDUCTIONS = tuple(f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod"))
_POOLS = tuple(f"relax.nn.{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3))
#: results; with fewer of them either takes a microsecond
_MANY = 1024
#: elements from which on a reduction gains
_LONG = 32
#: elements of the windows that lose
_SMALL_WINDOW = 4


class DnnlPolicy(RegionPolicy):
    """Leave a region to TVM if it has only cheap calls beside calls of TVM, or if its only real work is slow here."""

    def why_not(self, work: Work) -> str:
        """The reason why a region is not worth a call, ``""`` when it is."""
        slow = [(call, why) for call in work.calls if (why := _why_slow(call))]
        lone = all(is_cheap(call) or any(call is s for s, _ in slow) for call in work.calls)
        if slow and lone:
            return f"{', '.join(work.ops)}: {slow[0][1]}"
        return super().why_not(work)


def _why_slow(call: Any) -> str:
    """The reason why a call is slower than TVM's own code for it, ``""`` where it is not."""
    name = call.op.name
    if name not in _REDUCTIONS + _POOLS:
        return ""
    shape, out = (static_shape(ty) for ty in (call.args[0].ty, call.ty))
    if shape is None or out is None or math.prod(out) < _MANY:
        return ""
    if name in _REDUCTIONS:
        axes = sorted(range(len(shape)) if call.attrs.axis is None else (a % len(shape) for a in ints(call.attrs.axis)))
        is_pooling = name == "relax.mean" and 3 <= len(shape) <= 5 and axes == list(range(2, len(shape)))
        width = math.prod(shape[a] for a in axes)
        if axes == list(range(len(shape) - len(axes), len(shape))) and width < _LONG and not is_pooling:
            return (
                f"oneDNN takes longer than TVM to reduce {width} elements at a time, and nothing here makes up for it"
            )
    if name in _POOLS:
        window = math.prod(ints(call.attrs.pool_size))
        if window <= _SMALL_WINDOW and str(call.attrs.layout).startswith("NC"):
            return f"oneDNN takes longer than TVM for windows of {window} in {call.attrs.layout}"
    return ""
