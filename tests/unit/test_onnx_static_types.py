"""Types by simple rules equal those that the ONNX standard's own examples declare, and those of ONNX's inference."""

from __future__ import annotations

import itertools
import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, numpy_helper, shape_inference

from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl.frontend.onnx_graph import Graph
from tvm_byoc_dnnl.frontend.onnx_rewrites import functions
from tvm_byoc_dnnl.frontend.onnx_static_types import RULES

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@cache
def examples() -> dict[str, list[Any]]:
    """Operator → the standard's examples of one node, with their data."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    found: dict[str, list[Any]] = {}
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and not nodes[0].domain:
            opset = case.model.opset_import[0]
            opset.version = max(opset.version, 7)  # the examples of `Not` say 1
            found.setdefault(nodes[0].op_type, []).append(case)
    return found


def told(model: onnx.ModelProto, name: str) -> tuple[int, tuple[int, ...]] | None:
    """The type of a value by the rules alone; ``None`` if they do not tell it."""
    graph = Graph(model)
    graph.infer_shapes()
    with graph.without_inference():
        dims = graph.static_shape(name)
        return None if dims is None else (graph.elem_type(name), dims)


def with_constants(case: Any, first: int) -> onnx.ModelProto:
    """The example with its inputs from ``first`` on as constants."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    values = dict(zip((i.name for i in model.graph.input), case.data_sets[0][0], strict=True))
    for name, value in list(values.items())[first:]:
        if isinstance(value, np.ndarray):
            model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize("op", sorted(RULES))
def test_standard_examples(op: str) -> None:
    wrong, right = [], 0
    for case in examples()[op]:
        for model in (case.model, with_constants(case, 0), with_constants(case, 1)):
            for output in model.graph.output:
                tensor = output.type.tensor_type
                found = told(model, output.name)
                declared = (tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim))
                right += found == declared
                if found not in (None, declared):
                    wrong.append((case.name, output.name, found, declared))
    assert not wrong
    assert right, "the rule tells the type of no example"


def inferred(model: onnx.ModelProto, name: str = "y") -> tuple[int, ...] | None:
    values = shape_inference.infer_shapes(model).graph.output
    (dims,) = (v.type.tensor_type.shape.dim for v in values if v.name == name)
    return tuple(d.dim_value for d in dims)


@pytest.mark.parametrize("padding", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
def test_windows(op: str, padding: str) -> None:
    told_some = 0
    sizes = itertools.product((5, 8, 13), (1, 2, 3), (1, 2, 3), (1, 2), (0, 1))
    for size, kernel, stride, dilation, pad in sizes:
        if op == "AveragePool" and dilation > 1:
            continue  # it has no dilations before opset 19
        window: dict[str, Any] = {"strides": [stride, 1], "kernel_shape": [kernel, 2], "auto_pad": padding}
        if dilation > 1:
            window["dilations"] = [dilation, 1]
        if padding == "NOTSET":
            window["pads"] = [pad, 0, 0, 1]
        weights = {"w": np.zeros((4, 3, kernel, 2), "float32")} if op == "Conv" else {}
        model = onnx_model([node(op, ["x", *weights], ["y"], **window)], {"x": (2, 3, size, 7)}, weights)
        del model.graph.output[0].type.tensor_type.shape.dim[:]
        model.graph.output[0].type.tensor_type.ClearField("shape")
        found = told(model, "y")
        if found is not None:
            told_some += 1
            assert found == (FLOAT, inferred(model)), (size, window)
    assert told_some > 40


def test_chain_of_values() -> None:
    """Values between input and question are found on the way, in whatever order the nodes are."""
    nodes = [
        node("Relu", ["c"], ["y"]),
        node("Concat", ["a", "b"], ["c"], axis=1),
        node("Relu", ["x"], ["a"]),
        node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        node("Transpose", ["t"], ["b"], perm=[0, 2, 1]),
    ]
    assert told(onnx_model(nodes, {"x": (2, 3, 5)}), "y") == (FLOAT, (2, 6, 5))


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([node("Relu", ["x"], ["y"])], (2, "n")),  # open
        ([node("NonZero", ["x"], ["y"])], (2, 3)),  # no rule
        ([node("Relu", ["x"], ["y"], domain="com.microsoft")], (2, 3)),  # another operator of that name
        ([node("Add", ["x", "z"], ["y"]), node("Relu", ["y"], ["z"])], (2, 3)),  # a cycle
        ([node("Add", ["x", "z"], ["y"])], (2, 3)),  # from nowhere
        ([node("Transpose", ["x"], ["y"], perm=[0, 0])], (2, 3)),  # broken
        ([node("MatMul", ["x", "x"], ["y"])], (2, 3)),
        ([node("Concat", ["x", "t"], ["y"], axis=0), node("Transpose", ["x"], ["t"])], (2, 3)),
        ([node("Unsqueeze", ["x", "x"], ["y"])], (2, 3)),  # axes that are not constant
        ([node("MaxPool", ["x"], ["y"], kernel_shape=[4, 4])], (1, 1, 3, 3)),  # no window fits
    ],
)
def test_untold(nodes: list[onnx.NodeProto], shape: tuple[Any, ...]) -> None:
    assert told(onnx_model(nodes, {"x": shape}), "y") is None


