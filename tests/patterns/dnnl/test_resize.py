"""Resizing: the combinations of coordinates and rounding that oneDNN reproduces, against TVM's own kernels."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import Case, accept, data, refuse, table_tests

op, image = relax.op, relax.op.image
MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn")


def resize(size, method="linear", mode="half_pixel", rounding="", layout=None):
    layout = layout or ("NCHW" if len(size) == 2 else "NCDHW")
    make = image.resize2d if len(size) == 2 else image.resize3d
    options = {"method": method, "coordinate_transformation_mode": mode, "rounding_method": rounding}
    return lambda x: make(x, size, layout=layout, **options)


def nearest(size, mode="half_pixel", rounding="round_prefer_floor", layout=None):
    return resize(size, "nearest_neighbor", mode, rounding, layout)


ACCEPT = [
    *(
        accept(f"linear-{shape}-{size}", resize(size), data(*shape))
        for shape, size in [
            ((2, 3, 5, 7), (10, 14)),
            ((1, 17, 6, 4), (3, 2)),
            ((1, 3, 5, 7), (7, 11)),
            ((1, 1, 1, 1), (3, 5)),
            ((1, 2, 9, 4), (1, 1)),
            ((1, 2, 13, 1), (13, 1)),
            ((0, 3, 5, 7), (10, 14)),
            ((1, 2, 3, 4, 5), (6, 4, 7)),
            ((0, 2, 3, 4, 5), (6, 4, 7)),
        ]
    ),
    accept("linear-nhwc", resize((9, 5), layout="NHWC"), data(2, 5, 3, 7)),
    accept("linear-ndhwc", resize((6, 4, 5), mode="pytorch_half_pixel", layout="NDHWC"), data(2, 3, 2, 5, 3)),
    accept("linear-pytorch", resize((9, 5), mode="pytorch_half_pixel"), data(1, 3, 5, 7)),
    *(accept(f"linear-same-{mode}", resize((5, 7), mode=mode), data(1, 3, 5, 7)) for mode in MODES[:-1]),
    *(accept(f"linear-from-one-{mode}", resize((5, 2), mode=mode), data(1, 3, 1, 1)) for mode in MODES),
    *(
        accept(f"nearest-{shape}-{size}-{mode}-{rounding}", nearest(size, mode, rounding), data(*shape))
        for shape, size, mode, rounding in [
            ((2, 3, 5, 7), (10, 14), "asymmetric", "floor"),
            ((2, 3, 5, 7), (15, 7), "asymmetric", ""),
            ((2, 3, 5, 7), (20, 35), "half_pixel", "round"),
            ((2, 3, 5, 7), (8, 11), "half_pixel", "round_prefer_ceil"),
            ((2, 3, 5, 7), (3, 6), "pytorch_half_pixel", "round_prefer_floor"),
            ((2, 3, 5, 7), (4, 10), "tf_half_pixel_for_nn", "floor"),
            ((1, 2, 8, 6), (4, 3), "asymmetric", "floor"),
            ((1, 2, 8, 6), (4, 12), "asymmetric", "floor"),
            ((1, 2, 9, 5), (3, 3), "align_corners", "round"),
            ((1, 17, 1, 1), (3, 1), "asymmetric", "floor"),
            ((1, 2, 3, 4, 5), (6, 4, 10), "asymmetric", "floor"),
            ((0, 2, 4, 4), (8, 8), "asymmetric", "floor"),
        ]
    ),
    accept("nearest-nhwc", nearest((10, 14), "asymmetric", "floor", "NHWC"), data(2, 5, 7, 3)),
    *(
        accept(
            f"{method}-bf16",
            resize((10, 7), method, rounding="round"),
            data(1, 3, 5, 7, dtype="bfloat16"),
            within=2**-6,
            reference=lambda x, m=method: _TWICE[m](x),
        )
        for method in ("linear", "nearest_neighbor")
    ),
]


def _linear_twice(x):
    low, high = (np.concatenate(p, 2) for p in ((x[:, :, :1], x), (x, x[:, :, -1:])))
    out = np.stack([0.75 * high[:, :, :-1] + 0.25 * low[:, :, :-1], 0.75 * low[:, :, 1:] + 0.25 * high[:, :, 1:]], 3)
    return out.reshape(x.shape[0], x.shape[1], -1, x.shape[3])


_TWICE = {"linear": _linear_twice, "nearest_neighbor": lambda x: x.repeat(2, 2)}

REFUSE = [
    refuse("cubic", "method cubic", resize((10, 14), "cubic"), data(1, 3, 5, 7)),
    refuse("crop", "coordinates tf_crop_and_resize", resize((10, 14), mode="tf_crop_and_resize"), data(1, 3, 5, 7)),
    refuse("corners", "5 to 10 with align_corners", resize((10, 14), mode="align_corners"), data(1, 3, 5, 7)),
    refuse(
        "asymmetric",
        "position 0.5 for pixel 1; oneDNN reads 0.25",
        resize((5, 14), mode="asymmetric"),
        data(1, 3, 5, 7),
    ),
    refuse("pytorch-to-one", "5 to 1 with pytorch", resize((1, 7), mode="pytorch_half_pixel"), data(1, 3, 5, 7)),
    refuse("nearest-ceil", "takes pixel 1 for pixel 1", nearest((10, 7), "asymmetric", "ceil"), data(1, 3, 5, 7)),
    refuse("nearest-tie", "5 to 12", nearest((12, 7), "asymmetric", "round_prefer_floor"), data(1, 3, 5, 7)),
    refuse("nearest-error", "is a rounding error", nearest((9, 7), rounding="round_prefer_floor"), data(1, 3, 6, 7)),
    refuse("float64", "dtype float64", resize((10, 14)), data(1, 3, 5, 7, dtype="float64")),
    refuse("integers", "dtype uint8", nearest((10, 14), "asymmetric", "floor"), data(1, 3, 5, 7, dtype="uint8", low=0)),
    refuse(
        "dtype",
        "resize of float32 to float16",
        lambda x: image.resize2d(x, (10, 14), out_dtype="float16"),
        data(1, 3, 5, 7),
    ),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)


def test_a_symbolic_batch():
    case = Case(nearest((10, 6), "asymmetric", "floor"), (data("n", 3, 5, 3),), _repeated, symbols={"n": 5})
    case.offloads().matches()


def _repeated(x):
    return x.repeat(2, 2).repeat(2, 3)


SCALES = [(2, 3), (3, 2), (4, 8), (7, 5), (6, 3), (5, 15)]
#: method, mode → the scales at which the library samples where TVM does
TAKEN = {
    ("linear", "half_pixel"): SCALES,
    ("linear", "pytorch_half_pixel"): SCALES,
    ("linear", "align_corners"): [(2, 3)],
    ("linear", "asymmetric"): [],
    ("linear", "tf_half_pixel_for_nn"): [],
    ("nearest_neighbor", "half_pixel"): [(3, 2), (6, 3)],
    ("nearest_neighbor", "pytorch_half_pixel"): [(3, 2), (6, 3)],
    ("nearest_neighbor", "align_corners"): [(3, 2), (4, 8)],
    ("nearest_neighbor", "asymmetric"): [(3, 2), (4, 8), (6, 3), (5, 15)],
    ("nearest_neighbor", "tf_half_pixel_for_nn"): SCALES,
}


@pytest.mark.parametrize(("method", "mode"), TAKEN)
def test_what_is_taken_is_right_at_every_scale(method, mode):
    """Whatever the sizes: an axis is taken if, and only if, the library samples where TVM does."""
    cases = {(n, m): Case(resize((m, 5), method, mode), (data(1, 2, n, 5),)) for n, m in SCALES}
    taken = [scale for scale, case in cases.items() if case.regions]
    assert taken == TAKEN[method, mode]
    for scale in taken:
        cases[scale].offloads().matches()


@pytest.mark.parametrize("method", [nearest, resize])
def test_a_sum_is_apart_where_only_a_slow_form_has_it(method):
    """oneDNN resizes with a tensor added to the result by a loop over single elements only."""
    case = Case(lambda x, y: op.add(method((10, 14))(x), y), (data(2, 3, 5, 7), data(2, 3, 10, 14)))
    case.offloads().becomes(("resampling", []), ("binary", [])).matches()


def test_an_activation_is_fused():
    case = Case(lambda x: op.nn.relu(resize((10, 14))(x)), (data(2, 3, 5, 7),))
    case.offloads().becomes(("resampling", ["relu"])).matches()


def enlarge(factors, method="nearest_neighbor", mode="asymmetric", rounding="floor", layout="NCHW"):
    def function(x):
        dims = [x.ty.shape[layout.index(axis)] * factor for axis, factor in zip("HW", factors, strict=True)]
        return resize(dims, method, mode, rounding, layout)(x)

    return function


OPEN = {
    "nearest": enlarge((2, 2)),
    "nearest-4-8": enlarge((4, 8)),
    "nearest-1-2": enlarge((1, 2), mode="half_pixel", rounding="round_prefer_floor"),
    "nearest-align": enlarge((2, 2), mode="tf_half_pixel_for_nn"),
    "linear": enlarge((2, 4), "linear", "half_pixel"),
    "linear-pytorch": enlarge((2, 2), "linear", "pytorch_half_pixel"),
}


@pytest.mark.native
@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize(("h", "w"), [(1, 1), (2, 3), (7, 5)])
def test_open_sizes_are_enlarged_by_powers_of_two(name, h, w):
    case = Case(OPEN[name], (data(2, 3, "h", "w"),), symbols={"h": h, "w": w})
    case.offloads().becomes(("resampling", [])).matches()


@pytest.mark.native
def test_open_sizes_with_channels_last():
    operands = (data(2, "h", "w", 3),)
    for h, w in ((1, 4), (5, 3)):
        Case(enlarge((2, 2), layout="NHWC"), operands, symbols={"h": h, "w": w}).offloads().matches()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (enlarge((3, 1)), "which is not 1, 2, 4, 8 … times as large"),
        (resize((8, 8)), "which is not 1, 2, 4, 8 … times as large"),
        (enlarge((2, 2), "linear", "align_corners"), "linear resize of 2 to 4 with align_corners coordinates"),
        (enlarge((2, 2), "linear"), "linear resize of 2 to 4 with asymmetric coordinates"),
        (enlarge((2, 2), mode="half_pixel", rounding="ceil"), "takes pixel 1 for pixel"),
        (lambda x: resize([x.ty.shape[2] + 2, x.ty.shape[3]])(x), "which is not 1, 2, 4, 8 … times as large"),
    ],
)
def test_open_sizes_that_stay(function, reason):
    Case(function, (data(2, 3, "h", "w"),), symbols={"h": 3, "w": 5}).is_refused(reason)
