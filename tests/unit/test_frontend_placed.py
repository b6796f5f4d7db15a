"""ReverseSequence, TensorScatter and BitCast against ONNX's reference, with open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tvm_byoc_dnnl as byoc

RNG = np.random.default_rng(0)
CACHE, NEW = RNG.standard_normal((3, 2, 7, 5)).astype("float32"), RNG.standard_normal((3, 2, 4, 5)).astype("float32")


def _model(op: str, feeds: list[np.ndarray], kind: int, **attrs: Any) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(feeds))]
    node = helper.make_node(op, names, ["y"], name="node", **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), [f"{n}_{i}" for i in range(x.ndim)])
        for n, x in zip(names, feeds, strict=True)
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=12)


@pytest.mark.parametrize(
    ("op", "feeds", "attrs"),
    [
        ("ReverseSequence", [CACHE[0], np.array([1, 2])], {"time_axis": 1, "batch_axis": 0}),
        ("ReverseSequence", [CACHE[0, 0], np.array([0, 7, 3, 1, 5])], {"time_axis": 0, "batch_axis": 1}),
        ("TensorScatter", [CACHE, NEW, np.array([0, 3, 1])], {}),
        ("TensorScatter", [CACHE, NEW], {}),
        ("TensorScatter", [CACHE, NEW, np.array([5, 6, 3])], {"mode": "circular"}),
        ("TensorScatter", [CACHE[:, 0], NEW[:, 0], np.array([0, 2, 3])], {"axis": 1}),
    ],
)
def test_is_as_onnx_defines_it(op: str, feeds: list[np.ndarray], attrs: dict[str, Any]) -> None:
    model = _model(op, feeds, TensorProto.FLOAT, **attrs)
    (want,) = ReferenceEvaluator(model).run(None, {f"x{i}": x for i, x in enumerate(feeds)})
    np.testing.assert_array_equal(np.asarray(byoc.Runner(byoc.compile(model))(*feeds)), want)


@pytest.mark.parametrize(
    ("dtype", "to"),
    [("float32", "int32"), ("int64", "float64"), ("uint16", "float16"), ("int8", "uint8"), ("int16", "bfloat16")],
)
def test_bits_are_read_in_another_way(dtype: str, to: str) -> None:
    x = RNG.integers(0, 100, (3, 5)).astype(dtype)
    model = _model(
        "BitCast", [x], helper.np_dtype_to_tensor_dtype(np.dtype(to)), to=helper.np_dtype_to_tensor_dtype(np.dtype(to))
    )
    got = np.asarray(byoc.Runner(byoc.compile(model))(x))
    assert got.dtype == to
    np.testing.assert_array_equal(got.view(dtype), x)


def test_a_batch_that_is_time_is_an_error() -> None:
    model = _model("ReverseSequence", [CACHE[0], np.array([1, 2])], TensorProto.FLOAT, time_axis=1, batch_axis=2)
    with pytest.raises(byoc.InputError, match=r"ReverseSequence \(node `node`\) has the time_axis 1"):
        byoc.compile(model)
