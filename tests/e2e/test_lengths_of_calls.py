"""Networks of the shapes that recommenders and speech synthesis have: compiled once, and right for every length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right

pytestmark = pytest.mark.native

Node = helper.make_node
Inputs = Sequence[tuple[str, int, list[Any]]]


def _weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {k: (rng.standard_normal(s) / np.sqrt(s[-1])).astype("float32") for k, s in shapes.items()}


def _check(
    nodes: list[onnx.NodeProto],
    known: Mapping[str, Any],
    inputs: Inputs,
    outputs: Sequence[str],
    calls: Sequence[Mapping[str, np.ndarray]],
) -> None:
    """One executable for all calls, against ONNX Runtime without its optimiser."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in known.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    reference = onnxruntime.InferenceSession(model.SerializeToString(), options)
    runner = byoc.Runner(byoc.compile(model))
    for feeds in calls:
        got, want = runner(*feeds.values()), reference.run(None, dict(feeds))
        for a, b in zip([got] if len(outputs) == 1 else got, want, strict=True):
            assert_right(a, b, 1e-4)


def test_a_recommender() -> None:
    """Dense features and embeddings, the products of each two of them, and a perceptron on top."""
    known: dict[str, Any] = _weights(0, w1=(13, 32), b1=(32,), w2=(32, 16), b2=(16,), w3=(22, 20), w4=(20, 1))
    known |= {"rows": [0, 1, 16], "flat": [0, 16], "below": [4, 8, 9, 12, 13, 14]}
    nodes = [
        Node("Gemm", ["dense", "w1", "b1"], ["h1"]),
        Node("Relu", ["h1"], ["h2"]),
        Node("Gemm", ["h2", "w2", "b2"], ["h3"]),
        Node("Relu", ["h3"], ["bottom"]),
        Node("Reshape", ["bottom", "rows"], ["t0"]),
    ]
    for i in range(3):
        known |= {f"column{i}": [i], **_weights(i + 1, **{f"table{i}": (50 + i, 16)})}
        nodes += [
            Node("Gather", ["sparse", f"column{i}"], [f"s{i}"], axis=1),
            Node("Gather", [f"table{i}", f"s{i}"], [f"t{i + 1}"]),
        ]
    nodes += [
        Node("Concat", [f"t{i}" for i in range(4)], ["all"], axis=1),
        Node("Transpose", ["all"], ["turned"], perm=[0, 2, 1]),
        Node("MatMul", ["all", "turned"], ["each"]),
        Node("Reshape", ["each", "flat"], ["each_flat"]),
        Node("Gather", ["each_flat", "below"], ["pairs"], axis=1),
        Node("Concat", ["bottom", "pairs"], ["top"], axis=1),
        Node("MatMul", ["top", "w3"], ["h4"]),
        Node("Relu", ["h4"], ["h5"]),
        Node("MatMul", ["h5", "w4"], ["h6"]),
        Node("Sigmoid", ["h6"], ["y"]),
    ]
    rng = np.random.default_rng(9)
    calls = [
        {"dense": rng.standard_normal((n, 13)).astype("float32"), "sparse": rng.integers(0, 50, (n, 3))}
        for n in (1, 2, 7, 64, 129)
    ]
    inputs = [("dense", TensorProto.FLOAT, ["n", 13]), ("sparse", TensorProto.INT64, ["n", 3])]
    _check(nodes, known, inputs, ["y"], calls)


