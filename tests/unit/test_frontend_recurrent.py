"""LSTM, GRU and RNN unrolled, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit.importing import check, node, onnx_model, rand
from tvm_byoc_dnnl.errors import UnsupportedError
from tvm_byoc_dnnl.frontend import to_relax

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUT, HIDDEN = 3, 2, 5, 4


def model(
    op: str,
    *,
    direction: str = "forward",
    bias: bool = True,
    state: bool = True,
    steps: int = STEPS,
    lengths: list[int] | None = None,
    **attrs: Any,
) -> onnx.ModelProto:
    ways = 2 if direction == "bidirectional" else 1
    gates = GATES[op] * HIDDEN
    constants = {
        "w": rand(ways, gates, INPUT), "r": rand(ways, gates, HIDDEN, seed=2), "b": rand(ways, 2 * gates, seed=3),
        "lengths": np.array(lengths or [], "int32"),
    }  # fmt: skip
    inputs: dict[str, Any] = {"x": (steps, BATCH, INPUT)}
    names = ["x", "w", "r", "b" if bias else "", "" if lengths is None else "lengths"]
    if state:
        inputs["h"] = (ways, BATCH, HIDDEN)
        names.append("h")
        if op == "LSTM":
            inputs["c"] = (ways, BATCH, HIDDEN)
            names.append("c")
    outputs = ["y", "y_h"] + (["y_c"] if op == "LSTM" else [])
    one = node(op, names, outputs, hidden_size=HIDDEN, direction=direction, **attrs)
    return onnx_model([one], inputs, constants, outputs=outputs)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("state", [False, True])
def test_unrolled(op: str, bias: bool, state: bool) -> None:
    check(model(op, direction="bidirectional", bias=bias, state=state))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_one_direction(op: str, direction: str) -> None:
    check(model(op, direction=direction, bias=True, state=False))


@pytest.mark.sweep
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize(("bias", "state"), [(False, False), (False, True), (True, True)])
def test_one_direction_with_all_inputs(op: str, direction: str, bias: bool, state: bool) -> None:
    check(model(op, direction=direction, bias=bias, state=state))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("state", [False, True])
def test_gru_linear_before_reset(bias: bool, state: bool) -> None:
    check(model("GRU", bias=bias, state=state, linear_before_reset=1))


def test_other_activations() -> None:
    check(model("LSTM", activations=["Sigmoid", "Relu", "Tanh"]))


def test_one_step() -> None:
    check(model("LSTM", steps=1))


def test_lengths_that_are_all_full() -> None:
    check(model("LSTM", lengths=[STEPS, STEPS]))


@pytest.mark.parametrize(
    "attrs", [{"clip": 1.0}, {"lengths": [3, 2]}, {"activations": ["Elu", "Tanh", "Tanh"]}], ids=str
)
def test_what_cannot_be_unrolled(attrs: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="LSTM"):
        to_relax(model("LSTM", **attrs))


def test_too_long() -> None:
    with pytest.raises(UnsupportedError, match="2000 steps"):
        to_relax(model("LSTM", steps=2000))
