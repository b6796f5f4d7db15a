"""The result for a NaN: NaN of an operator alone, and as a post-op of oneDNN what docs/numerics.md says.

ONNX Runtime returns NaN in each of these. A post-op of oneDNN does so too, but for the first rows; there is no
algorithm that would do it at the same cost (a relu with a slope does, but a slope of 0 does not).
"""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import Case, assert_right, data, number

pytestmark = pytest.mark.native

op, nn = relax.op, relax.op.nn
_NAN = np.nan

#: name, function, the value of the post-op at NaN, the values at -1, 0.25, and infinity
TABLE = [
    ("relu", nn.relu, 0.0, (0, 0.25, np.inf)),
    ("clip", lambda x: op.clip(x, 0.125, 6), 0.125, (0.125, 0.25, 6)),
    ("maximum", lambda x: op.maximum(x, number(0.125)), 0.125, (0.125, 0.25, np.inf)),
    ("minimum", lambda x: op.minimum(x, number(0.125)), 0.125, (-1, 0.125, 0.125)),
    ("hardsigmoid", lambda x: op.clip(op.add(x, number(0.5)), 0, 1), 1.0, (0, 0.75, 1)),
    ("leaky_relu", lambda x: nn.leakyrelu(x, 0.5), _NAN, (-0.5, 0.25, np.inf)),
    ("hardswish", lambda x: op.multiply(x, op.clip(op.add(x, number(0.5)), 0, 1)), _NAN, (-0.0, 0.1875, np.inf)),
    ("sigmoid", op.sigmoid, _NAN, (1 / (1 + np.e), 1 / (1 + np.exp(-0.25)), 1)),
    ("tanh", op.tanh, _NAN, (np.tanh(-1), np.tanh(0.25), 1)),
    ("silu", nn.silu, _NAN, (-1 / (1 + np.e), 0.25 / (1 + np.exp(-0.25)), np.inf)),
    ("softplus", nn.softplus, _NAN, (np.log1p(np.exp(-1)), np.log1p(np.exp(0.25)), np.inf)),
    ("abs", op.abs, _NAN, (1, 0.25, np.inf)),
    ("square", op.square, _NAN, (1, 0.0625, np.inf)),
    ("round", op.round, _NAN, (-1, 0, np.inf)),
]


@pytest.mark.parametrize(("name", "function", "at_nan", "others"), TABLE, ids=[row[0] for row in TABLE])
def test_alone(name, function, at_nan, others):
    values = np.array([_NAN, -1, 0.25, np.inf], "float32")
    case = Case(function, (data(values=values),)).offloads()
    assert_right(case.run()[0], np.array([_NAN, *others], "float32"), 1e-5, elementwise=True)


@pytest.mark.parametrize(("name", "function", "at_nan", "others"), TABLE, ids=[row[0] for row in TABLE])
def test_as_a_post_op(name, function, at_nan, others):
    values = np.full((1, 16, 1, 3), 0.25, "float32")
    values[..., 0], values[..., 1] = _NAN, -1
    weights = np.eye(16, dtype="float32").reshape(16, 16, 1, 1)
    # weights that are no constants leave the convolution to oneDNN: kernels of this package pass a NaN on
    case = Case(
        lambda x, w: function(nn.conv2d(x, w)), (data(values=values), data(values=weights)), prepare=False
    ).offloads()
    fused = name != "softplus"  # which oneDNN computes too inexactly
    assert [len(ops) for kind, ops in case.nodes() if kind == "convolution"] == [fused]
    wanted = np.broadcast_to(np.array([at_nan, *others[:2]], "float32"), values.shape)
    assert_right(case.run()[0], wanted, 1e-5, elementwise=True)
