"""Each symbol stands behind the cast that gives it its number, whatever puts the bindings of a block in order."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from tvm import relax, te, tirx

from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl import Runner, compile
from tvm_byoc_dnnl.ir.order import in_order

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


def test_a_size_that_a_kernel_takes_as_a_number_is_known_before_it() -> None:
    bb = relax.BlockBuilder()
    n, x = tirx.Var("n", "int64"), relax.Var("x", relax.TensorType((1,), "int64"))
    with bb.function("main", [x]):
        with bb.dataflow():
            bb.match_cast(bb.emit(relax.op.tensor_to_shape(x)), relax.ShapeType([n]))
            size = bb.emit_te(lambda size: te.compute((1,), lambda _: size, name="size"), n)
            result = bb.emit_output(size)
        bb.emit_func_output(result)
    shape, cast, call, output = bb.get()["main"].body.blocks[0].bindings
    assert in_order([[call], [output], [shape], [cast]]) == [shape, cast, call, output]
