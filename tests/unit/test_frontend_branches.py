"""Nodes inside of `If`, `Loop` and functions are imported as the same nodes outside are, compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.importing import check, node, onnx_model, rand, run
from tvm_byoc_dnnl import Runner, compile
from tvm_byoc_dnnl.core.errors import ByocError, UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax

pytestmark = pytest.mark.native
FLAG = {"c": TensorProto.BOOL}


def graph(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str] = ("y",), constants: Mapping[str, Any] | None = None
) -> onnx.GraphProto:
    """A branch: its results are the values ``outputs`` of ``nodes``."""
    values = [helper.make_empty_tensor_value_info(name) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    return helper.make_graph(list(nodes), "branch", [], values, tensors)


def either(then: onnx.GraphProto, other: onnx.GraphProto, results: Sequence[str] = ("y",)) -> onnx.NodeProto:
    return node("If", ["c"], list(results), then_branch=then, else_branch=other)


def both_ways(model: onnx.ModelProto, *arrays: np.ndarray) -> None:
    """Compare the results for either condition."""
    names = [i.name for i in model.graph.input if i.name != "c"]
    for flag in (True, False):
        check(model, inputs={"c": np.array(flag), **dict(zip(names, arrays, strict=True))}, tolerance=1e-4)


X = (2, 4, 5)
OTHER = graph([node("Add", ["x", "x"], ["y"])])
#: what a rewrite of ours computes, and what TVM's converters make more than one operator of
ROWS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], int]] = {
    "norm": ([node("LayerNormalization", ["x", "g", "g"], ["y"])], {"g": rand(5)}, 17),
    "statistics": (
        [node("LayerNormalization", ["x", "g"], ["n", "m"]), node("Mul", ["n", "m"], ["y"])],
        {"g": rand(5)},
        17,
    ),
    "batch_norm": (
        [node("BatchNormalization", ["x", "g", "g", "g", "o"], ["y"])],
        {"g": rand(4), "o": np.ones(4, "float32")},
        15,
    ),
    "batch_norm_7": (
        [node("BatchNormalization", ["x", "g", "g", "g", "o"], ["y"])],
        {"g": rand(4), "o": np.ones(4, "float32")},
        7,
    ),
    "dropout": ([node("Dropout", ["x"], ["y"])], {}, 13),
    "top_k": ([node("TopK", ["x", "k"], ["v", "i"], axis=1), node("Relu", ["v"], ["y"])], {"k": np.array([2])}, 17),
    "split": ([node("Split", ["x"], ["u", "y"], axis=1)], {}, 13),
    "slice_9": (
        [
            node("Slice", ["x"], ["u"], starts=[1], ends=[3], axes=[1]),
            node("Slice", ["x"], ["v"], starts=[0], ends=[2], axes=[1]),
            node("Concat", ["u", "v"], ["y"], axis=1),
        ],
        {},
        9,
    ),
    "hard_swish": ([node("HardSwish", ["x"], ["y"])], {}, 17),
    "mish": ([node("Mish", ["x"], ["y"])], {}, 18),
    "depth": (
        [node("Reshape", ["x", "s"], ["d"]), node("DepthToSpace", ["d"], ["y"], blocksize=2, mode="CRD")],
        {"s": np.array([1, 4, 2, 5])},
        13,
    ),
    "transposed": (
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[2], output_shape=[12])],
        {"w": rand(4, 3, 3)},
        17,
    ),
    "signs": (
        [
            node("Log", ["z"], ["l"]),
            node("Add", ["x", "l"], ["d"]),
            node("IsInf", ["d"], ["i"], detect_negative=0),
            node("Cast", ["i"], ["y"], to=1),
        ],
        {"z": np.zeros(5, "float32")},
        17,
    ),
    "shape": (
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "i"], ["b"]),
            node("Concat", ["b", "m"], ["t"], axis=0),
            node("Reshape", ["x", "t"], ["y"]),
        ],
        {"i": np.array([0]), "m": np.array([-1])},
        17,
    ),
    "quantised": (
        [node("DynamicQuantizeLinear", ["x"], ["q", "a", "b"]), node("DequantizeLinear", ["q", "a", "b"], ["y"])],
        {},
        11,
    ),
    "power": ([node("Pow", ["x", "e"], ["y"])], {"e": np.array(2)}, 15),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_branch_computes_what_the_same_nodes_compute_outside(name: str) -> None:
    nodes, constants, opset = ROWS[name]
    both_ways(
        onnx_model([either(graph(nodes), OTHER)], {"c": (), "x": X}, constants, opset=opset, dtypes=FLAG), rand(*X)
    )


def test_what_follows_a_choice_does_not_overwrite_it() -> None:
    """Results of branches live as long as the choice between them does."""
    then = graph([node("MatMul", ["x", "w"], ["t"]), node("Exp", ["t"], ["y"])])
    other = graph([node("MatMul", ["w", "x"], ["t"]), node("Tanh", ["t"], ["y"])])
    after = [node("MatMul", ["x", "x"], ["a"]), node("MatMul", ["a", "w"], ["b"]), node("MatMul", ["b", "a"], ["e"])]
    nodes = [either(then, other, ["z"]), *after, node("Add", ["e", "z"], ["y"])]
    both_ways(
        onnx_model(nodes, {"c": (), "x": (32, 32)}, {"w": rand(32, 32, seed=2) / 8}, dtypes=FLAG), rand(32, 32) / 8
    )


def test_several_results_of_other_shapes() -> None:
    """One of them is a sequence of as many items as the branch makes."""
    results = ["r", "s", "q"]
    one, two = (node("SequenceConstruct", names, ["q"]) for names in (["d"], ["x", "d"]))
    then = graph([node("Relu", ["d"], ["r"]), node("Identity", ["d"], ["s"]), one], results)
    other = graph(
        [node("Concat", ["x", "k"], ["r"], axis=0), node("Exp", ["x"], ["s"]), two], results, {"k": rand(1, 3)}
    )
    last = node("ConcatFromSequence", ["p"], ["joined"], axis=0)
    nodes = [node("Neg", ["x"], ["d"]), either(then, other, ["y", "z", "p"]), last]
    both_ways(onnx_model(nodes, {"c": (), "x": (2, 3)}, outputs=["y", "z", "joined"], dtypes=FLAG), rand(2, 3))


def test_a_choice_in_a_choice_in_a_loop() -> None:
    inner = node(
        "If",
        ["c"],
        ["y"],
        then_branch=graph([node("Elu", ["v"], ["y"])]),
        else_branch=graph([node("Neg", ["v"], ["y"])]),
    )
    outer = node("If", ["c"], ["w"], then_branch=graph([inner]), else_branch=graph([node("Mul", ["v", "x"], ["y"])]))
    flag, number = (TensorProto.BOOL, []), (TensorProto.INT64, [])
    values = {"k": number, "go": flag, "v": (TensorProto.FLOAT, [3]), "on": flag, "w": (TensorProto.FLOAT, [3])}
    infos = [helper.make_tensor_value_info(name, *kind) for name, kind in values.items()]
    body = helper.make_graph([node("Identity", ["go"], ["on"]), outer], "body", infos[:3], infos[3:])
    loop = node("Loop", ["n", "", "x"], ["y"], body=body)
    both_ways(onnx_model([loop], {"c": (), "x": (3,)}, {"n": np.array(2)}, dtypes=FLAG), rand(3))


@pytest.mark.parametrize("flag", [True, False])
def test_only_the_branch_that_a_known_condition_takes_has_to_be_possible(flag: bool) -> None:
    """PyTorch exports a squeeze so: which branch is taken follows from the shape, after some folding."""
    impossible, possible = graph([node("Det", ["x"], ["y"])]), graph([node("Elu", ["x"], ["y"])])
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["d"]),
        node("Equal", ["d", "n"], ["c"]),
        either(possible, impossible) if flag else either(impossible, possible),
    ]
    check(onnx_model(nodes, {"x": (3, 3)}, {"one": np.array(1), "n": np.array(3 if flag else 2)}))


def test_shapes_are_computed_inside_of_branches() -> None:
    """Sizes that only a call gives, and constants that the branch makes itself."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Constant", [], ["k"], value_int=0),
        node("Unsqueeze", ["k", "k0"], ["k1"]),
        node("Gather", ["s", "k1"], ["n"]),
        node("Constant", [], ["m"], value_ints=[-1]),
        node("Concat", ["n", "m"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["r"]),
        node("Reshape", ["r", "s"], ["y"]),
    ]
    inside = either(graph(nodes, constants={"k0": np.array([0])}), OTHER)
    model = onnx_model([inside], {"c": (), "x": ("n", "h", 4)}, dtypes=FLAG)
    both_ways(model, rand(2, 3, 4))


