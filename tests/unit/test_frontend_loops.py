"""Loops: written out, or functions that native code calls, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.unit.importing import check, node, onnx_model, rand
from tests.unit.loops import FLAG, NUMBER, TYPES, agree, body, goes_on, loop
from tvm_byoc_dnnl import Runner, compile, explain, load
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax

pytestmark = pytest.mark.native
# ---- loops of known length --------------------------------------------------------------------------------


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", [4, 300])
def test_scan(backward: int, axis: int, length: int) -> None:
    """Of few steps it is written out."""
    nodes = [node("Add", ["s", "e"], ["a"]), node("Tanh", ["a"], ["t"]), node("Mul", ["t", "outer"], ["o"])]
    inner = body(nodes, ["s", "e"], ["t", "o"])
    options = {"scan_input_axes": [axis - 2], "scan_input_directions": [backward], "scan_output_directions": [backward]}
    scan = node("Scan", ["i", "x"], ["y", "z"], body=inner, num_scan_inputs=1, scan_output_axes=[axis - 2], **options)
    x, start = rand(*((length, 3) if axis == 0 else (3, length))), rand(3, seed=2)
    model = onnx_model([scan], {"i": (3,), "x": x.shape}, {"outer": np.float32(2)}, outputs=["y", "z"])
    agree(model, {"i": start, "x": x})
    assert ("byoc.loop" in str(to_relax(model))) == (length == 300)


def test_rounds_of_a_known_number_are_written_out() -> None:
    nodes = [goes_on(), node("Mul", ["v", "v"], ["w"]), node("Identity", ["w"], ["o"])]
    inner = body(nodes, ["k", "go", "v"], ["on", "w", "o"])
    model = onnx_model([loop(inner, ["n", "", "x"], ["y", "z"])], {"x": (3,)}, {"n": np.array(3)}, outputs=["y", "z"])
    assert check(model, inputs={"x": rand(3)})["multiply"] == 3


def test_a_loop_that_ends_in_a_known_round_is_written_out() -> None:
    nodes = [node("Less", ["k", "two"], ["on"]), node("Neg", ["v"], ["w"])]
    inner = body(nodes, ["k", "go", "v"], ["on", "w"])
    model = onnx_model([loop(inner, ["", "c", "x"], ["y"])], {"x": (3,)}, {"c": np.array(True), "two": np.array(2)})
    agree(model, {"x": rand(3)})


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("rounds", [0, -1])
def test_no_rounds(rounds: int, runs: bool) -> None:
    """The states are those of outside, and the stacked results have no parts."""
    inner = body([goes_on(), node("Concat", ["v", "v"], ["w"], axis=0)], ["k", "go", "v"], ["on", "w", "w"])
    constants = {"n": np.array(rounds if runs else 3), "c": np.array(runs)}
    model = onnx_model([loop(inner, ["n", "c", "x"], ["y", "z"])], {"x": (2, 3)}, constants, outputs=["y", "z"])
    y, z = Runner(compile(model))(rand(2, 3))
    np.testing.assert_array_equal(y, rand(2, 3))
    assert (z.shape, z.dtype) == ((0, 0, 3), np.float32)


# ---- loops whose length a call knows ----------------------------------------------------------------------


def test_the_number_of_rounds_and_the_condition_of_a_call() -> None:
    nodes = [
        node("MatMul", ["s", "w"], ["m"]),
        node("Tanh", ["m"], ["t"]),
        node("ReduceSum", ["t"], ["r"], keepdims=0),
        node("Less", ["r", "limit"], ["on"]),
        node("Add", ["t", "x"], ["o"]),
    ]
    inner = body(nodes, ["k", "go", "s"], ["on", "t", "o"])
    model = onnx_model(
        [loop(inner, ["n", "c", "x"], ["y", "z"])],
        {"n": (), "c": (), "x": ("b", 16), "limit": ()},
        {"w": rand(16, 16) / 9},
        dtypes=TYPES,
        outputs=["y", "z"],
    )
    call = {"n": 3, "c": True, "x": rand(2, 16), "limit": np.float32(1e9)}
    others = [{"n": 0}, {"c": False}, {"n": 2000, "x": rand(3, 16)}, {"n": 50, "limit": np.float32(-1)}]
    agree(model, call, *({**call, **other} for other in others))


def test_a_state_that_grows() -> None:
    """Its first axis is another one in each round; the second one stays that of outside."""
    nodes = [
        goes_on(),
        node("Concat", ["v", "x"], ["w"], axis=0),
        node("ReduceMean", ["w"], ["m"], axes=[0], keepdims=0),
    ]
    inner = body(nodes, ["k", "go", "v"], ["on", "w", "m"])
    nodes = [loop(inner, ["n", "", "x"], ["w", "y"]), node("Add", ["w", "one"], ["z"])]
    model = onnx_model(nodes, {"n": (), "x": ("b", "d")}, {"one": np.float32(1)}, dtypes=TYPES, outputs=["y", "z"])
    agree(model, *({"n": n, "x": rand(b, d)} for n, b, d in ((1, 2, 3), (4, 1, 5), (0, 3, 2), (7, 3, 1))))


def test_states_that_change_places_and_such_that_stay() -> None:
    nodes = [
        goes_on(),
        node("Add", ["a", "b"], ["s"]),
        node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["s", "f"], ["p"]),
        node("Add", ["p", "x"], ["q"]),
        node("Identity", ["k"], ["i"]),
    ]
    inner = body(nodes, ["k", "go", "a", "b", "c0"], ["on", "b", "s", "c0", "q", "i"], i=NUMBER)
    outputs = ["u", "v", "w", "y", "z"]
    model = onnx_model(
        [loop(inner, ["n", "", "x", "one", "x"], outputs)],
        {"n": (), "x": (5,)},
        {"one": np.ones(5, "float32")},
        dtypes={**TYPES, "z": NUMBER},
        outputs=outputs,
    )
    agree(model, *({"n": n, "x": rand(5)} for n in (1, 2, 9)))


def test_a_loop_in_a_loop_and_choices_inside() -> None:
    """The inner number of rounds is the outer round, and a branch has a loop of its own."""

    def of(level: str) -> dict[str, int]:
        return {f"k{level}": NUMBER, f"go{level}": FLAG}

    innermost = body([node("Mul", ["v3", "half"], ["w3"])], ["k3", "go3", "v3"], ["go3", "w3"], **of("3"))
    then = helper.make_graph(
        [loop(innermost, ["n", "", "u"], ["t"])], "then", [], [helper.make_empty_tensor_value_info("t")]
    )
    other = helper.make_graph([node("Neg", ["u"], ["o"])], "other", [], [helper.make_empty_tensor_value_info("o")])
    second = body(
        [
            node("Add", ["v2", "x"], ["u"]),
            node("ReduceSum", ["u"], ["r"], keepdims=0),
            node("Less", ["r", "zero"], ["less"]),
            node("If", ["less"], ["w2"], then_branch=then, else_branch=other),
        ],
        ["k2", "go2", "v2"],
        ["go2", "w2"],
        **of("2"),
    )
    first = body(
        [goes_on(), loop(second, ["k", "", "v"], ["p"]), node("Sub", ["p", "half"], ["w"])],
        ["k", "go", "v"],
        ["on", "w", "p"],
    )
    model = onnx_model(
        [loop(first, ["n", "", "x"], ["y", "z"])],
        {"n": (), "x": ("b", 3)},
        {"half": np.float32(0.5), "zero": np.float32(0)},
        dtypes=TYPES,
        outputs=["y", "z"],
    )
    agree(model, *({"n": n, "x": rand(b, 3)} for n, b in ((3, 2), (5, 1), (0, 2))))


def test_a_loop_in_a_branch() -> None:
    inner = body(
        [goes_on(), node("MatMul", ["v", "w"], ["m"]), node("Relu", ["m"], ["r"])], ["k", "go", "v"], ["on", "r"]
    )
    then = helper.make_graph(
        [loop(inner, ["n", "", "x"], ["t"])], "then", [], [helper.make_empty_tensor_value_info("t")]
    )
    other = helper.make_graph([node("Neg", ["x"], ["t"])], "other", [], [helper.make_empty_tensor_value_info("t")])
    nodes = [node("If", ["c"], ["u"], then_branch=then, else_branch=other), node("Exp", ["u"], ["y"])]
    model = onnx_model(nodes, {"c": (), "n": (), "x": ("b", 8)}, {"w": rand(8, 8) / 4}, dtypes=TYPES)
    agree(model, *({"c": c, "n": n, "x": rand(3, 8)} for c, n in ((True, 4), (False, 4), (True, 0))))


def test_what_follows_a_loop_does_not_overwrite_it() -> None:
    """States, parts and what a round took from outside may be the memory of a tensor from in front of the loop."""
    inner = body(
        [goes_on(), node("Identity", ["v"], ["w"]), node("Identity", ["r"], ["o"])], ["k", "go", "v"], ["on", "w", "o"]
    )
    nodes = [
        node("MatMul", ["x", "x"], ["q"]),
        node("Relu", ["q"], ["r"]),
        loop(inner, ["n", "", "r"], ["s", "t"]),
        node("MatMul", ["x", "q"], ["a"]),
        node("Tanh", ["a"], ["b"]),
        node("MatMul", ["b", "x"], ["d"]),
        node("Exp", ["d"], ["e"]),
        node("Add", ["e", "s"], ["y"]),
        node("ReduceSum", ["t"], ["z"], keepdims=0),
    ]
    model = onnx_model(nodes, {"n": (), "x": (16, 16)}, dtypes=TYPES, outputs=["y", "z"])
    agree(model, *({"n": n, "x": rand(16, 16) / 9} for n in (0, 1, 3)))


def test_scan_of_an_open_length() -> None:
    """Two tensors along axes of one size, one of them from its end; the parts are stacked along their last axis."""
    nodes = [node("Mul", ["e", "f"], ["p"]), node("Add", ["s", "p"], ["t"]), node("Sin", ["t"], ["o"])]
    inner = body(nodes, ["s", "e", "f"], ["t", "o"])
    scan = node(
        "Scan",
        ["i", "x", "v"],
        ["y", "z"],
        body=inner,
        num_scan_inputs=2,
        scan_input_axes=[0, 1],
        scan_input_directions=[0, 1],
        scan_output_axes=[1],
        scan_output_directions=[1],
    )
    model = onnx_model([scan], {"i": ("d",), "x": ("t", "d"), "v": ("d", "t")}, outputs=["y", "z"])
    agree(model, *({"i": rand(d), "x": rand(t, d), "v": rand(d, t, seed=3)} for t, d in ((5, 3), (1, 1), (40, 2))))


def test_scan_of_opset_8_has_a_batch() -> None:
    inner = body([node("Add", ["s", "e"], ["t"]), node("Mul", ["t", "t"], ["o"])], ["s", "e"], ["t", "o"])
    scan = node("Scan", ["", "i", "x"], ["y", "z"], body=inner, num_scan_inputs=1)
    for batch, steps in (("b", "t"), (2, 3), (2, 400)):
        model = onnx_model([scan], {"i": (batch, 4), "x": (batch, steps, 4)}, opset=8, outputs=["y", "z"])
        b, t = (2 if isinstance(batch, str) else batch), (5 if isinstance(steps, str) else steps)
        i, x = rand(b, 4) / 9, rand(b, t, 4, seed=5) / 9
        y, z = Runner(compile(model))(i, x)
        sums = i[:, None] + np.cumsum(x, 1)
        np.testing.assert_allclose(y, sums[:, -1], atol=1e-4)
        np.testing.assert_allclose(z, sums**2, atol=1e-4)


#: a loop with a region
TWICE = onnx_model(
    [loop(body([goes_on(), node("MatMul", ["v", "w"], ["m"])], ["k", "go", "v"], ["on", "m"]), ["n", "", "x"], ["y"])],
    {"n": (), "x": ("b", 8)},
    {"w": rand(8, 8) / 4},
    dtypes=TYPES,
)


# ---- what goes wrong --------------------------------------------------------------------------------------


def test_an_error_in_a_round_is_that_of_the_call() -> None:
    """And the next call is right."""
    nodes = [goes_on(), node("Gather", ["x", "k"], ["e"]), node("Add", ["v", "e"], ["w"])]
    inner = body(nodes, ["k", "go", "v"], ["on", "w"])
    model = onnx_model(
        [loop(inner, ["n", "", "zero"], ["y"])], {"n": (), "x": (3,)}, {"zero": np.float32(0)}, dtypes=TYPES
    )
    runner = Runner(compile(model))
    x = rand(3)
    for _ in range(2):
        np.testing.assert_allclose(runner(np.array(3), x), x.sum(), atol=1e-6)
        with pytest.raises(IndexError, match="out of range"):
            runner(np.array(4), x)


def test_parts_of_other_shapes_cannot_be_stacked() -> None:
    inner = body([goes_on(), node("Concat", ["v", "v"], ["w"], axis=0)], ["k", "go", "v"], ["on", "w", "w"])
    model = onnx_model(
        [loop(inner, ["n", "", "x"], ["y", "z"])], {"n": (), "x": (2,)}, dtypes=TYPES, outputs=["y", "z"]
    )
    runner = Runner(compile(model))
    assert [r.shape for r in runner(np.array(1), rand(2))] == [(4,), (1, 4)]
    with pytest.raises(InputError, match=r"Loop \(node `rounds`\): round 1 adds a part of shape \[8\]"):
        runner(np.array(2), rand(2))


def test_a_state_of_another_rank_is_refused_by_the_round() -> None:
    """A branch that no call takes does no harm; such are what exporters write for sizes that are never 1."""
    same, wider = (
        body([node("Identity", ["v"], ["p"])], [], ["p"]),
        body([node("Unsqueeze", ["v", "a"], ["q"])], [], ["q"]),
    )
    nodes = [goes_on(), node("If", ["c"], ["w"], then_branch=same, else_branch=wider)]
    inner = body(nodes, ["k", "go", "v"], ["on", "w"])
    inputs = {"n": (), "c": (), "x": (2,)}
    runner = Runner(
        compile(onnx_model([loop(inner, ["n", "", "x"], ["y"])], inputs, {"a": np.array([0])}, dtypes=TYPES))
    )
    x = rand(2)
    np.testing.assert_array_equal(runner(np.array(2), np.array(True), x), x)
    with pytest.raises(InputError, match="needs 1 dims where a tensor has 2"):
        runner(np.array(2), np.array(False), x)


def test_emitted_source_has_no_loops() -> None:
    with pytest.raises(UnsupportedError, match=r"Loop \(node `rounds`\).* compile without output"):
        compile(TWICE, output="source")


def test_reports_and_saved_models_have_the_calls_of_a_round(tmp_path: Path) -> None:
    report = explain(TWICE)
    assert {region.name for region in report.regions} == {"dnnl_0"}
    assert "calls of which are offered like all others" in " ".join(str(report).split())
    compiled = compile(TWICE)
    compiled.export_library(tmp_path / "loop.so")
    for runner in (load(tmp_path / "loop.so"), Runner(compile(TWICE, cache_dir=tmp_path)), Runner(compiled)):
        agree(TWICE, {"n": 3, "x": rand(2, 8)}, {"n": 0, "x": rand(1, 8)}, runner=runner)


REFUSED = {
    "a state of another dtype": (
        body([goes_on(), node("Cast", ["v"], ["w"], to=NUMBER)], ["k", "go", "v"], ["on", "w"], w=NUMBER),
        ["n", "", "x"],
        InputError,
        "state 0 of float32, which a round makes int64",
    ),
    "too few results": (body([goes_on()], ["k", "go", "v"], ["on"]), ["n", "", "x"], InputError, "1 states"),
    "a number of rounds that is none": (
        body([goes_on(), node("Neg", ["v"], ["w"])], ["k", "go", "v"], ["on", "w"]),
        ["x", "", "x"],
        InputError,
        "as input 0; expected int",
    ),
    "an operator that nothing imports": (
        body([goes_on(), node("StringNormalizer", ["v"], ["w"])], ["k", "go", "v"], ["on", "w"]),
        ["n", "", "x"],
        UnsupportedError,
        "StringNormalizer",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    inner, inputs, error, reason = REFUSED[what]
    model = onnx_model([loop(inner, inputs, ["y"])], {"n": (), "x": (2,)}, dtypes=TYPES)
    with pytest.raises(error, match=reason):
        to_relax(model)
