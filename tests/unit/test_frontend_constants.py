"""Constants, shapes and old forms of ONNX models, which are rewritten before the import."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.harness import assert_right
from tests.unit.importing import check, node, onnx_model, prepared, rand, run
from tvm_byoc_dnnl import Runner, compile
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.frontends.onnx.inputs import fix_values
from tvm_byoc_dnnl.testing.models import random_inputs

IMAGE = {"x": (1, 3, 10, 11)}
W = {"w": rand(4, 3, 3, 3)}

POOL = {"kernel_shape": [2, 2]}


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def test_reshape_to_a_computed_shape() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "zero1"], ["n1"]),
        node("Concat", ["n1", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    constants = {"zero": ints(0).reshape(()), "zero1": ints(0), "rest": ints(-1)}
    assert check(onnx_model(nodes, {"x": (2, 3, 4)}, constants)) == {"reshape": 1}


def _sliced(source: str, result: str, start: int, stop: int) -> onnx.NodeProto:
    return node("Slice", [source, f"i{start}", f"i{stop}"], [result])


@pytest.mark.parametrize(
    ("dims", "shape"),
    [(("?", 200, 2, 3), (2, 200, 2, 3)), (("n", "c", "h", "w"), (2, 3, 4, 5))],
    ids=["batch", "all"],
)
def test_reshape_that_keeps_open_dims(dims: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    """As Paddle writes ``flatten``: the shape as int32, cut, cast and put together again."""
    nodes = [
        node("Shape", ["x"], ["s64"]),
        node("Cast", ["s64"], ["s"], to=TensorProto.INT32),
        _sliced("s", "n", 0, 2),
        node("Cast", ["n"], ["n64"], to=TensorProto.INT64),
        node("Concat", ["n64", "rest"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["y"]),
    ]
    model = onnx_model(nodes, {"x": dims}, {"i0": ints(0), "i2": ints(2), "rest": ints(-1)}, opset=11)
    assert check(model, inputs={"x": rand(*shape)}) == {"reshape": 1}


def test_reshapes_of_attention_with_open_batch_and_length() -> None:
    """As exporters write heads: batch and length of the input, split in front of, and joined behind a transposition."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        *(node("Gather", ["s", f"g{axis}"], [f"d{axis}"], axis=0) for axis in (0, 1)),
        *(node("Unsqueeze", [f"d{axis}", "i0"], [f"u{axis}"]) for axis in (0, 1)),
        node("Concat", ["u0", "u1", "heads"], ["split"], axis=0),
        node("Reshape", ["x", "split"], ["a"]),
        node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        node("Transpose", ["t"], ["b"], perm=[0, 2, 1, 3]),
        node("Shape", ["b"], ["sb"]),
        node("Gather", ["sb", "g0"], ["e0"], axis=0),
        node("Gather", ["sb", "minus2"], ["e2"], axis=0),
        node("Gather", ["sb", "minus1"], ["e3"], axis=0),
        node("Mul", ["e2", "e3"], ["width"]),
        *(node("Unsqueeze", [name, "i0"], [f"{name}u"]) for name in ("e0", "width")),
        node("Concat", ["e0u", "rest", "widthu"], ["joined"], axis=0),
        node("Reshape", ["b", "joined"], ["y"]),
    ]
    scalars = {"g0": 0, "g1": 1, "minus1": -1, "minus2": -2}
    constants = {k: ints(v).reshape(()) for k, v in scalars.items()}
    constants |= {"i0": ints(0), "heads": ints(4, 8), "rest": ints(-1)}
    got = check(onnx_model(nodes, {"x": ("batch", "length", 32)}, constants), inputs={"x": rand(2, 5, 32)})
    assert got["reshape"] == 2


@pytest.mark.native
@pytest.mark.parametrize("shape", [(2, 3), (1, 5), (0, 4)])
def test_reshape_to_several_open_dims(shape: tuple[int, int]) -> None:
    """The dims change places: neither can be left to the other."""
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "back"], ["to"]), node("Reshape", ["x", "to"], ["y"])]
    runner = Runner(compile(onnx_model(nodes, {"x": ("n", "m")}, {"back": ints(1, 0)})))
    x = rand(*shape)
    np.testing.assert_array_equal(runner(x), x.reshape(shape[::-1]))


def test_shapes_close_what_the_model_leaves_open() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Reshape", ["w", "s"], ["r"]), node("Add", ["x", "r"], ["y"])]
    model = onnx_model(nodes, {"x": ("n", "m")}, {"w": rand(12)})
    assert check(model, shapes={"x": (3, 4)}) == {"add": 1}


def test_weights_made_by_constant_of_shape() -> None:
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.02])
    nodes = [node("ConstantOfShape", ["s"], ["w"], value=value), node("Conv", ["x", "w"], ["y"])]
    assert check(onnx_model(nodes, IMAGE, {"s": ints(64, 3, 10, 11)})) == {"nn.conv2d": 1}


