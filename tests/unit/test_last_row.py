"""Logits of the last position only, where a product makes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvm_byoc_dnnl.frontends.onnx.importer import keep_last_row

RNG = np.random.default_rng(0)
CONSTANTS = {
    "w": RNG.standard_normal((4, 6)).astype("float32"),
    "table": RNG.standard_normal((6, 4)).astype("float32"),
    "bias": RNG.standard_normal(6).astype("float32"),
    "cap": np.float32(5),
    "one": np.array([1]),
}
Node = tuple[str, list[str], str]
PRODUCT: Node = ("MatMul", ["h", "w"], "m")

TAILS: dict[str, tuple[list[Node], bool]] = {
    "a product": ([("MatMul", ["h", "w"], "logits")], True),
    "a turned table": ([("Transpose", ["table"], "t"), ("MatMul", ["h", "t"], "logits")], True),
    "a bias": ([PRODUCT, ("Add", ["bias", "m"], "logits")], True),
    "a soft limit": (
        [PRODUCT, ("Div", ["m", "cap"], "d"), ("Tanh", ["d"], "t"), ("Mul", ["t", "cap"], "logits")],
        True,
    ),
    "no constant": ([("MatMul", ["h", "h"], "logits")], False),
    "weights in front": ([("Transpose", ["h"], "t"), ("MatMul", ["table", "t"], "logits")], False),
    "two readers": ([("MatMul", ["h", "w"], "logits"), ("Tanh", ["logits"], "other")], False),
    "two readers of the product": ([PRODUCT, ("Tanh", ["m"], "t"), ("Add", ["m", "t"], "logits")], False),
    "rows that are mixed": ([PRODUCT, ("ReduceSum", ["m", "one"], "s"), ("Add", ["s", "m"], "logits")], False),
    "another operator": ([PRODUCT, ("Softmax", ["m"], "logits")], False),
    "the input itself": ([("Identity", ["x"], "logits")], False),
}


@pytest.mark.parametrize("apart", [False, True], ids=["constants inside", "constants apart"])
@pytest.mark.parametrize(("tail", "is_cut"), TAILS.values(), ids=TAILS)
def test_what_is_cut(tail: list[Node], is_cut: bool, apart: bool) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"])]
    nodes += [helper.make_node(op, inputs, [output]) for op, inputs, output in tail]
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["batch", "rows", 4])]
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "rows", 6])]
    constants = [numpy_helper.from_array(array, name) for name, array in CONSTANTS.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [] if apart else constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    keep_last_row(model, "logits", CONSTANTS if apart else ())
    for m in (model, whole):
        m.graph.initializer.extend(constants if apart else [])
    assert (model != whole) == is_cut
    x = RNG.standard_normal((2, 4, 4)).astype("float32")
    got, want = (ReferenceEvaluator(m).run(["logits"], {"x": x})[0] for m in (model, whole))
    assert got.shape == ((2, 1, 6) if is_cut else want.shape)
    np.testing.assert_allclose(got[:, -1], want[:, -1], rtol=1e-6)
    if is_cut:
        assert model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 1