def test_a_branch_that_is_not_taken_may_have_what_is_an_error_in_the_other() -> None:
    """A model asks first, and then reads by an index or divides."""
    kinds = {**FLAG, "x": TensorProto.INT64, "i": TensorProto.INT64, "y": TensorProto.INT64}
    read = graph([node("Gather", ["x", "i"], ["g"]), node("Div", ["g", "i"], ["y"])])
    model = onnx_model([either(read, OTHER)], {"c": (), "x": (3,), "i": (3,)}, dtypes=kinds)
    runner = Runner(compile(model))
    x, index = np.array([40, 50, 60]), np.array([1, 2, 2])
    np.testing.assert_array_equal(runner(np.array(True), x, index), x[index] // index)
    for other in (index, np.array([9, -9, 0])):
        np.testing.assert_array_equal(runner(np.array(False), x, other), 2 * x)


def test_a_function_of_the_model_with_another_opset_is_written_out_with_its_own() -> None:
    """ReduceMean has its axes as an attribute in the function, whose opset is 13, and as an input in the model."""
    mean = helper.make_function(
        "own", "Mean1", ["v"], ["m"], [node("ReduceMean", ["v"], ["m"], axes=[1])], [helper.make_opsetid("", 13)]
    )
    call = helper.make_node("Mean1", ["x"], ["y"], domain="own")
    model = onnx_model([call], {"x": (2, 3)}, opset=18)
    model.functions.append(mean)
    model.opset_import.append(helper.make_opsetid("own", 1))
    x = rand(2, 3)
    np.testing.assert_allclose(run(to_relax(model), x)[0], x.mean(1, keepdims=True), rtol=1e-6)  # ORT refuses the model


def test_a_branch_that_cannot_be_imported_is_refused_by_the_name_of_its_operator() -> None:
    image = graph([node("ImageDecoder", ["x"], ["y"])])
    with pytest.raises(UnsupportedError, match=r"ai\.onnx\.ImageDecoder"):
        to_relax(onnx_model([either(image, OTHER)], {"c": (), "x": (2, 2)}, dtypes=FLAG))


# ---- branches of which the rest of the model takes one --------------------------------------------------------

ONE = {"one": np.array([1]), "axis": np.array(1)}
_SIZE = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "axis"], ["n"]), node("Equal", ["n", "one"], ["c"])]
_SQUEEZED = either(graph([node("Squeeze", ["x", "one"], ["y"])]), graph([node("Identity", ["x"], ["y"])]), ["u"])
#: name → what reads the result, the last size that it is for, and one that it is not for
TAKEN = {
    "the first": (node("Gemm", ["u", "w"], ["y"]), 1, 2),
    "the second": (node("Transpose", ["u"], ["y"], perm=[2, 1, 0]), 2, 1),
}


