"""Local response normalisation: the importer's spelling of it, and windows that are something else."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import Case, accept, data, number
from tests.isa import has_avx512

op, nn = relax.op, relax.op.nn


def _lrn(size=5, alpha=0.01, beta=0.75, k=1.5, axis=1, **pool):
    pool = {"pool_size": (size, 1, 1), "padding": (size // 2, 0, 0) * 2, "count_include_pad": True, **pool}

    def function(x):
        average = op.squeeze(nn.avg_pool3d(op.expand_dims(op.multiply(x, x), axis), **pool), [axis])
        scale = op.add(op.multiply(average, number(alpha)), number(k))
        return op.divide(x, op.power(scale, number(beta)))

    return function


def _reference(size=5, alpha=0.01, beta=0.75, k=1.5):
    def function(x):
        square = np.pad(x**2, [(0, 0), (size // 2, size // 2), (0, 0), (0, 0)])
        total = sum(square[:, i : i + x.shape[1]] for i in range(size))
        return x / (k + alpha / size * total) ** beta

    return function


ACCEPT = [
    accept(f"{shape}-{options}", _lrn(**options), data(*shape, low=-9, high=9), reference=_reference(**options))
    for shape, options in [
        ((2, 16, 5, 7), {}),
        ((1, 96, 13, 11), {"size": 3, "alpha": 1e-4, "k": 1.0}),
        ((2, 17, 1, 1), {"size": 7, "alpha": 2.0, "k": 0.5}),
        ((1, 3, 4, 4), {"size": 5}),
    ]
]
REFUSE = [
    pytest.param(Case(_lrn(**options), (data(2, 16, 5, 7),)), reason, id=str(options))
    for options, reason in [
        ({"size": 4, "padding": (1, 0, 0, 2, 0, 0)}, "4 channels"),
        ({"padding": (4, 0, 0, 0, 0, 0)}, "padding [4, 0, 0, 0, 0, 0]"),
        ({"count_include_pad": False}, "leaves out the padding"),
        ({"pool_size": (5, 3, 3), "padding": (2, 1, 1, 2, 1, 1)}, "[3, 3] positions"),
        ({"axis": 2, "pool_size": (5, 1, 1), "padding": (2, 0, 0, 2, 0, 0)}, "axis of their own"),
        ({"dilation": (2, 1, 1), "padding": (4, 0, 0, 4, 0, 0)}, "padding [4"),
    ]
]


@pytest.mark.parametrize("case", ACCEPT)
def test_accepted(case):
    """Without AVX-512 oneDNN has it for windows of five and whole blocks of channels only; others go in steps."""
    case.offloads().matches()
    if has_avx512() or case is ACCEPT[0].values[0]:
        case.becomes("lrn")
    else:
        assert "pooling" in [kind for kind, _ in case.nodes()]


@pytest.mark.parametrize(("case", "reason"), REFUSE)
def test_other_windows(case, reason):
    case.is_not("lrn", reason).matches()


def test_an_exponent_that_oneDNN_has_no_implementation_for_is_taken_in_steps():
    case = Case(_lrn(beta=0.6), (data(2, 16, 5, 7),), _reference(beta=0.6))
    case.is_not("lrn", "reference implementation").offloads().matches()
    assert "lrn" not in [kind for kind, _ in case.nodes()]
