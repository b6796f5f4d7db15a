"""Pooling, 1-D to 3-D: windows, padding, ceil_mode, layouts; against TVM's own kernels."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.harness import Case, accept, data, refuse, table_tests

op, nn = relax.op, relax.op.nn
SPATIAL = (7, 9, 5)
LOWEST = float(np.finfo("float32").min)


def pool(kind, d, size=3, **options):
    f = getattr(nn, f"{kind}_pool{d}d")
    return lambda x: f(x, [size] * d if isinstance(size, int) else size, **options)


def adaptive(d, out, **options):
    f = getattr(nn, f"adaptive_avg_pool{d}d")
    return lambda x: f(x, out, **options)


def padded(d, value, before=1, after=1):
    def function(x):
        wide = nn.pad(x, [0, 0, 0, 0, *[before, after] * d], "constant", value)
        return getattr(nn, f"max_pool{d}d")(wide, [3] * d, [2] * d)

    return function


def cases(kind, d):
    """Rows of a pooling over ``d`` axes."""
    spatial, last = SPATIAL[:d], "N" + "DHW"[3 - d :] + "C"
    plain = (2, 3, *spatial)
    yield "plain", pool(kind, d), plain
    yield "stride-padding", pool(kind, d, strides=[2] * d, padding=[1] * d), plain
    yield "uneven-padding", pool(kind, d, padding=[0] * d + [2] * d), plain
    yield "ceil", pool(kind, d, strides=[2] * d, padding=[1] * d, ceil_mode=True, size=2), plain
    if d == 2:  # the last window of each axis would begin in the padding
        yield "ceil-behind", pool(kind, d, strides=[3] * d, padding=[1] * d, ceil_mode=True, size=2), (2, 3, 4, 7)
    yield "whole", pool(kind, d, size=spatial), plain
    yield "channels-last", pool(kind, d, layout=last, strides=[2] * d), (2, *spatial, 17)
    yield "one", pool(kind, d, size=1), (1, 1, *[1] * d)
    yield "no-batch", pool(kind, d), (0, 3, *spatial)
    if kind == "avg":
        yield "count-padding", pool(kind, d, padding=[1] * d, count_include_pad=True), plain
        yield "leave-padding", pool(kind, d, padding=[1] * d, count_include_pad=False), plain


ACCEPT = [
    *(
        accept(f"{kind}_pool{d}d-{name}", function, data(*shape))
        for kind in ("max", "avg")
        for d in (1, 2, 3)
        for name, function, shape in cases(kind, d)
    ),
    *(
        accept(f"adaptive{d}d-{shape}-{out}", adaptive(d, list(out), **options), data(*shape))
        for d, shape, out, options in [
            (1, (2, 3, 6), (3,), {}),
            (1, (2, 7, 3), (1,), {"layout": "NWC"}),
            (1, (0, 3, 6), (1,), {}),
            (1, (1, 1, 1), (1,), {}),
            (2, (2, 3, 6, 5), (3, 1), {}),
            (2, (2, 6, 4, 17), (2, 2), {"layout": "NHWC"}),
            (2, (0, 3, 6, 5), (1, 1), {}),
            (2, (1, 1, 1, 1), (1, 1), {}),
            (3, (2, 3, 4, 6, 5), (2, 3, 5), {}),
            (3, (1, 4, 2, 2, 3), (1, 1, 1), {"layout": "NDHWC"}),
            (3, (0, 3, 4, 6, 5), (1, 1, 1), {}),
        ]
    ),
    *(
        accept(f"padded_max_pool{d}d-{value}", padded(d, value), data(2, 3, *SPATIAL[:d]))
        for d in (1, 2, 3)
        for value in (LOWEST, -np.inf)
    ),
    *(
        accept(f"max-{dtype}", pool("max", 2, padding=[1, 1]), data(1, 3, 7, 5, dtype=dtype))
        for dtype in ("int8", "uint8")
    ),
]

REFUSE = [
    refuse("dilation", "only its reference implementation", pool("max", 2, dilation=[2, 2]), data(2, 3, 7, 9)),
    refuse("int8", "dtype int8", pool("avg", 2), data(1, 3, 5, 5, dtype="int8")),
    refuse("int32", "dtype int32", pool("max", 2), data(1, 3, 5, 5, dtype="int32")),
    refuse(
        "wide-window",
        "a window of 9 does not fit into 5 elements with padding 1,1",
        pool("max", 1, size=9, padding=[1]),
        data(1, 3, 5),
    ),
    refuse("empty-window", "reaches past the window", pool("max", 1, size=2, padding=[2]), data(1, 3, 5)),
    refuse(
        "ceil-count",
        "ceil_mode with count_include_pad",
        pool("avg", 1, size=2, strides=[2], ceil_mode=True, count_include_pad=True),
        data(1, 3, 5),
    ),
    refuse("adaptive-uneven", "adaptive pooling of 5 to 3: the windows differ", adaptive(1, [3]), data(1, 3, 5)),
    refuse("adaptive-float64", "dtype float64", adaptive(1, [3]), data(1, 3, 6, dtype="float64")),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)


def test_padding_that_can_win_is_not_the_pooling_s_own():
    Case(padded(2, 0.0), (data(2, 3, 7, 9),)).is_not("padded_max_pool2d", "which can be the maximum").matches()
