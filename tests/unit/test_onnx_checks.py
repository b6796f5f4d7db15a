"""Models that the ONNX standard forbids: refused with the number that is wrong; what ONNX Runtime runs is not."""

from __future__ import annotations

from typing import Any

import onnx
import onnxruntime
import pytest

from tests.unit.importing import node, onnx_model, rand
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.frontends import to_relax

POOLS = ("MaxPool", "AveragePool", "LpPool")
#: attributes of a pooling of a (1, 2, 6, 6) image, words of the message
POOLING: list[tuple[dict[str, Any], str]] = [
    ({"kernel_shape": [0, 0]}, r"has kernel_shape \[0, 0\]; expected numbers from 1 on"),
    ({"kernel_shape": [-1, 2]}, r"has kernel_shape \[-1, 2\]"),
    ({"kernel_shape": [2]}, r"has kernel_shape \[2\]; expected 2 numbers for 2 spatial axes"),
    ({"kernel_shape": [2, 2, 2]}, "has kernel_shape"),
    ({}, "has no attribute kernel_shape"),
    ({"kernel_shape": [2, 2], "strides": [0, 1]}, r"has strides \[0, 1\]"),
    ({"kernel_shape": [2, 2], "strides": [-1, 1]}, "has strides"),
    ({"kernel_shape": [2, 2], "strides": [1]}, r"has strides \[1\]; expected 2 numbers"),
    ({"kernel_shape": [2, 2], "dilations": [0, 1]}, r"has dilations \[0, 1\]"),
    ({"kernel_shape": [2, 2], "pads": [0, 0, -1, 0]}, r"has pads \[0, 0, -1, 0\]; expected numbers from 0 on"),
    ({"kernel_shape": [2, 2], "pads": [0, 0]}, r"has pads \[0, 0\]; expected 4 numbers"),
    ({"kernel_shape": [2, 2], "pads": [0, 2, 0, 0]}, "a window would see padding alone"),
]
#: the same of a convolution with weights (2, 2, 2, 2)
CONVOLUTION: list[tuple[dict[str, Any], str]] = [
    ({"kernel_shape": [3, 3]}, r"has kernel_shape \[3, 3\]; its weights have \[2, 2\]"),
    ({"kernel_shape": [0, 0]}, r"has kernel_shape \[0, 0\]; expected numbers from 1 on"),
    ({"strides": [0, 1]}, r"has strides \[0, 1\]"),
    ({"dilations": [0, 1]}, r"has dilations \[0, 1\]"),
    ({"pads": [-1, 0, 0, 0]}, "has pads"),
    ({"pads": [1, 1]}, r"has pads \[1, 1\]; expected 4 numbers"),
    ({"strides": [1]}, "has strides"),
]
#: what ONNX Runtime runs, though it looks odd
ODD: list[tuple[str, dict[str, Any]]] = [
    *((op, {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "pads": [1, 1, 1, 1]}) for op in POOLS),
    *((op, {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}) for op in POOLS),
    ("MaxPool", {"kernel_shape": [1, 1], "dilations": [5, 5]}),
    ("Conv", {"pads": [4, 4, 4, 4]}),
    ("Conv", {"kernel_shape": [2, 2], "auto_pad": "VALID"}),
    ("ConvTranspose", {"kernel_shape": [2, 2], "pads": [0, 1, 0, 1]}),
]
ROWS = [(op, *row) for op in POOLS for row in POOLING]
ROWS += [(op, *row) for op in ("Conv", "ConvTranspose") for row in CONVOLUTION]


def model(op: str, attributes: dict[str, Any]) -> onnx.ModelProto:
    if op in POOLS:
        return onnx_model([node(op, ["x"], ["y"], **attributes)], {"x": (1, 2, 6, 6)}, opset=19)
    return onnx_model(
        [node(op, ["x", "w"], ["y"], **attributes)], {"x": (1, 2, 6, 6)}, {"w": rand(2, 2, 2, 2)}, opset=19
    )


def runs_in_onnx_runtime(made: onnx.ModelProto) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(made.SerializeToString(), options)
        session.run(
            None, {i.name: rand(*(d.dim_value for d in i.type.tensor_type.shape.dim)) for i in made.graph.input}
        )
    except Exception:
        return False
    return True


@pytest.mark.parametrize(("op", "attributes", "words"), ROWS, ids=[f"{r[0]}-{r[1]}" for r in ROWS])
def test_windows_that_are_none(op: str, attributes: dict[str, Any], words: str) -> None:
    made = model(op, attributes)
    assert not runs_in_onnx_runtime(made)
    with pytest.raises(InputError, match=words):
        to_relax(made)


@pytest.mark.parametrize(("op", "attributes"), ODD, ids=[f"{r[0]}-{r[1]}" for r in ODD])
def test_windows_that_only_look_odd(op: str, attributes: dict[str, Any]) -> None:
    made = model(op, attributes)
    assert runs_in_onnx_runtime(made)
    to_relax(made)


@pytest.mark.parametrize("name", ["y", "x", "c"])
def test_a_name_is_defined_once(name: str) -> None:
    made = onnx_model(
        [node("Add", ["x", "c"], ["t"]), node("Relu", ["t"], ["y"]), node("Abs", ["t"], [name])],
        {"x": (2, 3)},
        {"c": rand(3)},
    )
    assert not runs_in_onnx_runtime(made)
    with pytest.raises(InputError, match=f"defines `{name}` more than once"):
        to_relax(made)
