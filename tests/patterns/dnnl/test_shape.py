"""Shape operators: views, copies, and slices that no view can say."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import accept, data, refuse

op, nn = relax.op, relax.op.nn


def sliced(*where: slice | int, axes=None):
    """The same slice for Relax and NumPy."""
    axes = list(range(len(where))) if axes is None else axes

    def function(x):
        parts = [(s.start or 0, s.stop, s.step or 1) for s in where]
        return op.strided_slice(x, axes, *([p[i] for p in parts] for i in range(3)))

    def reference(x):
        index = [slice(None)] * x.ndim
        for axis, s in zip(axes, where, strict=True):
            index[axis] = s
        return x[tuple(index)]

    return function, reference


def padded(mode, *widths):
    """Padding for Relax and NumPy, whose edge and wrap are replicate and circular."""
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    numpy_mode = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    return lambda x: nn.pad(x, widths, mode), lambda x: np.pad(x, pairs, numpy_mode)


def row(name, function, reference, *operands, **options):
    return accept(name, function, *operands, reference=reference, **options)


SLICES = {
    "begin": ((7, 5), (slice(2, 6),)),
    "step": ((9, 5), (slice(0, 9, 4), slice(0, 5, 2))),
    "step-exact": ((8, 6), (slice(0, 8, 2), slice(1, 6, 3))),
    "step-past-the-end": ((1, 3, 7, 5), (slice(0, 1), slice(0, 3, 2), slice(2, 7, 3), slice(0, 5, 4))),
    "from-the-end": ((7, 5), (slice(-3, 7), slice(-5, -1))),
    "nothing": ((7, 5), (slice(3, 3),)),
    "backwards": ((7, 5), (slice(5, 0, -2), slice(4, 1, -1))),
}

ACCEPT = [
    *(row(f"slice-{name}", *sliced(*where), data(*shape)) for name, (shape, where) in SLICES.items()),
    *(
        row(f"slice-{dtype}", *sliced(slice(1, 6, 3)), data(7, 3, dtype=dtype, low=0, high=100))
        for dtype in ("bfloat16", "int8", "uint8", "bool")
    ),
    row("slice-everything", *sliced(slice(0, 7)), data(7, 1), prepare=False),
    *(
        row(f"pad-{mode}-{shape}-{widths}", *padded(mode, *widths), data(*shape))
        for mode in ("reflect", "replicate", "circular", "constant")
        for shape, widths in [((2, 3, 5, 7), (0, 0, 0, 0, 1, 1, 1, 1)), ((2, 5), (0, 0, 3, 2)), ((7,), (0, 1))]
    ),
    row("pad-replicate-one", *padded("replicate", 1, 1, 0, 0), data(1, 3)),
    row("pad-reflect-int8", *padded("reflect", 0, 2), data(7, dtype="int8", low=-100, high=100)),
    row("pad-nothing", *padded("reflect", 0, 0, 0, 1), data(0, 3)),
    row("flip", lambda x: op.flip(x, 1), lambda x: x[:, ::-1], data(3, 5, 2)),
    row("flip-last", lambda x: op.flip(x, -1), lambda x: x[:, ::-1], data(3, 1)),
]

REFUSE = [
    refuse("pad-reflect-wide", "reflect padding 0,9 is 10 slices", padded("reflect", 0, 9)[0], data(17)),
    refuse("pad-circular-too-wide", "circular padding 4,0 of an axis of 3", padded("circular", 4, 0)[0], data(3)),
    refuse("pad-reflect-too-wide", "reflect padding 3,0 of an axis of 3", padded("reflect", 3, 0)[0], data(3)),
    refuse("flip-long", "17 from back to front", lambda x: op.flip(x, 1), data(3, 17)),
    refuse("slice-backwards-long", "back to front", sliced(slice(16, 1, -1))[0], data(17, 2)),
    refuse("int64", "dtype int64", sliced(slice(1, 3))[0], data(7, dtype="int64")),
]


@pytest.mark.parametrize("case", ACCEPT)
def test_accepted(case):
    case.offloads().matches()


@pytest.mark.parametrize(("case", "reason"), REFUSE)
def test_refused(case, reason):
    case.is_refused(reason)
