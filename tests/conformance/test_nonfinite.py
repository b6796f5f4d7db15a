"""NaN and infinities as inputs of every operator that oneDNN takes: the results of ONNX Runtime, or a known deviation.

One ONNX model has all operators side by side, each on the same tensor, which has a NaN, both infinities, zeros of both
signs and the largest float among ordinary numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.isa import has_avx512, has_kernels
from tvm_byoc_dnnl.runtime.comparison import wrong

_MAX = np.finfo("float32").max
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, _MAX, -_MAX]
SHAPE = (2, 3, 4, 6)
#: a sum with the largest float in it says nothing about its neighbours, so each element counts for itself
RULE: dict[str, Any] = {"tolerance": 1e-4, "least": 0.1, "elementwise": True}

#: name -> operator, further inputs, attributes
OPERATORS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    **{name: (name, [], {}) for name in ("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Sqrt", "Log", "Softplus")},
    **{name: (name, [], {}) for name in ("Erf", "HardSwish", "Round", "Identity", "Softsign", "Reciprocal", "Elu")},
    "Gelu": ("Gelu", [], {}),
    "LeakyRelu": ("LeakyRelu", [], {"alpha": 0.5}),
    "HardSigmoid": ("HardSigmoid", [], {}),
    "Clip": ("Clip", [0.0, 6.0], {}),
    "Add": ("Add", [1.0], {}),
    "Mul": ("Mul", [2.0], {}),
    "Mul by zero": ("Mul", [0.0], {}),
    "Sub itself": ("Sub", ["x"], {}),
    "Div": ("Div", [2.0], {}),
    "Div by zero": ("Div", [0.0], {}),
    "Max": ("Max", [1.0], {}),
    "Min": ("Min", [1.0], {}),
    "PRelu": ("PRelu", [np.full((3, 1, 1), 0.25, "float32")], {}),
    "Softmax": ("Softmax", [], {"axis": -1}),
    "Softmax over channels": ("Softmax", [], {"axis": 1}),
    "LogSoftmax": ("LogSoftmax", [], {"axis": -1}),
    "MaxPool": ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "AveragePool": ("AveragePool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "GlobalAveragePool": ("GlobalAveragePool", [], {}),
    "ReduceSum": ("ReduceSum", [np.array([3], "int64")], {}),
    "ReduceMean": ("ReduceMean", [np.array([3], "int64")], {}),
    "ReduceMax": ("ReduceMax", [np.array([3], "int64")], {}),
    "ReduceMin": ("ReduceMin", [np.array([3], "int64")], {}),
    "Conv": ("Conv", [np.full((2, 3, 1, 1), 0.5, "float32")], {}),
    "MatMul": ("MatMul", [np.full((6, 2), 0.5, "float32")], {}),
    "Transpose": ("Transpose", [], {"perm": [0, 2, 3, 1]}),
    "Concat": ("Concat", ["x"], {"axis": 1}),
    "Less": ("Less", [1.0], {}),
    "Equal": ("Equal", ["x"], {}),
}

_BOUND = "a NaN becomes the bound in oneDNN"
#: What ends or becomes something else in oneDNN, and why: there is no algorithm of the same cost that would hand it on.
#: docs/numerics.md tells users. `test_the_deviations_are_there` fails when a row is no longer needed.
DEVIATIONS: dict[str, str] = {
    **({} if has_kernels() else dict.fromkeys(["Relu", "Clip", "HardSigmoid", "Max", "Min"], _BOUND)),
    **({"Gelu": "oneDNN's erf form: gelu(inf) is NaN, and twice the argument overflows"} if has_avx512() else {}),
}


def model(names: list[str]) -> onnx.ModelProto:
    """The operators side by side."""
    constants, nodes, outputs = [], [], []
    for i, name in enumerate(names):
        op, extra, attributes = OPERATORS[name]
        inputs = ["x"]
        for value in extra:
            if isinstance(value, str):
                inputs.append(value)
                continue
            inputs.append(f"c{len(constants)}")
            array = np.asarray(value, "float32" if isinstance(value, float) else None)
            constants.append(onnx.numpy_helper.from_array(array, inputs[-1]))
        nodes.append(helper.make_node(op, inputs, [f"y{i}"], **attributes))
        dtype = TensorProto.BOOL if op in ("Less", "Equal") else TensorProto.FLOAT
        outputs.append(helper.make_tensor_value_info(f"y{i}", dtype, None))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    graph = helper.make_graph(nodes, "nonfinite", [x], outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made)


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Name of the operator -> our result, ONNX Runtime's."""
    names = list(OPERATORS)
    x = np.random.default_rng(0).uniform(-2, 2, SHAPE).astype("float32")
    flat = x.reshape(-1)
    flat[:: flat.size // len(SPECIAL)][: len(SPECIAL)] = SPECIAL
    made = model(names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, {"x": x})
    with np.errstate(all="ignore"):
        got = byoc.Runner(byoc.compile(made))(x)
    return dict(zip(names, zip(got, wanted)))


@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in DEVIATIONS])
def test_as_onnx_runtime(results: dict[str, tuple[np.ndarray, np.ndarray]], name: str) -> None:
    assert_right(*results[name], **RULE)


@pytest.mark.parametrize("name", DEVIATIONS)
def test_the_deviations_are_there(results: dict[str, tuple[np.ndarray, np.ndarray]], name: str) -> None:
    """And only for a tensor with something special in it: a row of the last axis, or a column of channels."""
    got, want = results[name]
    deviating = wrong(got, want, **RULE)
    assert deviating.any(), f"{name} is as in ONNX Runtime now: take it off the list"
    assert deviating.sum() <= 2 * SHAPE[-1]
