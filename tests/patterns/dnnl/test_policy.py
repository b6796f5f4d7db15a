"""An operator that is slow in oneDNN stays with TVM, unless the region around it is worth more."""

from __future__ import annotations

import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, const, data
from tvm_byoc_dnnl.core.compilation import read_log

op, nn = relax.op, relax.op.nn

ROWS = data(1024, 4)
IMAGE = data(1, 16, 32, 32)
SLOW = {
    "sum": (lambda x: op.sum(x, [-1]), ROWS, "reduce 4 elements at a time"),
    "mean-of-two-axes": (lambda x: op.mean(x, [2, 3]), data(32, 32, 5, 6), ""),
    "max-of-two-axes": (lambda x: op.max(x, [2, 3]), data(32, 32, 5, 6), "reduce 30 elements at a time"),
    "norm": (lambda x: op.sqrt(op.sum(op.square(x), [-1], keepdims=True)), ROWS, "reduce 4 elements at a time"),
    "max_pool2d": (lambda x: nn.max_pool2d(x, (2, 2), (2, 2)), IMAGE, "windows of 4 in NCHW"),
    "avg_pool1d": (lambda x: nn.avg_pool1d(x, 2, 2), data(1, 16, 128), "windows of 2 in NCW"),
}
FAST = {
    "few results": (lambda x: op.sum(x, [-1]), data(255, 4)),
    "a long axis": (lambda x: op.sum(x, [-1]), data(1024, 32)),
    "the first axis": (lambda x: op.sum(x, [0]), data(4, 1024)),
    "tuples": (lambda x: op.max(op.concat([x, x], 1), [0]), data(4, 1024)),
    "a larger window": (lambda x: nn.max_pool2d(x, (3, 3), (2, 2)), data(1, 16, 33, 33)),
    "channels last": (lambda x: nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"), data(1, 32, 32, 16)),
    "with a product": (lambda x, w: op.sum(op.reshape(op.matmul(x, w), (1024, 4)), [-1]), data(64, 8), const(8, 64)),
    "behind a convolution": (
        lambda x, w: nn.max_pool2d(nn.conv2d(x, w, padding=1), (2, 2), (2, 2)),
        data(1, 16, 32, 32),
        const(16, 16, 3, 3),
    ),
}


@pytest.mark.parametrize("name", SLOW)
def test_alone_it_stays(name):
    function, operand, why = SLOW[name]
    case = Case(function, (operand,))
    if not why:  # pooling, over one whole window
        case.offloads()
        return
    assert not case.regions
    assert any(why in entry.reason for entry in read_log(case.partitioned))
    assert [f for f in byoc.partition(case.module, policy=byoc.RegionPolicy()).functions.values() if _is_region(f)]


def _is_region(func):
    return bool(func.attrs) and "Codegen" in func.attrs


@pytest.mark.parametrize("name", FAST)
def test_it_goes_along(name):
    function, *operands = FAST[name]
    Case(function, tuple(operands)).offloads().matches()
