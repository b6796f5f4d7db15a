"""ONNX's backend interface: what it takes, what it compiles when, what it says to the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.harness import assert_right
from tests.unit.importing import node, onnx_model, rand
from tvm_byoc_dnnl import onnx_backend
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.frontends.onnx.inputs import deciding_inputs, with_constants
from tvm_byoc_dnnl.onnx_backend import PreparedModel

pytestmark = pytest.mark.native


def model_of(*args: Any, **options: Any) -> onnx.ModelProto:
    """A model whose outputs have shapes, as ONNX's checker wants."""
    return onnx.shape_inference.infer_shapes(onnx_model(*args, **options))


def reshape_model() -> onnx.ModelProto:
    return model_of([node("Reshape", ["x", "s"], ["y"])], {"x": (2, 6), "s": (2,)}, dtypes={"s": TensorProto.INT64})


@pytest.mark.parametrize(("device", "there"), [("CPU", True), ("CPU:0", True), ("CPU:1", False), ("CUDA", False)])
def test_devices(device: str, there: bool) -> None:
    assert onnx_backend.supports_device(device) is there
    if not there:
        with pytest.raises(InputError, match="expected 'CPU'"):
            onnx_backend.prepare(reshape_model(), device)


def test_a_model_without_deciding_inputs_is_compiled_at_once() -> None:
    prepared = onnx_backend.prepare(model_of([node("Add", ["x", "z"], ["y"])], {"x": (2, 3), "z": (3,)}))
    assert len(prepared._forms) == 1
    x, z = rand(2, 3), rand(3)
    for inputs in ([x, z], {"z": z, "x": x}):
        (y,) = prepared.run(inputs)
        assert_right(y, x + z, 0)


def test_a_single_input_needs_no_list() -> None:
    prepared = onnx_backend.prepare(model_of([node("Relu", ["x"], ["y"])], {"x": (2, 3)}))
    np.testing.assert_array_equal(prepared.run(rand(2, 3))[0], np.maximum(rand(2, 3), 0))


def test_initialisers_that_are_inputs_are_not_given() -> None:
    model = model_of([node("Add", ["x", "w"], ["y"])], {"x": (3,), "w": (3,)}, {"w": rand(3)})
    prepared = onnx_backend.prepare(model)
    assert prepared.input_names == ["x"]
    assert_right(prepared.run([rand(3)])[0], 2 * rand(3), 0)


def test_deciding_values_are_compiled_in_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = PreparedModel.build
    monkeypatch.setattr(PreparedModel, "build", lambda self, model: built.append(1) or build(self, model))
    prepared = onnx_backend.prepare(reshape_model())
    assert prepared.deciding == ["s"] and not built
    x = rand(2, 6)
    for shape, forms in (((3, 4), 1), ((12, 1), 2), ((3, 4), 2)):
        (y,) = prepared.run([x, np.array(shape, "int64")])
        np.testing.assert_array_equal(y, x.reshape(shape))
        assert len(built) == forms


def test_only_the_last_forms_are_kept() -> None:
    prepared = onnx_backend.prepare(reshape_model())
    for shape in [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1), (-1, 4), (-1, 3), (-1, 2)]:
        prepared.run([rand(2, 6), np.array(shape, "int64")])
    assert len(prepared._forms) == 8
    assert not any(np.frombuffer(key[0][2], "int64").tolist() == [1, 12] for key in prepared._forms)


def test_what_decides() -> None:
    nodes = [
        node("Mul", ["a", "two"], ["b"]),
        node("Concat", ["b", "c"], ["s"], axis=0),
        node("Reshape", ["x", "s"], ["y"]),
    ]
    model = onnx_model(nodes, {"x": ("n", 4), "c": (1,), "a": (1,), "two": (1,)}, {"two": np.array([2])})
    assert deciding_inputs(model) == ["c", "a"]


def test_the_shape_of_a_tensor_is_no_value() -> None:
    nodes = [node("Shape", ["z"], ["s"]), node("Reshape", ["x", "s"], ["y"])]
    assert deciding_inputs(onnx_model(nodes, {"x": (2, 6), "z": (3, 4)})) == []


def test_an_operator_of_another_domain_decides_nothing() -> None:
    model = onnx_model([node("Reshape", ["x", "s"], ["y"], domain="my.own")], {"x": (2, 6), "s": (2,)})
    assert deciding_inputs(model) == []


