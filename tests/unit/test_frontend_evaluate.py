"""Constants that are computed by NumPy equal what ONNX's reference implementation computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from tests.unit.importing import node, onnx_model, ops
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.frontends.onnx import standard, walk
from tvm_byoc_dnnl.frontends.onnx.structure import decoded
from tvm_byoc_dnnl.frontends.onnx.value import Node, Value


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


RNG = np.random.default_rng(0)
MATRIX = RNG.integers(-9, 9, (3, 5)).astype("int64")
CUBE = RNG.standard_normal((2, 1, 7)).astype("float32")
#: operator, inputs, attributes
CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("Add", [MATRIX, ints(1, -2, 3, 4, 5)], {}),
    ("Sub", [CUBE, CUBE[:1]], {}),
    ("Mul", [MATRIX, np.array(2**62)], {}),  # wraps around
    ("Cast", [CUBE * 100], {"to": TensorProto.INT64}),
    ("Cast", [MATRIX], {"to": TensorProto.BOOL}),
    ("Cast", [MATRIX > 0], {"to": TensorProto.FLOAT}),
    ("Cast", [CUBE], {"to": TensorProto.FLOAT16}),
    ("Div", [MATRIX, ints(2)], {}),
    ("Concat", [MATRIX, MATRIX[:1]], {"axis": 0}),
    ("Concat", [CUBE, CUBE], {"axis": -2}),
    ("ConstantOfShape", [ints(2, 0, 3)], {}),
    ("ConstantOfShape", [ints(2, 3)], {"value": numpy_helper.from_array(ints(7))}),
    ("Expand", [CUBE, ints(3, 1)], {}),
    ("Expand", [MATRIX, ints(2, 1, 5)], {}),
    ("Gather", [MATRIX, ints(-1, 0)], {"axis": 1}),
    ("Gather", [MATRIX, np.array(2)], {}),
    ("Range", [np.array(9), np.array(-4), np.array(-3)], {}),
    ("Range", [np.float32([0])[0:1].reshape(()), np.array(0.7, "float32"), np.array(0.1, "float32")], {}),
    ("Reshape", [CUBE, ints(0, -1)], {}),
    ("Slice", [MATRIX, ints(1), ints(2**62)], {}),
    ("Slice", [MATRIX, ints(-1), ints(-(2**62)), ints(1), ints(-2)], {}),
    ("Slice", [CUBE, ints(0, 5), ints(1, 1), ints(0, -1), ints(1, -1)], {}),
    ("Squeeze", [CUBE, ints(1)], {}),
    ("Squeeze", [CUBE], {}),
    ("Transpose", [CUBE], {"perm": [2, 0, 1]}),
    ("Transpose", [CUBE], {}),
    ("Unsqueeze", [MATRIX, ints(0, -1)], {}),
]


def reference(op: str, inputs: list[np.ndarray], attrs: dict[str, Any], opset: int = 17) -> np.ndarray:
    names = [f"i{i}" for i in range(len(inputs))]
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["o"], **attrs)], "g", given, [helper.make_empty_tensor_value_info("o")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return np.asarray(ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))[0])


def valued(op: str, inputs: list[np.ndarray], attrs: dict[str, Any], opset: int = 17) -> np.ndarray | None:
    """What the table says of a node whose inputs are known."""
    attrs = {a.name: decoded(a) for a in helper.make_node(op, [], [], **attrs).attribute}
    emit = walk.walk_into(relax.BlockBuilder()).emit
    found: Value = emit.onnx(op, *(Value(known=array) for array in inputs), opset=opset, **attrs)
    return found.known


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_equals_the_reference(case: tuple[str, list[np.ndarray], dict[str, Any]]) -> None:
    op, inputs, attrs = case
    made, wanted = valued(op, inputs, attrs), reference(op, inputs, attrs)
    assert made is not None and made.dtype == wanted.dtype
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("axes", [[0], [0, 3]])
def test_axes_were_an_attribute_once(axes: list[int]) -> None:
    made = valued("Unsqueeze", [MATRIX], {"axes": axes}, opset=11)
    np.testing.assert_array_equal(made, reference("Unsqueeze", [MATRIX], {"axes": axes}, opset=11))


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Erf", [CUBE], {}),
        ("Tile", [MATRIX, ints(2, 1)], {}),
        ("ReduceSum", [MATRIX, ints(1)], {}),
    ],
)
def test_leaves_the_rest_to_the_reference(
    op: str, inputs: list[np.ndarray], attrs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    compute = standard._by_reference

    def by_reference(given: Node, *others: Any) -> Any:
        asked.append(given.op)
        return compute(given, *others)

    monkeypatch.setattr(standard, "_by_reference", by_reference)
    names = [f"i{i}" for i in range(len(inputs))]
    model = onnx_model([node(op, names, ["y"], **attrs)], {"x": (1,)}, dict(zip(names, inputs, strict=True)))
    assert not ops(to_relax(model)) and asked == [op]


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Tile", [MATRIX, ints(1000, 1000)], {}),
        ("Expand", [MATRIX, ints(10000, 3, 5)], {}),
        ("MatMul", [np.ones((3000, 1), "float32"), np.ones((1, 3000), "float32")], {}),
    ],
)
def test_large_results_are_left_to_the_call(op: str, inputs: list[np.ndarray], attrs: dict[str, Any]) -> None:
    names = [f"i{i}" for i in range(len(inputs))]
    model = onnx_model([node(op, names, ["y"], **attrs)], {"x": (1,)}, dict(zip(names, inputs, strict=True)))
    assert ops(to_relax(model))


def test_models_of_known_ranks_are_not_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], strides=[1, 1]),
        node("Unsqueeze", ["s", "axes"], ["t"]),
        node("Mul", ["a", "t"], ["b"]),
        node("Resize", ["b", "", "scales"], ["c"], mode="nearest"),
        node("Reshape", ["c", "shape"], ["d"]),
        node("MaxPool", ["d"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    constants = {
        "w": np.ones((4, 2, 3, 3), "float32"),
        "s": np.ones(4, "float32"),
        "axes": np.array([1, 2]),
        "scales": np.array([1, 1, 2, 2], "float32"),
        "shape": np.array([1, 2, 12, 24]),
    }
    model = onnx_model(nodes, {"x": (1, 2, 8, 8)}, constants)

    def infer(*_args: Any, **_options: Any) -> onnx.ModelProto:
        raise AssertionError("nobody needs a shape")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", infer)
    monkeypatch.setattr(onnx.shape_inference, "infer_node_outputs", infer)
    assert "main" in [gv.name_hint for gv in to_relax(model).get_global_vars()]
