"""Sizes that only a call knows: Reshape, Expand and ConstantOfShape whose shape is an input."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tvm_byoc_dnnl as byoc
from tests.unit.importing import check, onnx_model, rand
from tvm_byoc_dnnl.core.errors import InputError

X = np.random.default_rng(0).standard_normal((2, 3, 1, 5)).astype("float32")


def _model(op: str, dims: list[Any] | None, count: int, **attrs: Any) -> onnx.ModelProto:
    inputs = [] if dims is None else [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)]
    inputs.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [count]))
    node = helper.make_node(op, [i.name for i in inputs], ["y"], name="node", **attrs)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


CASES = [
    ("Reshape", list(X.shape), {}, [[6, 5], [5, 6], [-1, 3], [0, -1], [30, 1]]),
    ("Reshape", ["a", "b", 1, "c"], {}, [[6, 5, 1], [0, 0, -1], [-1, 1, 1]]),
    ("Reshape", [2, 0, 3], {"allowzero": 1}, [[0, 7], [3, 0]]),
    ("Expand", list(X.shape), {}, [[2, 3, 4, 5], [1, 1, 7, 1], [2, 1, 1, 5]]),
    ("Expand", list(X.shape), {}, [[6, 1, 3, 2, 5], [1, 2, 1, 1, 1]]),
    ("Expand", list(X.shape), {}, [[9, 5], [1, 1]]),
    ("Expand", [2, 3, 1, "n"], {}, [[2, 3, 4, 5], [1, 3, 2, 1]]),
    ("Squeeze", ["a", 3, "b", 5], {}, [[2], [-2]]),
    ("Unsqueeze", list(X.shape), {}, [[0, 2], [-1, 1]]),
    ("ConstantOfShape", None, {}, [[2, 3], [0, 4], [1, 1]]),
    (
        "ConstantOfShape",
        None,
        {"value": helper.make_tensor("v", TensorProto.FLOAT, [1], [-np.inf])},
        [[2, 3, 4], [1, 1, 1]],
    ),
]


@pytest.mark.parametrize(("op", "dims", "attrs", "sizes"), CASES)
def test_one_model_serves_all_sizes(op: str, dims: Any, attrs: dict[str, Any], sizes: list[list[int]]) -> None:
    model = _model(op, dims, len(sizes[0]), **attrs)
    run, reference = byoc.Runner(byoc.compile(model)), ReferenceEvaluator(model)
    x = X if dims is None or 0 not in dims else np.zeros(dims, "float32")
    for given in sizes:
        feeds = {} if dims is None else {"x": x}
        feeds["sizes"] = np.array(given)
        (want,) = reference.run(None, feeds)
        np.testing.assert_array_equal(np.asarray(run(*feeds.values())), want)


@pytest.mark.parametrize(
    ("op", "wrong"), [("Reshape", [7, 4]), ("Reshape", [-1, 4]), ("Expand", [5, 4]), ("Expand", [3, 2])]
)
def test_a_size_that_does_not_fit_is_an_error(op: str, wrong: list[int]) -> None:
    run = byoc.Runner(byoc.compile(_model(op, list(X.shape), 2)))
    with pytest.raises(byoc.ByocError):
        run(X, np.array(wrong))


# ---------------------------------------------------------------- sizes that are counted, and must agree
_N = helper.make_node
_BEHIND = {
    "a scan": [_N("CumSum", ["b", "axis"], ["b1"]), _N("Add", ["a", "b1"], ["z"])],
    "one after the other": [
        *(_N("Transpose", [i], [o], perm=[1, 0]) for i, o in (("b", "b1"), ("b1", "b2"))),
        _N("CumSum", ["b2", "axis"], ["b3"]),
        _N("Add", ["a", "b3"], ["c"]),
        _N("Add", ["c", "b"], ["d"]),
        _N("CumSum", ["d", "axis"], ["e"]),
        _N("Mul", ["e", "a"], ["z"]),
    ],
    "a product": [_N("Relu", ["b"], ["b1"]), _N("Sub", ["b1", "a"], ["c"]), _N("MatMul", ["c", "w"], ["z"])],
}


@pytest.mark.parametrize("behind", _BEHIND)
def test_counts_of_elements_that_must_agree(behind: str) -> None:
    """As many rows as elements that are not 0: of x in `a`, of y in `b`."""
    nodes = []
    for given, rows in (("x", "a"), ("y", "b")):
        nodes += [
            _N("NonZero", [given], [f"{given}1"]),
            _N("Cast", [f"{given}1"], [f"{given}2"], to=TensorProto.FLOAT),
            _N("Transpose", [f"{given}2"], [f"{given}3"], perm=[1, 0]),
            _N("MatMul", [f"{given}3", "w"], [rows]),
        ]
    weights = {"w": np.array([[0.5]], "float32"), "axis": np.array(0)}
    graph = helper.make_graph(
        [*nodes, *_BEHIND[behind]],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [dim]) for name, dim in (("x", "n"), ("y", "m"))],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    run, reference = byoc.Runner(byoc.compile(model)), ReferenceEvaluator(model)
    x, y = np.array([1, 0, 2, 0, 3], "float32"), np.array([0, 1, 1, 1], "float32")
    for feeds in ({"x": x, "y": y}, {"x": y, "y": x}, {"x": x[:1], "y": y[:2]}, {"x": x[:0], "y": y[:1]}):
        np.testing.assert_allclose(run(*feeds.values()), reference.run(None, feeds)[0], rtol=1e-6)
    with pytest.raises(InputError):
        run(x, np.ones(4, "float32"))


# ---- sizes that are open in one operand and known in another ------------------------------------------------

_ROTARY = {"x": (2, 3, 4, "w"), "cos": (2, 4, 3), "sin": (2, 4, 3)}
_HEADS = {"q_num_heads": 3, "kv_num_heads": 3, "scale": 0.2}
_LONG = {"l": 5, "m": 37, "w": 24, "u": 33}
OTHERS: list[tuple[str, int, dict[str, Any], dict[str, Any], dict[str, int]]] = [
    ("Conv", 11, {"x": ("n", "c", 7, 7), "w": (4, 3, "h", "v")}, {"kernel_shape": [3, 2]}, {"h": 3, "v": 2}),
    ("Conv", 11, {"x": (2, 4, "h", 7), "w": ("o", "i", 3, 3)}, {"group": 2}, {"o": 6, "i": 2, "h": 5}),
    ("Conv", 11, {"x": (2, 4, 8, 7), "w": ("o", "i", "h", 3)}, {"group": 2}, {"o": 6, "i": 2, "h": 5}),
    ("ConvTranspose", 11, {"x": (1, 2, 5), "w": (2, 3, "k")}, {"strides": [2], "pads": [1, 0]}, {"k": 4}),
    ("DFT", 20, {"x": (2, 6, "c")}, {"onesided": 1}, {"c": 1}),
    ("InstanceNormalization", 6, {"x": (2, "c", 4, 5), "s": ("d",), "b": (3,)}, {}, {"d": 3}),
    ("BatchNormalization", 15, {"x": (2, "c", 5), **dict.fromkeys("sbm", ("d",)), "v": (3,)}, {}, {"d": 3}),
    ("GroupNormalization", 21, {"x": (2, "c", 5), "s": ("d",), "b": (4,)}, {"num_groups": 2}, {"c": 4, "d": 4}),
    ("GroupNormalization", 21, {"x": (2, "c", 5), **dict.fromkeys("sb", ("c",))}, {"num_groups": 3}, {"c": 6}),
    ("GroupNormalization", 18, {"x": (2, "c", 5), **dict.fromkeys("sb", (2,))}, {"num_groups": 2}, {"c": 6}),
    ("RotaryEmbedding", 23, _ROTARY, {}, {"w": 6}),
    ("RotaryEmbedding", 23, {**_ROTARY, "x": (2, 4, "w")}, {"num_heads": 2}, {"w": 12}),
    ("AffineGrid", 20, {"x": ("n", 2, 3), "size": [2, 3, 4, 1]}, {"align_corners": 1}, {}),
    # sizes of several operands at once are compared while the model runs, each in memory of its own
    (
        "Attention",
        23,
        {"q": ("n", "l", "w"), **dict.fromkeys("kv", ("n", "m", "w"))},
        _HEADS,
        {"l": 4, "m": 6, "w": 24},
    ),
    ("Attention", 23, {"q": ("n", "l", "w"), "k": ("n", "m", "w"), "v": ("n", "m", "u")}, _HEADS, _LONG),
]


@pytest.mark.parametrize(("op", "opset", "inputs", "attrs", "sizes"), OTHERS)
def test_what_another_operand_says(op: str, opset: int, inputs: Any, attrs: Any, sizes: dict[str, int]) -> None:
    rng, given, feeds = np.random.default_rng(1), {"n": 2, "c": 3, **sizes}, {}
    values = []
    for name, dims in inputs.items():
        is_size = name == "size"
        kind, declared = (TensorProto.INT64, [len(dims)]) if is_size else (TensorProto.FLOAT, dims)
        values.append(helper.make_tensor_value_info(name, kind, declared))
        feeds[name] = np.array(dims) if is_size else rng.random([given.get(d, d) for d in dims], "float32")
    node = helper.make_node(op, list(inputs), ["y"], name="node", **attrs)
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    got = np.asarray(byoc.Runner(byoc.compile(model))(*feeds.values()))
    np.testing.assert_allclose(got, ReferenceEvaluator(model).run(None, feeds)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "message"),
    [
        ("RotaryEmbedding", 23, {**_ROTARY, "cos": (2, 4, "h"), "sin": (2, 4, "h")}, "rotates h pairs of w columns"),
        ("RotaryEmbedding", 23, {**_ROTARY, "x": (2, 3, 4, 7)}, "rotates 7 columns by 3 cosines"),
    ],
)
def test_what_no_operand_says_is_refused(op: str, opset: int, inputs: Any, message: str) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    node = helper.make_node(op, list(inputs), ["y"], name="it")
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    with pytest.raises(byoc.ByocError, match=rf"{op} \(node `it`\).*{message}"):
        byoc.compile(model)


def test_a_skip_and_its_norm_are_of_one_width() -> None:
    made = helper.make_node("SkipLayerNormalization", ["x", "s", "g"], ["y", "", "", "t"], domain="com.microsoft")
    inputs = {"x": (2, "n", "w"), "s": (2, "n", "v")}
    model = onnx_model([made], inputs, {"g": np.ones(8, "float32")}, outputs=("y", "t"))
    check(model, inputs={"x": rand(2, 3, 8), "s": rand(2, 3, 8)}, tolerance=1e-4)


#: name → nodes that compute the end of a slice from the size ``n``
ENDS = {
    "behind the last": [helper.make_node("Add", ["n", "one"], ["end"])],
    "of either sign": [helper.make_node("Div", ["n", "eight"], ["a"]), helper.make_node("Sub", ["a", "one"], ["end"])],
}


def test_sizes_of_either_sign_are_cut_to_zero_without_a_call() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Sub", ["n", "eight"], ["a"]),
        helper.make_node("Div", ["a", "three"], ["b"]),
        helper.make_node("Add", ["b", "eight"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["y"]),
    ]
    model = onnx_model(nodes, {"x": ("n",)}, {"three": np.array([3]), "eight": np.array([8])})
    assert "ndim" not in str(byoc.to_relax(model)["main"].ret_ty)  # but a size made of n
    for n in (1, 7, 17):
        check(model, inputs={"x": rand(n)})


@pytest.mark.parametrize("name", list(ENDS))
def test_ends_of_slices_that_are_computed_from_sizes(name: str) -> None:
    size = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "one"], ["n"])]
    cut = helper.make_node("Slice", ["x", "zero", "end", "one", "one"], ["y"])
    constants = {"zero": np.array([0]), "one": np.array([1]), "eight": np.array([8])}
    model = onnx_model([*size, *ENDS[name], cut], {"x": (2, "n")}, constants)
    run, reference = byoc.Runner(byoc.compile(model)), ReferenceEvaluator(model)
    for n in (1, 7, 8, 17, 24):
        x = rand(2, n)
        np.testing.assert_array_equal(np.asarray(run(x)), reference.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("op", "attrs", "number"),
    [("Div", {}, 2.0), ("Div", {}, 3.5), ("Mul", {}, 0.5), ("Mod", {"fmod": 1}, [2.0, -3.0]), ("Add", {}, 0.25)],
)
def test_sizes_as_real_numbers(op: str, attrs: Any, number: Any) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node(op, ["f", "number"], ["a"], **attrs),
        helper.make_node("Ceil", ["a"], ["b"]),
        helper.make_node("Sum", ["a", "b"], ["y"]),
    ]
    number = np.float32(number)
    model = onnx_model(nodes, {"x": ("n", 4)}, {"number": number})
    run, a = byoc.Runner(byoc.compile(model)), np.array([7, 4], "float32")
    values = {"Div": a / number, "Mul": a * number, "Mod": np.fmod(a, number), "Add": a + number}[op]
    np.testing.assert_array_equal(np.asarray(run(rand(7, 4))), values.astype("float32") + np.ceil(values))