def test_nodes_in_any_order() -> None:
    nodes = [node("Relu", ["a"], ["y"]), node("Conv", ["x", "w"], ["a"]), node("Relu", ["b"], ["unused"])]
    nodes.append(node("Neg", ["x"], ["b"]))
    assert check(onnx_model(nodes, IMAGE, W)) == {"nn.conv2d": 1, "nn.relu": 1}  # ONNX Runtime sorts by itself


def test_initialisers_that_are_inputs_too() -> None:
    model = onnx_model([node("Conv", ["x", "w"], ["y"])], {**IMAGE, "w": (4, 3, 3, 3)}, W)
    mod = to_relax(model)
    assert len(mod["main"].params) == 1
    assert list(mod["main"].attrs["input_names"]) == ["x"]


def test_pads_that_are_computed() -> None:
    nodes = [node("Concat", ["a", "b"], ["p"], axis=0), node("Pad", ["x", "p"], ["y"])]
    constants = {"a": ints(0, 0, 1, 2), "b": ints(0, 0, 0, 1)}
    assert check(onnx_model(nodes, IMAGE, constants)) == {"nn.pad": 1}


def test_a_large_result_is_not_folded() -> None:
    nodes = [node("Expand", ["c", "s"], ["e"]), node("Add", ["x", "e"], ["y"])]
    model = onnx_model(nodes, {"x": (200, 300)}, {"c": rand(1, 300), "s": ints(200, 300)})
    assert check(model) == {"add": 1}


def test_random_operators_are_not_folded() -> None:
    module = to_relax(onnx_model([node("RandomNormalLike", ["c"], ["y"])], {"x": (2,)}, {"c": rand(3)}))
    assert {v.name_hint for v in module.get_global_vars()} == {"main", "random"}


def test_constants_of_every_spelling_in_subgraphs() -> None:
    def branch(name: str, **value: object) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [3])
        nodes = [node("Constant", [], [f"{name}_c"], **value), node("Add", ["x", f"{name}_c"], [f"{name}_y"])]
        return helper.make_graph(nodes, name, [], [out])

    one = node(
        "If", ["c"], ["y"], then_branch=branch("a", value_float=2.0), else_branch=branch("b", value_floats=[1.0])
    )
    model = onnx_model([one], {"c": (), "x": (3,)}, dtypes={"c": TensorProto.BOOL})
    for flag in (True, False):
        check(model, inputs={"c": np.array(flag), "x": rand(3)})


