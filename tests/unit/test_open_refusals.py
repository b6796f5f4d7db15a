"""Sizes that a model with open shapes cannot take: what is refused, when, and in which words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from tvm import tirx

from tvm_byoc_dnnl import Runner, api, compile
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.frontends.onnx.importer import import_onnx
from tvm_byoc_dnnl.testing.models import ort_run

from .importing import node, onnx_model, rand

pytestmark = pytest.mark.native
INT64 = TensorProto.INT64
NO_MEAN = "a source without elements has no result; give sizes of 1 or more"


def _equals_ort(model: Any, *arrays: np.ndarray) -> None:
    runner = Runner(compile(model))
    for x in arrays:
        want = ort_run(model, {"x": x})[0]
        got = runner(x)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_open_dim_without_a_name() -> None:
    model = onnx_model([node("Add", ["a", "b"], ["y"])], {"a": ("n", 3), "b": (1, 3)})
    runner = Runner(compile(model, shapes={"a": ["?", 3]}))
    assert runner(rand(2, 3), rand(1, 3)).shape == (2, 3)
    with pytest.raises(InputError, match="expected a name and a positive number"):
        compile(model, shapes={"a": ["?:8", 3]})


def test_a_dim_without_a_name_is_equal_to_no_other() -> None:
    model = onnx_model([node("Relu", ["a"], ["y"]), node("Relu", ["b"], ["z"])], {"a": ("n",), "b": ("n",)})
    model.graph.output.add().CopyFrom(model.graph.output[0])
    model.graph.output[1].name = "z"
    y, z = Runner(compile(model, shapes={"a": ["?"]}))(rand(2), rand(3))
    assert (y.shape, z.shape) == ((2,), (3,))
    with pytest.raises(InputError, match="make them equal"):
        Runner(compile(model))(rand(2), rand(3))


@pytest.mark.parametrize("height", [0, 1])
def test_a_window_that_is_larger_than_its_picture(height: int) -> None:
    """The size of the result would be below 0, and TVM asks for memory of this size."""
    model = onnx_model([node("Conv", ["x", "w"], ["y"])], {"x": ("n", 3, "h", 8)}, {"w": rand(4, 3, 3, 3)})
    runner = Runner(compile(model))
    with pytest.raises(InputError, match=rf"below 0, as a window .* x float32\[n, 3, h, 8\] is \[1, 3, {height}, 8\]"):
        runner(rand(1, 3, height, 8))
    assert runner(rand(1, 3, 3, 8)).shape == (1, 4, 1, 6)


def test_nothing_is_left_to_repeat() -> None:
    """Padding by the widths of a call reads no element beside the tensor, which is cut to nothing."""
    model = onnx_model([node("Pad", ["x", "p"], ["y"], mode="edge")], {"x": ("n",), "p": (2,)}, dtypes={"p": INT64})
    runner, x = Runner(compile(model)), rand(4)
    np.testing.assert_array_equal(runner(x, np.array([-1, 2])), x[[1, 2, 3, 3, 3]])
    assert runner(x, np.array([-4, 0])).shape == (0,)
    with pytest.raises(InputError, match="below 0"):
        runner(x, np.array([-4, 1]))


def test_a_padding_of_the_call_has_sizes_of_its_own() -> None:
    """Sizes that are computed of the result stay short, as long expressions take TVM minutes."""
    pad = node("Pad", ["x", "p"], ["y"])
    model = onnx_model([pad], {"x": ("n", "m"), "p": ("k",)}, dtypes={"p": INT64})
    assert all(isinstance(size, tirx.Var) for size in import_onnx(model)["main"].body.body.ty.shape)
    runner, x = Runner(compile(model)), rand(2, 3)
    np.testing.assert_array_equal(runner(x, np.array([0, 1, -1, 2])), np.pad(x[:1], ((0, 0), (1, 2))))
    with pytest.raises(InputError, match="below 0"):
        runner(x, np.array([-2, 0, -1, 0]))
    with pytest.raises(InputError, match="needs 4 where it has 3"):
        runner(x, np.array([0, 1, 0]))


def test_the_first_element_of_an_open_axis_is_one() -> None:
    cut = node("Slice", ["x", "from", "to", "axis"], ["first"])
    numbers = {"from": np.array([0]), "to": np.array([1]), "axis": np.array([1])}
    _equals_ort(onnx_model([cut, node("Sub", ["x", "first"], ["y"])], {"x": (2, "n")}, numbers), rand(2, 5), rand(2, 1))
    grown = [cut, node("Shape", ["x"], ["s"]), node("Expand", ["first", "s"], ["y"])]
    _equals_ort(onnx_model(grown, {"x": (2, "n")}, numbers), rand(2, 5), rand(2, 1))


@pytest.mark.parametrize("compiler", ["dnnl", "ccompiler"])
@pytest.mark.parametrize(("operator", "index"), [("Gather", 2), ("Gather", -3), ("GatherElements", 2)])
def test_an_index_out_of_range(operator: str, index: int, compiler: str) -> None:
    model = onnx_model([node(operator, ["x", "i"], ["y"])], {"x": ("n", 3), "i": ("k", 3)}, dtypes={"i": INT64})
    runner = Runner(compile(model, compiler))
    for kind in (InputError, IndexError):
        with pytest.raises(kind, match=r"out of range.*x float32\[n, 3\] is \[2, 3\].*within the axis"):
            runner(rand(2, 3), np.array([[0, 1, index]]))


def test_a_squeeze_that_would_decide_the_number_of_dims() -> None:
    model = onnx_model([node("Squeeze", ["x"], ["y"], name="drop")], {"x": ("n", 3, 1)})
    with pytest.raises(UnsupportedError, match=r"Squeeze \(node `drop`\) has no axes.*\(n, 3, 1\).*--shape x=1,3,1"):
        compile(model)
    assert Runner(compile(model, shapes={"x": [2, 3, 1]}))(rand(2, 3, 1)).shape == (2, 3)


@pytest.mark.parametrize("compiler", ["dnnl", "ccompiler"])
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_a_padding_by_more_elements_than_there_are(mode: str, compiler: str) -> None:
    """TVM's padding would read memory of others, and so would C code."""
    pads = {"p": np.array([0, 0, 3, 0, 0, 1])}
    pad = node("Pad", ["x", "p"], ["y"], mode=mode)
    least = {"reflect": 4, "edge": 1, "wrap": 3}[mode]
    _equals_ort(onnx_model([pad], {"x": ("n", 2, "w")}, pads, opset=19), rand(2, 2, least), rand(1, 2, 7))
    runner = Runner(compile(onnx_model([pad], {"x": ("n", 2, "w")}, pads, opset=19), compiler))
    with pytest.raises(InputError, match=f"needs {least} where it has {least - 1}"):
        runner(rand(2, 2, least - 1))
    with pytest.raises(UnsupportedError, match=f"an axis has {least - 1} elements, expected {least} or more"):
        compile(onnx_model([pad], {"x": (1, 2, least - 1)}, pads, opset=19), compiler)


