"""Types of convolutions and pools, given without asking TVM: they are the ones that TVM infers, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from tvm_byoc_dnnl.windowed_types import TypingBuilder, give_type

CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
POOLS = {
    1: (relax.op.nn.avg_pool1d, relax.op.nn.max_pool1d),
    2: (relax.op.nn.avg_pool2d, relax.op.nn.max_pool2d),
    3: (relax.op.nn.avg_pool3d, relax.op.nn.max_pool3d),
}


def tensor(*shape: Any, dtype: str = "float32", name: str = "x") -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def is_typed(call: relax.Call) -> bool:
    return isinstance(call.ty, relax.TensorType)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_types_are_those_that_tvm_infers(rank: int) -> None:
    rng = np.random.default_rng(rank)

    def draw(low: int, high: int, count: int = rank) -> list[int]:
        return [int(v) for v in rng.integers(low, high, count)]

    def calls() -> tuple[relax.Call, relax.Call]:
        """A convolution and a pool."""
        (groups, inputs, outputs, batch), kernel = draw(1, 4, 4), draw(1, 4)
        window = {"strides": draw(1, 4), "padding": draw(0, 4, 2 * rank), "dilation": draw(1, 3)}
        data = tensor(batch, groups * inputs, *draw(7, 20), dtype=str(rng.choice(["float32", "float16", "int8"])))
        weight = tensor(groups * outputs, inputs, *kernel, dtype=str(data.ty.dtype), name="w")
        own = {} if rng.random() < 0.5 else {"out_dtype": str(data.ty.dtype)}
        pool = POOLS[rank][int(rng.integers(2))](data, kernel, **window)
        return CONVOLUTIONS[rank](data, weight, groups=groups, **window, **own), pool

    for _ in range(15):
        for call in calls():
            want = relax.BlockBuilder().normalize(relax.Call(call.op, list(call.args), call.attrs)).ty
            give_type(call)
            assert is_typed(call) and call.ty == want
            give_type(call)  # a type that is there stays


@pytest.mark.parametrize(
    "call",
    [
        lambda: relax.op.nn.conv2d(tensor(tirx.Var("n", "int64"), 3, 8, 8), tensor(4, 3, 3, 3)),
        lambda: relax.op.nn.conv2d(tensor(1, 8, 8, 3), tensor(3, 3, 3, 4), data_layout="NHWC", kernel_layout="HWIO"),
        lambda: relax.op.nn.conv2d(tensor(1, 4, 8, 8, dtype="uint8"), tensor(4, 4, 3, 3, dtype="int8")),
        lambda: relax.op.nn.conv2d(
            tensor(1, 4, 8, 8, dtype="int8"), tensor(4, 4, 3, 3, dtype="int8"), out_dtype="int32"
        ),
        lambda: relax.op.nn.max_pool2d(tensor(1, 3, 8, 8), (3, 3), (2, 2), ceil_mode=True),
        lambda: relax.op.nn.relu(tensor(1, 3, 8, 8)),
    ],
    ids=["open", "nhwc", "mixed", "out_dtype", "ceil", "other"],
)
def test_other_calls_are_left_to_tvm(call: Any) -> None:
    made = call()
    give_type(made)
    assert not is_typed(made)


@pytest.mark.parametrize("weight", [(4, 5, 3, 3), (4, 3, 3)], ids=["channels", "rank"])
def test_mistakes_are_reported_by_tvm(weight: tuple[int, ...]) -> None:
    call = relax.op.nn.conv2d(tensor(1, 3, 8, 8), tensor(*weight))
    with pytest.raises(Exception, match=r"(?i)conv2d|channel|ndim"):
        TypingBuilder().normalize(call)