_NO_AXIS, _ALL = {"first": np.array([0])}, node("ReduceSum", ["x"], ["y"], keepdims=0)
_FLAT = graph([node("Squeeze", ["x", "first"], ["y"])], constants=_NO_AXIS)
_AS_IT_IS = graph([node("Identity", ["x"], ["y"])])
_INNER = node("If", ["c"], ["y"], then_branch=graph([_ALL]), else_branch=_FLAT)
#: name → what gives `u` in several ranks, and what reads it; the results are `u` and `y`
SEVERAL = {
    "one reader": [either(_FLAT, _AS_IT_IS, ["u"]), node("Exp", ["u"], ["y"])],
    "ranks 0 and 1": [
        either(graph([_ALL]), _FLAT, ["u"]),
        node("Mul", ["u", "x"], ["v"]),
        node("Add", ["v", "u"], ["y"]),
    ],
    "one after the other": [
        either(_FLAT, _AS_IT_IS, ["v"]),
        either(graph([node("ReduceMax", ["v"], ["y"], keepdims=0)]), graph([node("Neg", ["v"], ["y"])]), ["u"]),
        node("Mul", ["u", "v"], ["y"]),
    ],
    "one in the other": [
        node("Not", ["c"], ["d"]),
        node("If", ["d"], ["u"], then_branch=graph([_INNER]), else_branch=_AS_IT_IS),
        node("Exp", ["u"], ["y"]),
    ],
}


