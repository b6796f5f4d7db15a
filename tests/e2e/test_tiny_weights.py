"""Weights that are nothing beside the others count as zero: products by denormal numbers take a hundred times as long.

A source of 1e38 makes the difference visible, since it is 0.1 after the product with 1e-39.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc

TINY, HUGE = 1e-39, 1e38
SHAPES = {
    "conv2d": ((1, 32, 3, 3), (32, 32, 1, 1)),
    "depthwise": ((1, 32, 9, 9), (32, 1, 5, 5)),
    "matmul": ((40, 32), (32, 48)),
}


def network(kind: str, w: np.ndarray) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(SHAPES[kind][0], "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            if kind == "matmul":
                y = bb.emit_output(relax.op.matmul(x, relax.const(w)))
            else:
                groups = 32 if kind == "depthwise" else 1
                y = bb.emit_output(relax.op.nn.conv2d(x, relax.const(w), padding=w.shape[-1] // 2, groups=groups))
        bb.emit_func_output(y)
    return bb.get()


#: the C compiler takes seconds for each
IN_SOURCE = [pytest.param(kind, "source", marks=[] if kind == "conv2d" else pytest.mark.sweep) for kind in SHAPES]


@pytest.mark.parametrize(("kind", "output"), [*((kind, "module") for kind in SHAPES), *IN_SOURCE])
def test_tiny_weights_count_as_zero(kind: str, output: str) -> None:
    shape, weights = SHAPES[kind]
    x, w = np.full(shape, HUGE, "float32"), np.full(weights, TINY, "float32")
    w.reshape(-1)[0], x.reshape(-1)[0] = 0.5, 1.0
    given = w.copy()
    result = byoc.Runner(byoc.compile(network(kind, w), output=output))(x)
    flushed = byoc.Runner(byoc.compile(network(kind, np.where(w == 0.5, w, np.float32(0))), output=output))(x)
    np.testing.assert_array_equal(result, flushed)
    np.testing.assert_array_equal(w, given)


@pytest.mark.parametrize("kind", SHAPES)
def test_they_stay_where_all_are_small(kind: str) -> None:
    shape, weights = SHAPES[kind]
    x, w = np.full(shape, HUGE, "float32"), np.full(weights, TINY, "float32")
    result = byoc.Runner(byoc.compile(network(kind, w), options={"dnnl": {"products": "float32"}}))(x)
    assert result.min() > 0
    assert result.max() == pytest.approx((25 if kind == "depthwise" else 32) * 0.1, rel=1e-5)


def test_a_factor_is_no_weight() -> None:
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.multiply(x, relax.const(np.array([TINY, 1], "float32"))))
        bb.emit_func_output(y)
    result = byoc.Runner(byoc.compile(bb.get()))(np.array([HUGE, 1], "float32"))
    np.testing.assert_allclose(result, [0.1, 1], rtol=1e-5)