def test_constants_do_not_touch_the_model() -> None:
    model = reshape_model()
    before = model.SerializeToString()
    bound = with_constants(model, {"s": onnx.numpy_helper.from_array(np.array([4, 3]), "s")})
    assert [i.name for i in bound.graph.input] == ["x"]
    assert [t.name for t in bound.graph.initializer] == ["s"]
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([rand(2, 6)], "got 1 inputs, expected 2: `x`, `s`"),
        ({"x": rand(2, 6)}, "got the inputs x; expected `x`, `s`"),
        ({"x": rand(2, 6), "s": np.array([12]), "t": rand(1)}, "expected `x`, `s`"),
    ],
)
def test_wrong_inputs(inputs: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        onnx_backend.prepare(reshape_model()).run(inputs)


@pytest.mark.parametrize(("value", "kind"), [([rand(2, 6)], "list"), (None, "NoneType")], ids=str)
def test_sequences_and_optionals_cannot_be_given(value: object, kind: str) -> None:
    with pytest.raises(UnsupportedError, match=f"an input is a {kind}"):
        onnx_backend.prepare(reshape_model()).run([value, np.array([12])])


def test_run_takes_no_options() -> None:
    with pytest.raises(InputError, match="got verbose"):
        onnx_backend.prepare(reshape_model()).run([], verbose=True)


def test_is_compatible() -> None:
    unknown = onnx_model([node("NoSuchOp", ["x"], ["y"], domain="com.microsoft")], {"x": (2,)})
    unknown.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 2
    assert onnx_backend.is_compatible(model_of([node("Relu", ["x"], ["y"])], {"x": (2,)}))
    assert onnx_backend.is_compatible(reshape_model())
    assert not onnx_backend.is_compatible(unknown)
    assert not onnx_backend.is_compatible(reshape_model(), "CUDA")
    with pytest.raises(UnsupportedError, match="NoSuchOp"):
        onnx_backend.prepare(unknown)


def test_a_damaged_model_is_refused_by_the_checker() -> None:
    with pytest.raises(onnx.checker.ValidationError):
        onnx_backend.prepare(onnx_model([node("Relu", ["missing"], ["y"])], {"x": (2,)}))


def test_run_model() -> None:
    (y,) = onnx_backend.run_model(reshape_model(), [rand(2, 6), np.array([3, 4])])
    np.testing.assert_array_equal(y, rand(2, 6).reshape(3, 4))


def test_the_compiler_can_be_chosen() -> None:
    model = model_of([node("Relu", ["x"], ["y"])], {"x": (2, 3)})
    assert onnx_backend.run_model(model, [rand(2, 3)], compiler="ccompiler")[0].shape == (2, 3)
    with pytest.raises(ValueError, match="no_such"):
        onnx_backend.prepare(model, compiler="no_such")


def test_run_node() -> None:
    x, w = rand(1, 3, 8, 8), rand(4, 3, 3, 3)
    conv = node("Conv", ["x", "w", ""], ["y"], pads=[1, 1, 1, 1])
    (inferred,) = onnx_backend.run_node(conv, [x, w])
    (given,) = onnx_backend.run_node(conv, [x, w], outputs_info=[(np.dtype("float32"), (1, 4, 8, 8))])
    assert inferred.shape == (1, 4, 8, 8)
    np.testing.assert_array_equal(inferred, given)


def test_run_node_of_an_older_opset() -> None:
    squeeze = node("Squeeze", ["x"], ["y"], axes=[0])
    assert onnx_backend.run_node(squeeze, [rand(1, 3)], opset_version=11)[0].shape == (3,)
    with pytest.raises(onnx.checker.ValidationError):
        onnx_backend.run_node(squeeze, [rand(1, 3)])


def test_run_node_counts_inputs() -> None:
    with pytest.raises(InputError, match="got 1 inputs for Add, expected 2: a, b"):
        onnx_backend.run_node(helper.make_node("Add", ["a", "b"], ["y"]), [rand(2)])
    (doubled,) = onnx_backend.run_node(helper.make_node("Add", ["a", "a"], ["y"]), [rand(2)])
    assert_right(doubled, 2 * rand(2), 0)