def test_a_padding_of_some_axes() -> None:
    constants = {"p": np.array([2, 1]), "a": np.array([-1])}
    nodes = [node("Pad", ["x", "p", "", "a"], ["y"], mode="reflect")]
    _equals_ort(onnx_model(nodes, {"x": ("n", "h", "w")}, constants, opset=18), rand(1, 1, 3), rand(2, 4, 9))


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceLogSumExp"])
def test_what_nothing_adds_up_to(operator: str) -> None:
    axes = {"a": np.array([1])} if operator == "ReduceSum" else {}
    given = {} if axes else {"axes": [1]}
    model = onnx_model([node(operator, ["x", *axes], ["y"], **given)], {"x": ("n", "m")}, axes, opset=13)
    _equals_ort(model, rand(2, 0), rand(2, 1), rand(0, 3), rand(3, 4))


def test_no_element_has_no_mean() -> None:
    """ONNX Runtime gives 0, PyTorch NaN, and ONNX says that there is none."""
    runner = Runner(compile(onnx_model([node("ReduceMean", ["x"], ["y"], axes=[1])], {"x": ("n", "m")}, opset=13)))
    with pytest.raises(UnsupportedError, match=NO_MEAN):
        runner(rand(2, 0))
    assert runner(rand(0, 2)).shape == (0, 1)


@pytest.mark.parametrize(
    ("nodes", "constants", "shapes"),
    [
        (node("Softmax", ["x"], ["y"]), {}, [(2, 0), (2, 1), (0, 3)]),
        (node("LayerNormalization", ["x", "s"], ["y"]), {"s": rand(1)}, [(0, 1), (2, 1)]),
        (node("LpNormalization", ["x"], ["y"], axis=1), {}, [(2, 0), (2, 1)]),
    ],
)
def test_norms_over_one_element_and_none(nodes: Any, constants: Any, shapes: Any) -> None:
    last = 1 if constants else "m"
    _equals_ort(onnx_model([nodes], {"x": ("n", last)}, constants), *(rand(*shape) for shape in shapes))


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_equal_sizes_of_windows_of_two_that_do_not_overlap(operator: str) -> None:
    pool = node(operator, ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER")
    model = onnx_model([pool], {"x": ("n", 3, "h", "w")})
    _equals_ort(model, rand(1, 3, 5, 8), rand(1, 3, 1, 7), rand(2, 3, 4, 4))


def test_sizes_that_cannot_be_said_are_named() -> None:
    """TVM's own message says that a pass of it did not lower the call."""
    said = (
        "CodeGenVM cannot emit this Relax operator directly. Run the appropriate lowering pass. "
        "Offending call: R.concat((a, b), axis=1)"
    )
    cause = api._cause(RuntimeError(said))
    assert (
        cause == "the sizes of an operand or of the result of R.concat((a, b), axis=1) cannot be said before the call"
    )
    assert api._cause(RuntimeError("another\n fault\n\nand more")) == "another fault"


def test_fewer_indices_than_elements_of_open_sizes() -> None:
    """TVM's operator would write to other elements."""
    scatter = node("ScatterElements", ["x", "i", "u"], ["y"], axis=1)
    dims = {"x": ("a", "b", "c"), "i": ("d", "e", "f"), "u": ("d", "e", "f")}
    model = onnx_model([scatter], dims, dtypes={"i": INT64}, opset=18)
    runner = Runner(compile(model))
    x, places = rand(2, 4, 3), np.array([[[1, 0, 2]], [[3, 3, 0]]])
    for width in (3, 2, 0):
        updates, want = rand(2, 1, width, seed=2), x.copy()
        np.put_along_axis(want[:, :, :width], places[:, :, :width], updates, 1)
        np.testing.assert_array_equal(runner(x, places[:, :, :width], updates), want)
