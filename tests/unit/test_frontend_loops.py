"""ONNX loops of known length, written out, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.unit.importing import check, node, onnx_model, rand
from tvm_byoc_dnnl.errors import UnsupportedError
from tvm_byoc_dnnl.frontend import to_relax


def body(nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: dict[str, Any]) -> onnx.GraphProto:
    """A subgraph; types are given as (element type, shape)."""
    values = [
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in part.items()]
        for part in (inputs, outputs)
    ]
    return helper.make_graph(nodes, "body", *values)


VECTOR = (TensorProto.FLOAT, [3])


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_scan_is_written_out(backward: int, axis: int) -> None:
    nodes = [node("Add", ["s", "e"], ["n"]), node("Mul", ["n", "outer"], ["o"])]
    inner = body(nodes, {"s": VECTOR, "e": VECTOR}, {"n": VECTOR, "o": VECTOR})
    options = {"scan_input_axes": [axis], "scan_input_directions": [backward], "scan_output_directions": [backward]}
    scan = node("Scan", ["i", "x"], ["y", "z"], body=inner, num_scan_inputs=1, scan_output_axes=[axis], **options)
    x, start = rand(*((4, 3) if axis == 0 else (3, 4))), rand(3, seed=2)
    model = onnx_model([scan], {"i": (3,), "x": x.shape}, {"outer": np.float32(2)}, outputs=["y", "z"])
    assert check(model, inputs={"i": start, "x": x})["add"] == 4


@pytest.mark.parametrize("stops", [False, True])
def test_loops_of_known_length_are_written_out(stops: bool) -> None:
    flag, number = (TensorProto.BOOL, []), (TensorProto.INT64, [])
    nodes = [node("Identity", ["c"], ["d"]), node("Mul", ["v", "v"], ["w"]), node("Identity", ["w"], ["o"])]
    if stops:
        nodes[0] = node("Not", ["c"], ["d"])
    inner = body(nodes, {"k": number, "c": flag, "v": VECTOR}, {"d": flag, "w": VECTOR, "o": VECTOR})
    loop = node("Loop", ["n", "", "x"], ["y", "z"], body=inner)
    model = onnx_model([loop], {"x": (3,)}, {"n": np.array(3)}, outputs=["y", "z"])
    if stops:
        with pytest.raises(UnsupportedError, match="Loop"):
            to_relax(model)
    else:
        check(model, inputs={"x": rand(3)})


def test_a_loop_of_too_many_rounds_is_refused() -> None:
    inner = body([node("Add", ["s", "e"], ["n"])], {"s": VECTOR, "e": VECTOR}, {"n": VECTOR})
    scan = node("Scan", ["i", "x"], ["y"], body=inner, num_scan_inputs=1)
    with pytest.raises(UnsupportedError, match="Scan"):
        to_relax(onnx_model([scan], {"i": (3,), "x": (5000, 3)}))