def test_speech_whose_length_is_predicted() -> None:
    """Text encoder with an LSTM, durations, the path from tokens to frames, one step of a flow, and a decoder."""
    known: dict[str, Any] = _weights(
        0, table=(40, 16), w1=(16, 16, 5), lw=(2, 32, 16), lr=(2, 32, 8), lb=(2, 64), w2=(1, 16, 3), w3=(32, 16, 3),
        w4=(16, 8, 8), w5=(8, 8, 3), w6=(1, 8, 7),
    )  # fmt: skip
    known |= {"joined": [0, 0, -1], "zero": 0, "one": 1, "least": np.float32(1), "two": 2, "first": [0]}
    known |= {"pads": [1, 0, 0, 0], "origin": [0, 0]}
    nodes = [
        Node("Gather", ["table", "tokens"], ["e"]),
        Node("Transpose", ["e"], ["e1"], perm=[0, 2, 1]),
        Node("Conv", ["e1", "w1"], ["x1"], pads=[2, 2]),
        Node("Relu", ["x1"], ["x2"]),
        Node("Transpose", ["x2"], ["x3"], perm=[2, 0, 1]),
        Node("LSTM", ["x3", "lw", "lr", "lb"], ["l"], hidden_size=8, direction="bidirectional"),
        Node("Transpose", ["l"], ["l1"], perm=[0, 2, 1, 3]),
        Node("Reshape", ["l1", "joined"], ["l2"]),
        Node("Transpose", ["l2"], ["x"], perm=[1, 2, 0]),
        # durations, and how many frames they are
        Node("Conv", ["x", "w2"], ["d1"], pads=[1, 1]),
        Node("Exp", ["d1"], ["d2"]),
        Node("Mul", ["d2", "scale"], ["d3"]),
        Node("Ceil", ["d3"], ["durations"]),
        Node("ReduceSum", ["durations"], ["sum"], keepdims=0),
        Node("Max", ["sum", "least"], ["most"]),
        Node("Cast", ["most"], ["total"], to=TensorProto.INT64),
        # the path: 1 where a frame belongs to a token
        Node("Range", ["zero", "total", "one"], ["frames"]),
        Node("Cast", ["frames"], ["f1"], to=TensorProto.FLOAT),
        Node("Unsqueeze", ["f1", "first"], ["f2"]),
        Node("CumSum", ["durations", "two"], ["ends"]),
        Node("Transpose", ["ends"], ["ends1"], perm=[0, 2, 1]),
        Node("Squeeze", ["ends1", "first"], ["ends2"]),
        Node("Less", ["f2", "ends2"], ["before"]),
        Node("Cast", ["before"], ["p1"], to=TensorProto.FLOAT),
        Node("Pad", ["p1", "pads"], ["p2"]),
        Node("Shape", ["p1"], ["size"]),
        Node("Slice", ["p2", "origin", "size"], ["p3"]),
        Node("Sub", ["p1", "p3"], ["path"]),
        Node("MatMul", ["x", "path"], ["z"]),
        # a gated step of a flow, and a decoder
        Node("Conv", ["z", "w3"], ["g"], pads=[2, 2], dilations=[2]),
        Node("Split", ["g"], ["g1", "g2"], axis=1),
        Node("Tanh", ["g1"], ["g3"]),
        Node("Sigmoid", ["g2"], ["g4"]),
        Node("Mul", ["g3", "g4"], ["g5"]),
        Node("Add", ["z", "g5"], ["flow"]),
        Node("ConvTranspose", ["flow", "w4"], ["up"], strides=[4], pads=[2, 2]),
        Node("LeakyRelu", ["up"], ["u1"], alpha=0.1),
        Node("Conv", ["u1", "w5"], ["u2"], pads=[3, 3], dilations=[3]),
        Node("Add", ["u1", "u2"], ["u3"]),
        Node("Conv", ["u3", "w6"], ["u4"], pads=[3, 3]),
        Node("Tanh", ["u4"], ["wave"]),
    ]
    rng = np.random.default_rng(9)
    calls = [
        {"tokens": rng.integers(0, 40, (1, n)), "scale": np.array([scale], "float32")}
        for n, scale in ((1, 1), (2, 1.7), (13, 0.8), (50, 1), (117, 2.3))
    ]
    inputs = [("tokens", TensorProto.INT64, [1, "n"]), ("scale", TensorProto.FLOAT, [1])]
    _check(nodes, known, inputs, ["wave", "durations"], calls)
