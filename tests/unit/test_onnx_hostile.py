"""Hostile ONNX files, made from one valid model: each gives a result, or one error of this package with a place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_byoc_dnnl.core.errors import ByocError, InputError, UnsupportedError
from tvm_byoc_dnnl.core.limits import MOST_NESTED
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.frontends.onnx.importer import load_onnx

Change = Callable[[onnx.ModelProto], None]
_info = helper.make_tensor_value_info


def _model() -> onnx.ModelProto:
    node = helper.make_node
    branches = {
        f"{name}_branch": helper.make_graph(
            [node("Add", ["r", "b"], [name], name=f"{name} add")], name, [], [_info(name, 1, (2, 4))]
        )
        for name in ("then", "else")
    }
    nodes = [
        node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Add", ["m", "b"], ["a"], name="add"),
        node("Relu", ["a"], ["r"], name="relu"),
        node("If", ["c"], ["f"], name="if", **branches),
        node("Conv", ["p", "k"], ["v"], name="conv", kernel_shape=[2, 2], pads=[0, 0, 0, 0]),
        node("Reshape", ["v", "s"], ["t"], name="reshape"),
        node("Concat", ["f", "t"], ["j"], name="concat", axis=0),
        node("Gather", ["j", "i"], ["g"], name="gather", axis=0),
        node("Transpose", ["g"], ["h"], name="transpose", perm=[1, 0]),
        node("ReduceSum", ["h", "n"], ["y"], name="sum"),
    ]
    constants = {
        "w": np.ones((3, 4), "f4"),
        "b": np.ones(4, "f4"),
        "k": np.ones((1, 1, 2, 2), "f4"),
        "s": np.array([1, 4]),
        "i": np.array([0, 2]),
        "n": np.array([0]),
    }
    inputs = [_info("x", 1, (2, 3)), _info("c", TensorProto.BOOL, ()), _info("p", 1, (1, 1, 3, 3))]
    graph = helper.make_graph(
        nodes, "g", inputs, [_info("y", 1, None)], [numpy_helper.from_array(v, k) for k, v in constants.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _refused(change: Change) -> str:
    """The message for the changed model; empty if it is imported."""
    model = _model()
    change(model)
    try:
        to_relax(model)
    except ByocError as error:
        return str(error)
    return ""


# ---- nodes ------------------------------------------------------------------------------------------


def _kind(node: onnx.NodeProto) -> None:
    node.op_type = "Nonsense"


def _no_kind(node: onnx.NodeProto) -> None:
    node.op_type = ""


def _stranger(node: onnx.NodeProto) -> None:
    node.domain = "strange"


def _no_outputs(node: onnx.NodeProto) -> None:
    del node.output[:]


def _no_inputs(node: onnx.NodeProto) -> None:
    del node.input[:]


def _undefined(node: onnx.NodeProto) -> None:
    node.input[0] = "nowhere"


def _left_out(node: onnx.NodeProto) -> None:
    node.input[0] = ""


def _own_result(node: onnx.NodeProto) -> None:
    node.input[0] = node.output[0]


def _text_attributes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        attribute.type = onnx.AttributeProto.STRING


def _attributes_twice(node: onnx.NodeProto) -> None:
    node.attribute.extend([helper.make_attribute("axis", 0), helper.make_attribute("axis", 0)])


def _huge_attributes(node: onnx.NodeProto) -> None:
    node.attribute.append(helper.make_attribute("nothing", 1))
    for attribute in node.attribute:
        if attribute.ints:
            attribute.ints[0] = -(2**62)
        else:
            attribute.i = 2**62


NODES = range(len(_model().graph.node))
#: what is done to a node; what the message says beside the name of the node
NODE_CHANGES = [
    (_kind, "Nonsense"),
    (_no_kind, "no op_type"),
    (_stranger, "strange"),
    (_no_outputs, "no outputs"),
    (_no_inputs, "0 inputs"),
    (_undefined, "reads `nowhere` as input 0"),
    (_left_out, "leaves out input 0"),
    (_own_result, "need each other's results"),
    (_text_attributes, "of type STRING"),
    (_attributes_twice, "an attribute twice"),
    (_huge_attributes, ""),
]


@pytest.mark.parametrize("number", NODES)
@pytest.mark.parametrize(("change", "words"), NODE_CHANGES, ids=[c.__name__.strip("_") for c, _ in NODE_CHANGES])
def test_a_node_that_cannot_be(change: Callable[[onnx.NodeProto], None], words: str, number: int) -> None:
    node = _model().graph.node[number]
    name = node.name
    message = _refused(lambda model: change(model.graph.node[number]))
    if (change is _text_attributes and not node.attribute) or (change is _huge_attributes and name == "if"):
        return  # nothing was changed that means anything
    assert words in message
    assert f"`{name}`" in message or change is _no_outputs


# ---- constants --------------------------------------------------------------------------------------


def _set(**fields: Any) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        for field, value in fields.items():
            if field == "dims":
                del tensor.dims[:]
                tensor.dims.extend(value)
            else:
                setattr(tensor, field, value)

    return change


def _cut(tensor: onnx.TensorProto) -> None:
    tensor.raw_data = tensor.raw_data[:-1]


def _longer(tensor: onnx.TensorProto) -> None:
    tensor.raw_data += bytes(8)


def _empty(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")


def _outside(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL


def _strings(tensor: onnx.TensorProto) -> None:
    values = [b"a"] * int(np.prod(tensor.dims))
    tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.STRING, list(tensor.dims), values))


TENSOR_CHANGES = [
    ("cut", _cut, "bytes; expected"),
    ("longer", _longer, "bytes; expected"),
    ("empty", _empty, "has 0 numbers"),
    ("outside", _outside, "lie in files beside it"),
    ("strings", _strings, ""),
    ("below 0", _set(dims=[-1]), "expected sizes of 0 or more"),
    ("huge", _set(dims=[2**62]), "the limit is"),
    ("product of 0 in 64 bits", _set(dims=[2**32, 2**32]), "the limit is"),
    ("unknown type", _set(data_type=99), "unknown type 99"),
    ("no type", _set(data_type=0), "unknown type 0"),
    ("another width", _set(data_type=TensorProto.COMPLEX128), "bytes; expected"),
    ("another name", _set(name="renamed"), "reads"),
]


@pytest.mark.parametrize("number", range(len(_model().graph.initializer)))
@pytest.mark.parametrize(("change", "words"), [c[1:] for c in TENSOR_CHANGES], ids=[c[0] for c in TENSOR_CHANGES])
def test_a_constant_that_cannot_be(change: Callable[[onnx.TensorProto], None], words: str, number: int) -> None:
    name = _model().graph.initializer[number].name
    message = _refused(lambda model: change(model.graph.initializer[number]))
    assert message
    assert words in message
    assert f"`{name}`" in message or change in (_outside, _strings)


# ---- inputs, outputs, the model ---------------------------------------------------------------------


def _dims(value: onnx.ValueInfoProto, *dims: int) -> None:
    value.CopyFrom(_info(value.name, value.type.tensor_type.elem_type, dims))


def _add_twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(copy.deepcopy(model.graph.node[0]))


MODEL_CHANGES: list[tuple[str, Change, str]] = [
    ("sizes below 0", lambda m: _dims(m.graph.input[0], -2, 3), "the input `x` has the shape"),
    ("huge sizes", lambda m: _dims(m.graph.input[0], 2**62, 4), "the input `x` has the shape"),
    ("overflow", lambda m: _dims(m.graph.input[2], 2**32, 2**32), "the input `p` has the shape"),
    ("another rank", lambda m: _dims(m.graph.input[2], 3), "`conv`"),
    ("type", lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 99), "the input `x` is of the unknown"),
    ("no type", lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 0), "the input `x` has no type"),
    ("no type at all", lambda m: m.graph.input[1].ClearField("type"), "the input `c` has no type"),
    (
        "condition",
        lambda m: setattr(m.graph.input[1].type.tensor_type, "elem_type", 1),
        "If (node `if`) has float32 () as input 0; expected bool",
    ),
    ("input away", lambda m: m.graph.input.pop(0) and None, "`product`"),
    ("input twice", lambda m: m.graph.input.append(m.graph.input[0]), "`x` more than once"),
    ("constant twice", lambda m: m.graph.initializer.append(m.graph.initializer[0]), "`w` more than once"),
    ("node twice", _add_twice, "`m` more than once"),
    ("output", lambda m: setattr(m.graph.output[0], "name", "nowhere"), "the output `nowhere` is made by no node"),
    ("no output", lambda m: m.graph.output.pop() and None, "no outputs"),
    ("no nodes", lambda m: m.graph.ClearField("node"), "the output `y` is made by no node"),
    ("no graph", lambda m: m.ClearField("graph"), "no outputs"),
    ("no opset", lambda m: m.ClearField("opset_import"), "does not say of which opset"),
    *(
        (f"opset {v}", lambda m, v=v: setattr(m.opset_import[0], "version", v), f"is of opset {v}; expected 1 to")
        for v in (0, -1, 999, 2**40)
    ),
]


@pytest.mark.parametrize(("change", "words"), [c[1:] for c in MODEL_CHANGES], ids=[c[0] for c in MODEL_CHANGES])
def test_a_model_that_cannot_be(change: Change, words: str) -> None:
    assert words in _refused(change)


def test_the_model_itself_and_harmless_changes() -> None:
    assert not _refused(lambda model: None)
    assert not _refused(lambda model: setattr(model, "ir_version", 99))

    def turn(model: onnx.ModelProto) -> None:
        nodes = list(model.graph.node)[::-1]
        del model.graph.node[:]
        model.graph.node.extend(nodes)

    assert not _refused(turn)


# ---- functions and depth ----------------------------------------------------------------------------


def _function(name: str, *calls: str) -> onnx.FunctionProto:
    """A function that calls others, one after the other; an overload stands behind a colon."""
    values = ["p", *(f"t{i}" for i in range(1, len(calls))), "q"]
    nodes = [
        helper.make_node(op, [a], [b], domain="" if op == "Relu" else "own", overload=overload)
        for call, a, b in zip(calls, values[:-1], values[1:], strict=True)
        for op, _, overload in [call.partition(":")]
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    op, _, overload = name.partition(":")
    return helper.make_function("own", op, ["p"], ["q"], nodes, opsets, overload=overload)


def _with_functions(*functions: onnx.FunctionProto) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.functions.extend(functions)
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.graph.node[2].op_type, model.graph.node[2].domain = "F0", "own"

    return change


FUNCTIONS = [
    ("itself", [_function("F0", "F0")], "calls itself: own.F0 → own.F0"),
    ("each other", [_function("F0", "F1"), _function("F1", "F0")], "calls itself: own.F0 → own.F1 → own.F0"),
    ("itself, unused", [_function("F0", "Relu"), _function("F1", "F1")], "calls itself: own.F1 → own.F1"),
    (
        "deep",
        [*(_function(f"F{i}", f"F{i + 1}") for i in range(99)), _function("F99", "Relu")],
        f"the limit is {MOST_NESTED}",
    ),
    (
        "2^30 nodes",
        [*(_function(f"F{i}", f"F{i + 1}", f"F{i + 1}") for i in range(30)), _function("F30", "Relu")],
        "written out, have 1073741",
    ),
    ("one", [_function("F0", "Relu")], ""),
    ("another of the same name", [_function("F0", "F0:two"), _function("F0:two", "Relu")], ""),
]


@pytest.mark.parametrize(("functions", "words"), [f[1:] for f in FUNCTIONS], ids=[f[0] for f in FUNCTIONS])
def test_functions(functions: list[onnx.FunctionProto], words: str) -> None:
    message = _refused(_with_functions(*functions))
    assert words in message if words else not message


# ---- constant operands ------------------------------------------------------------------------------


def _instead_of_relu(op: str, operand: Any, **attributes: Any) -> Change:
    def change(model: onnx.ModelProto) -> None:
        del model.graph.node[3:]
        model.graph.node[2].CopyFrom(helper.make_node(op, ["a", "o"], ["y"], name="relu", **attributes))
        model.graph.initializer.append(numpy_helper.from_array(np.array(operand), "o"))

    return change


HUGE = (10**12, 2**62)
OPERANDS: list[tuple[str, Any, dict[str, Any], str]] = [
    *(("Tile", [v, 1], {}, "the limit is") for v in HUGE),
    *(("Expand", [v, 2, 4], {}, "the limit is") for v in HUGE),
    *(("Reshape", [v, 4], {}, "the limit is") for v in HUGE),
    *(("Pad", [v, 0, 0, 0], {}, "the limit is") for v in HUGE),
    *(("TopK", [v], {}, f"takes {v} elements; expected 0 to 4") for v in (5, -1, *HUGE)),
    *(("Split", [v, 1], {}, "expected the 2 elements of its axis") for v in (0, 2, *HUGE)),
    *(("CumSum", v, {}, f"has the axis {v}; expected -2 to 1") for v in (2, -3, *HUGE)),
    *(("ReduceSum", [v], {}, f"has the axis {v}; expected -2 to 1") for v in (2, -3, *HUGE)),
    *(("Squeeze", [v], {}, f"has the axis {v}; expected -2 to 1") for v in (2, -3)),
    ("Tile", [-1, 1], {}, "expected 0 or more"),
    ("Expand", [-1, 4], {}, "expected 0 or more"),
    ("Reshape", [-1, -1], {}, "at most one -1"),
    ("Reshape", [-2, 4], {}, "sizes of 0 or more"),
    ("Pad", [-3, 0, 0, 0], {}, "remove more than the 2 elements of axis 0"),
    ("Pad", [-2, 0, 1, 0], {"mode": "edge"}, "leave nothing of axis 0"),
    ("And", [True], {}, "has float32 (2, 4) as input 0; expected bool"),
    ("Pad", [1], {}, "has 1 pads; expected 4"),
    ("Split", [-1, 3], {}, "expected sizes of 0 or more"),
    ("Gather", [0], {"axis": 2}, "has the axis 2; expected -2 to 1"),
]


@pytest.mark.parametrize(("op", "operand", "attributes", "words"), OPERANDS)
def test_a_constant_operand_that_cannot_be(op: str, operand: Any, attributes: dict[str, Any], words: str) -> None:
    outputs = ["y", "z"] if op in ("Split", "TopK") else ["y"]

    def change(model: onnx.ModelProto) -> None:
        _instead_of_relu(op, operand, **attributes)(model)
        model.graph.node[2].output[:] = outputs

    message = _refused(change)
    assert f"{op} (node `relu`)" in message
    assert words in message


# ---- files ------------------------------------------------------------------------------------------


def _damaged() -> Iterator[bytes]:
    data, rng = _model().SerializeToString(), np.random.default_rng(7)
    yield from (data[:length] for length in (0, 1, 10, 100, len(data) // 2, len(data) - 1))
    yield from (bytes(1000), b"some text " * 50, data + data)
    for at in rng.integers(len(data), size=60):
        yield data[:at] + bytes([int(rng.integers(256))]) + data[at + 1 :]


def test_damaged_files(tmp_path: Any) -> None:
    """A changed byte may be harmless, so a result is as good as an error."""
    path, errors = tmp_path / "model.onnx", 0
    for data in _damaged():
        path.write_bytes(data)
        try:
            to_relax(path)
        except ByocError:
            errors += 1
    assert errors >= 20


@pytest.mark.parametrize(
    "place",
    [
        {"location": "nowhere.bin"},
        {"location": "../outside.bin"},
        {"location": "data.bin", "offset": "999", "length": "16"},
        {"location": "data.bin", "offset": "-5", "length": "x"},
        {},
    ],
)
def test_weights_outside_of_the_file(place: dict[str, str], tmp_path: Any) -> None:
    model = _model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "models").mkdir()
    for folder in (tmp_path, tmp_path / "models"):
        (folder / "data.bin").write_bytes(bytes(48))
    (tmp_path / "outside.bin").write_bytes(bytes(48))
    path = tmp_path / "models" / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises((InputError, UnsupportedError)):
        to_relax(path)
    with pytest.raises(InputError):
        load_onnx(path)