@pytest.mark.parametrize("name", list(SEVERAL))
def test_what_reads_a_result_of_several_ranks_is_computed_for_each(name: str) -> None:
    both_ways(onnx_model(SEVERAL[name], {"c": (), "x": (1, 5)}, outputs=["u", "y"], dtypes=FLAG), rand(1, 5))


def test_a_state_and_a_function_may_have_several_ranks_inside() -> None:
    squeeze = helper.make_function(
        "own", "Flat", ["x", "c"], ["r"], [either(_FLAT, _AS_IT_IS, ["r"])], [helper.make_opsetid("", 17)]
    )
    flag, number, state = (TensorProto.BOOL, []), (TensorProto.INT64, []), (TensorProto.FLOAT, None)
    values = {"k": number, "go": flag, "v": state, "on": flag, "w": state}
    infos = [helper.make_tensor_value_info(name, *kind) for name, kind in values.items()]
    nodes = [
        node("Identity", ["go"], ["on"]),
        helper.make_node("Flat", ["v", "c"], ["u"], domain="own"),
        node("Tanh", ["u"], ["t"]),
        node("Reshape", ["t", "shape"], ["w"]),
    ]
    loop = node("Loop", ["n", "", "x"], ["y"], body=helper.make_graph(nodes, "body", infos[:3], infos[3:]))
    kinds = {**FLAG, "n": TensorProto.INT64}
    model = onnx_model([loop], {"c": (), "n": (), "x": (1, 5)}, {"shape": np.array([1, 5])}, dtypes=kinds)
    model.functions.append(squeeze)
    model.opset_import.append(helper.make_opsetid("own", 1))
    x, n = rand(1, 5), np.array(3)
    runner, want = Runner(compile(model)), np.tanh(np.tanh(np.tanh(x)))
    for flag in (True, False):
        np.testing.assert_allclose(runner(np.array(flag), n, x), want, rtol=1e-5)


def test_branches_of_other_dtypes_are_refused_by_name() -> None:
    whole = graph([node("Cast", ["x"], ["y"], to=TensorProto.INT64)])
    with pytest.raises(UnsupportedError, match=r"If .*branches whose result 0 is of int64, or of float32"):
        to_relax(onnx_model([either(whole, _AS_IT_IS)], {"c": (), "x": (1, 5)}, dtypes=FLAG))


@pytest.mark.parametrize("name", list(TAKEN))
def test_of_branches_of_other_ranks_the_one_is_taken_that_the_rest_can_be_computed_with(name: str) -> None:
    reader, size, other = TAKEN[name]
    constants = {**ONE, "w": rand(4, 3)}
    model = onnx_model([*_SIZE, _SQUEEZED, reader], {"x": (2, "n", 4)}, constants)
    check(model, inputs={"x": rand(2, size, 4)}, tolerance=1e-4)
    with pytest.raises(ByocError, match=r"If.*the rest of the model cannot be computed with the branch"):
        Runner(compile(model))(rand(2, other, 4))


def test_a_branch_that_is_for_other_sizes_fails_only_where_it_is_chosen() -> None:
    branches = [
        graph([node("Gemm", ["x", w], ["y"])], constants={w: rand(size, 4)}) for w, size in (("a", 5), ("b", 6))
    ]
    run_it = Runner(compile(onnx_model([either(*branches)], {"c": (), "x": (3, 6)}, dtypes=FLAG)))
    assert np.asarray(run_it(np.array(False), rand(3, 6))).shape == (3, 4)
    with pytest.raises(ByocError, match="the branch that these inputs choose"):
        run_it(np.array(True), rand(3, 6))


def test_a_state_says_what_the_batch_is() -> None:
    nodes = [node("GRU", ["x", "w", "r", "", "", "h"], ["", "t"], hidden_size=3), node("Squeeze", ["t"], ["y"])]
    weights = {"w": rand(1, 9, 5), "r": rand(1, 9, 3)}
    model = onnx_model(nodes, {"x": ("t", "batch", 5), "h": (1, 1, 3)}, weights, opset=11)
    check(model, inputs={"x": rand(4, 1, 5), "h": rand(1, 1, 3)}, tolerance=1e-4)