def test_subgraphs_keep_what_they_capture() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4])
        return helper.make_graph([node(op, ["doubled"], [f"{name}_y"])], name, [], [out])

    nodes = [
        node("Add", ["x", "x"], ["doubled"]),
        node("If", ["c"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg")),
    ]
    model = onnx_model(nodes, {"c": (), "x": (4,)}, dtypes={"c": TensorProto.BOOL})
    for flag in (True, False):
        check(model, inputs={"c": np.array(flag), "x": rand(4)})


@pytest.mark.parametrize("axes", [None, [2, 0]])
def test_slice_by_attributes(axes: list[int] | None) -> None:
    attrs = {} if axes is None else {"axes": axes}
    cut = node("Slice", ["x"], ["y"], starts=[1, 0], ends=[-1, 2], **attrs)
    assert check(onnx_model([cut], {"x": (3, 4, 5)}, opset=9)) == {"strided_slice": 1}


def test_top_k_10() -> None:
    model = onnx_model([node("TopK", ["x", "k"], ["y", "i"], axis=1)], {"x": (3, 8)}, {"k": ints(3)}, opset=10)
    assert check(model)["topk"] == 1


@pytest.mark.parametrize("size", [1, 3])
def test_prelu_of_old_opsets(size: int) -> None:
    model = onnx_model([node("PRelu", ["x", "s"], ["y"])], {"x": (2, 3, 4)}, {"s": rand(size)}, opset=6)
    x = random_inputs(model)["x"]
    want = np.where(x < 0, x * rand(size).reshape(1, size, 1), x)
    assert_right(run(prepared(to_relax(model)), x)[0], want, 1e-6, elementwise=True)


@pytest.mark.parametrize("shape", [(3, 1), (1, 3, 1), (4,), (1,)], ids=str)
def test_prelu(shape: tuple[int, ...]) -> None:
    assert check(onnx_model([node("PRelu", ["x", "s"], ["y"])], {"x": (2, 3, 4)}, {"s": rand(*shape)})) == {
        "nn.prelu": 1
    }


@pytest.mark.parametrize("slope", [(), (1,), (2, 1, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint64"])
def test_prelu_of_any_form(slope: tuple[int, ...], dtype: str) -> None:
    shape = (2, 3, 4) if len(slope) != 0 else ()
    x, s = (
        np.array(np.round(rand(*d, seed=k) * 4) % 7 - 3 * (dtype[0] != "u"), dtype)
        for k, d in enumerate([shape, slope])
    )
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = onnx_model([node("PRelu", ["x", "s"], ["y"])], {"x": shape}, {"s": s}, dtypes={"x": kind, "y": kind})
    got = run(prepared(to_relax(model)), x)[0]
    assert got.shape == shape
    np.testing.assert_array_equal(got, np.where(x < 0, x * s, x))


def test_operands_were_aligned_at_an_axis_once() -> None:
    add = node("Add", ["x", "b"], ["y"], broadcast=1, axis=1)
    model = onnx_model([add], {"x": (2, 3, 4)}, {"b": rand(3)}, opset=6)
    want = random_inputs(model)["x"] + rand(3).reshape(1, 3, 1)
    assert_right(run(prepared(to_relax(model)), random_inputs(model)["x"])[0], want, 1e-6, elementwise=True)


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E5M2"])
def test_a_small_constant_of_a_dtype_that_numpy_lacks(kind: str) -> None:
    """It keeps its dtype; ml_dtypes calls some of these dtypes floats as NumPy's are."""
    constant = helper.make_tensor("c", getattr(TensorProto, kind), [3], [0.5, -1.0, 2.0])
    nodes = [helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT), helper.make_node("Add", ["x", "f"], ["y"])]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    module = to_relax(helper.make_model(helper.make_graph(nodes, "g", value[:1], value[1:], [constant])))
    x = rand(2, 3)
    np.testing.assert_array_equal(run(module, x)[0], x + np.array([0.5, -1.0, 2.0], "float32"))


def _sparse(places: Any, name: str = "w") -> onnx.SparseTensorProto:
    values, indices = np.array([0.5, -1.0, 2.0], "float32"), np.array(places)
    return helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(values, name), onnx.numpy_helper.from_array(indices), [2, 3]
    )


@pytest.mark.parametrize("places", [[0, 4, 5], [[0, 0], [1, 1], [1, 2]]], ids=["counted", "by axes"])
@pytest.mark.parametrize("where", ["initialiser", "in a branch", "node"])
def test_sparse_constants(where: str, places: Any) -> None:
    sparse = _sparse(places)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    nodes = [node("Add", ["x", "w"], ["y"])]
    if where == "node":
        nodes.insert(0, node("Constant", [], ["w"], sparse_value=sparse))
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], sparse_initializer=[] if where == "node" else [sparse])
    if where == "in a branch":
        graph.ClearField("input")
        branches = {"then_branch": graph, "else_branch": graph}
        graph = helper.make_graph([node("If", ["c"], ["y"], **branches)], "g", value[:1], value[1:])
        graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    x, more = rand(2, 3), [np.array(True)] * (where == "in a branch")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    want = x + np.array([[0.5, 0, 0], [0, -1, 2]], "float32")
    np.testing.assert_array_equal(run(to_relax(model), x, *more)[0], want)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Erf", ["x"], ["e"]), node("Conv", ["e", "w"], ["c"]), node("MaxPool", ["c"], ["y"], **POOL)],
        [node("ThresholdedRelu", ["x"], ["e"]), node("MaxPool", ["e"], ["y"], **POOL)],
        [node("Slice", ["w", "from", "to"], ["s"]), node("Conv", ["x", "s"], ["y"])],
        [node("Slice", ["large", "from", "to"], ["s"]), node("Conv", ["x", "s"], ["y"])],
    ],
    ids=["convolution", "activation", "small slice", "large slice"],
)
def test_that_types_are_not_inferred_by_onnx(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inference infers whole models, and takes 10 ms when it is first asked."""
    constants = {"w": rand(4, 3, 3, 3), "large": rand(1000, 3, 3, 3), "from": ints(1), "to": ints(1000)}
    calls = []
    infer = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *a, **k: (calls.append(1), infer(*a, **k))[1])
    to_relax(onnx_model(nodes, IMAGE, constants))
    assert not calls


def test_an_input_that_has_a_value_in_the_model() -> None:
    """It keeps it, unless it is named among the shapes, or has another value compiled in."""
    w = rand(3, 4)
    model = onnx_model([node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, {"w": w})
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 4]))
    x = rand(2, 3, seed=2)
    assert_right(Runner(compile(model))(x), x @ w)
    assert_right(Runner(compile(model, shapes={"w": (3, 4)}))(x=x, w=2 * w), x @ (2 * w))
    assert_right(Runner(compile(fix_values(model, {"w": (3 * w).tolist()})))(x), x @ (3 * w))
