"""Each symbol stands behind the cast that gives it its number, whatever puts the bindings of a block in order."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl import Runner, compile

pytestmark = pytest.mark.native


def test_sizes_of_a_call_are_known_before_what_has_them() -> None:
    """A range and a tensor of its own sizes, which are fused with what comes later."""
    nodes = [
        node("Slice", ["s", "0", "1"], ["a"]),
        node("Slice", ["s", "1", "2"], ["b"]),
        node("Squeeze", ["b", "0"], ["n"]),
        node("Range", ["zero", "n", "one"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "k"], ["g"]),
        node("Concat", ["a", "b"], ["t"], axis=0),
        node("ConstantOfShape", ["t"], ["z"]),
        node("Add", ["g", "z"], ["p"]),
        node("Transpose", ["z"], ["q"], perm=[1, 0]),
        node("Transpose", ["q"], ["r"], perm=[1, 0]),
        node("Add", ["r", "k"], ["u"]),
        node("Concat", ["p", "u"], ["v"], axis=0),
        node("Relu", ["v"], ["y"]),
    ]
    constants = {"0": np.array([0]), "1": np.array([1]), "2": np.array([2]), "zero": np.array(0), "one": np.array(1)}
    constants["k"] = np.array(0.5, "float32")
    model = onnx_model(nodes, {"s": (2,)}, constants, dtypes={"s": TensorProto.INT64})
    runner = Runner(compile(model))
    for a, b in ((2, 3), (1, 1), (0, 4), (3, 0)):
        wanted = np.concatenate([np.tile(np.arange(b) * 0.5, (a, 1)), np.full((a, b), 0.5)]).astype("float32")
        np.testing.assert_array_equal(runner(np.array([a, b])), wanted)
