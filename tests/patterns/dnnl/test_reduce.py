"""Reductions and statistics: any axes, kept or not, and what importers make of the other norms."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.harness import Case, accept, const, data, refuse, table_tests

op = relax.op

#: Relax op → reference
REDUCTIONS = {
    op.sum: np.sum,
    op.mean: np.mean,
    op.max: np.max,
    op.min: np.min,
    op.prod: np.prod,
    op.variance: np.var,
    op.std: np.std,
}
AXES = [
    ((3, 17), [-1]),
    ((3, 17), [0]),
    ((3, 17), None),
    ((2, 7, 5, 3), [1]),
    ((2, 7, 5, 3), [2, 3]),
    ((2, 7, 5, 3), [1, 3]),
    ((2, 7, 5, 3), [0, 2]),
    ((2, 3, 5, 2, 3), [1, 2, 4]),
    ((5, 1), [1]),
    ((1, 7, 1), [1]),
    ((13,), [0]),
    ((0, 4), [1]),
]


def row(f, reference, shape, axis, keepdims, **options):
    where = None if axis is None else tuple(axis)
    return accept(
        f"{f.__name__}-{shape}-{axis}-{'kept' if keepdims else 'gone'}{options.get('dtype', '')}",
        lambda x: f(x, axis, keepdims=keepdims),
        data(*shape, low=0.5, high=1.5, **options),
        reference=lambda x: reference(x, where, keepdims=keepdims),
    )


#: what ONNX and PyTorch have, as their importers write it
COMPOSED = {
    "l1": (lambda x: op.sum(op.abs(x), [1]), lambda x: np.abs(x).sum(1)),
    "l2": (lambda x: op.sqrt(op.sum(op.multiply(x, x), [1])), lambda x: np.sqrt((x**2).sum(1))),
    "sum-square": (lambda x: op.sum(op.square(x), [1], keepdims=True), lambda x: (x**2).sum(1, keepdims=True)),
    "log-sum": (lambda x: op.log(op.sum(op.abs(x), [2])), lambda x: np.log(np.abs(x).sum(2))),
    "log-sum-exp": (lambda x: op.log(op.sum(op.exp(x), [0, 2])), lambda x: np.log(np.exp(x).sum((0, 2)))),
}

_ONE_NAN = np.ones((1, 17, 7, 5), "float32")
_ONE_NAN[0, 3, 2, 4] = np.nan

ACCEPT = [
    *(
        row(f, reference, shape, axis, keepdims)
        for i, (f, reference) in enumerate(REDUCTIONS.items())
        for j, (shape, axis) in enumerate(AXES)
        for keepdims in ((False, True) if f in (op.sum, op.variance) else ((i + j) % 2 == 0,))
    ),
    *(
        row(f, reference, (3, 33), [1], False, dtype="bfloat16")
        for f, reference in REDUCTIONS.items()
        if f is not op.prod  # which rounds 32 times
    ),
    *(accept(name, function, data(3, 7, 5), reference=reference) for name, (function, reference) in COMPOSED.items()),
    *(  # read in the layout that a convolution writes
        accept(name, lambda x, w, f=f: f(relax.op.nn.conv2d(x, w)), image, const(33, 17, 3, 3), reference=reference)
        for f in (op.sum, op.max, op.min)
        for name, image, reference in [
            (f"{f.__name__}-of-an-image", data(1, 17, 7, 5), None),
            (f"{f.__name__}-of-a-nan", data(values=_ONE_NAN), lambda x, w: np.float32(np.nan)),
        ]
    ),
]

REFUSE = [
    refuse("int32", "dtype int32", lambda x: op.sum(x, [1]), data(2, 3, dtype="int32")),
    refuse("float64", "dtype float64", lambda x: op.variance(x, [1]), data(2, 3, dtype="float64")),
    refuse("no-axis", "over no axis", lambda x: op.sum(x, []), data(2, 3)),
    refuse("mean-of-nothing", "no result", lambda x: op.mean(x, [1]), data(2, 0)),
]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)


def test_a_deviation_is_four_passes():
    case = Case(lambda x: op.std(x, [1]), (data(3, 17),))
    case.becomes("reduction", ("binary", ["square"]), ("reduction", ["sqrt"]))


def test_an_axis_of_one_is_reduced_by_looking_at_it():
    Case(lambda x: op.sigmoid(op.sum(x, [1])), (data(5, 1),)).becomes("eltwise")


def test_infinities_are_not_kept_where_a_bound_hides_them():
    """As of the ranges of DynamicQuantizeLinear: no pass halves the source, which oneDNN's maxima need otherwise."""
    marks = [("binary", []), ("reduction", ["linear", "pow", "linear", "add", "relu"])]
    case = Case(lambda x: op.maximum(op.max(x, [1]), relax.const(0.0)), (data(64, 512),)).offloads()
    case.becomes(("reduction", []), *marks).matches()
    least = Case(lambda x: op.minimum(op.min(x, [1]), relax.const(np.float32(-np.inf))), (data(64, 512),)).offloads()
    least.becomes("eltwise", ("reduction", ["linear"]), ("binary", []), ("reduction", marks[1][1][:-1]))