@pytest.mark.parametrize(
    ("broken", "constants"),
    [
        (node("Unsqueeze", ["x", "c"], ["y"]), [0, 0]),  # an axis twice
        (node("Unsqueeze", ["x", "c"], ["y"]), [4]),  # an axis that there is not
        (node("Squeeze", ["x", "c"], ["y"]), [5]),
        (node("Concat", ["x", "x"], ["y"], axis=3), []),
        (node("Split", ["x"], ["y", "z"], axis=2), []),
    ],
)
def test_untold_axes(broken: onnx.NodeProto, constants: list[int]) -> None:
    assert told(onnx_model([broken], {"x": (1, 2)}, {"c": np.array(constants, "int64")}), "y") is None


def test_pads_of_named_axes() -> None:
    """The pads are in the order of the axes."""
    pads = {"p": np.array([1, 0, 2, 0], "int64"), "a": np.array([1, 0], "int64")}
    model = onnx_model([node("Pad", ["x", "p", "", "a"], ["y"])], {"x": (2, 3)}, pads, opset=18)
    assert told(model, "y") in (None, (FLOAT, (2, 6)))


def test_results_that_are_left_out_are_no_inputs_that_are_left_out() -> None:
    """Both have the empty name; the second must not get the type of the first."""
    weights = {n: np.zeros((1, 8, d), "float32") for n, d in (("w", 3), ("r", 2))}
    nodes = [
        node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=2),
        node("Max", ["h", ""], ["y"]),  # broken
    ]
    assert told(onnx_model(nodes, {"x": (5, 4, 3)}, weights), "h") == (FLOAT, (1, 4, 2))
    assert told(onnx_model(nodes, {"x": (5, 4, 3)}, weights), "y") is None


def test_before_opset_7() -> None:
    """Operators broadcast along an axis that an attribute names."""
    b = np.zeros(3, "float32")
    add = node("Add", ["x", "b"], ["y"], axis=1, broadcast=1)
    assert told(onnx_model([add], {"x": (2, 3, 1, 1)}, {"b": b}, opset=6), "y") is None


def test_folding_without_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``Reshape`` to what follows from an image's shape needs no inference by ONNX."""
    from tvm_byoc_dnnl.frontend import to_relax

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("ONNX's inference was asked")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", refuse)
    asked: list[str] = []
    monkeypatch.setattr(defs, "has", lambda *args: asked.append(args[0]))
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2]),
        node("Shape", ["c"], ["s"]),
        node("Slice", ["s", "zero", "two"], ["head"]),
        node("Concat", ["head", "minus"], ["target"], axis=0),
        node("Reshape", ["c", "target"], ["r"]),
        node("Shape", ["r"], ["s2"]),
        node("Gather", ["s2", "zero"], ["g"]),
        node("Concat", ["g", "minus"], ["t2"], axis=0),
        node("Reshape", ["r", "t2"], ["y"]),
    ]
    constants = {
        "w": np.ones((4, 3, 3, 3), "float32"),
        **{name: np.array([value], "int64") for name, value in {"zero": 0, "two": 2, "minus": -1}.items()},
    }
    module = to_relax(onnx_model(nodes, {"x": (2, 3, 9, 9)}, constants))
    assert tuple(int(d) for d in module["main"].ret_ty.shape) == (2, 64)
    assert not asked


@pytest.mark.parametrize("op", sorted(functions._WITHOUT_BODY))
def test_operators_without_body(op: str) -> None:
    schemas = [s for s in defs.get_all_schemas_with_history() if s.name == op and not s.domain]
    assert schemas
    assert not any(s.has_function or s.has_context_dependent_function for s in schemas)
