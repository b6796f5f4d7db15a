"""Softmax and log-softmax over any axis."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tests.harness import accept, data, refuse, table_tests

nn = relax.op.nn


def softmax(x, axis):
    shares = np.exp(x - x.max(axis, keepdims=True))
    return shares / shares.sum(axis, keepdims=True)


def log_softmax(x, axis):
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


BOTH = {nn.softmax: softmax, nn.log_softmax: log_softmax}
ACCEPT = [
    accept(
        f"{f.__name__}-{shape}-{axis}{options.get('dtype', '')}",
        lambda x, f=f, axis=axis: f(x, axis),
        data(*shape, **options),
        reference=lambda x, r=reference, axis=axis: r(x, axis),
    )
    for f, reference in BOTH.items()
    for shape, axis, options in [
        ((3, 17), -1, {}),
        ((3, 17), 0, {}),
        ((2, 7, 5, 3), 1, {}),
        ((2, 7, 5, 3), 2, {"low": -50, "high": 50}),
        ((2, 3, 2, 3, 5), -1, {}),
        ((13,), 0, {}),
        ((5, 1), 1, {}),
        ((0, 3), 1, {}),
        ((3, 33), 1, {"dtype": "bfloat16"}),
    ]
]
REFUSE = [refuse(f"{f.__name__}-float64", "dtype float64", f, data(2, 3, dtype="float64")) for f in BOTH]

test_accepted, test_refused = table_tests(ACCEPT, REFUSE)
