"""The kind ``recurrent``: by the kernel, in source as well, against NumPy in float64; and bad graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.graph_reference import GraphBuilder
from tests.unit.recurrent_reference import CURVES, GATES
from tests.unit.test_native_kinds import check, execute, probe, run_emitted
from tvm_byoc_dnnl.core.errors import GraphError
from tvm_byoc_dnnl.runtime.comparison import differences

pytestmark = pytest.mark.native

STEPS, BATCH, INPUT, HIDDEN = 6, 2, 3, 5
USUAL = {"rnn": ["tanh"], "gru": ["sigmoid", "tanh"], "lstm": ["sigmoid", "tanh", "tanh"]}


def recurrent(
    cell: str,
    *,
    roles: tuple[str, ...] = ("bias",),
    results: tuple[str, ...] = ("state", "all"),
    directions: tuple[str, ...] = ("forward",),
    shapes: dict[str, tuple[int, ...]] | None = None,
    stored: str = "float32",
    **attrs: Any,
) -> tuple[GraphBuilder, list[np.ndarray]]:
    """A graph of one node, whose weights are constants of dtype ``stored``, and its arguments; ``shapes`` takes the
    place of the right ones. Weights in bfloat16 lose nothing, since a CPU may compute them in float32."""
    count, gates = len(directions), GATES[cell] * HIDDEN
    right = {
        "source": (STEPS, BATCH, INPUT), "weights": (count, gates, INPUT), "recurrent": (count, gates, HIDDEN),
        "bias": (count, 2 * gates), "peepholes": (count, 3 * HIDDEN), "state": (count, BATCH, HIDDEN),
        "cell": (count, BATCH, HIDDEN), "lengths": (BATCH,),
        "scales": (count, 2 * gates),
    }  # fmt: skip
    rng, g, ids, arguments = np.random.default_rng(0), GraphBuilder(), [], []
    for name in ("source", "weights", "recurrent", *roles):
        value = rng.standard_normal({**right, **(shapes or {})}[name]).astype("float32") / 2
        if name == "lengths":
            value = np.arange(STEPS, STEPS - BATCH, -1, dtype="int32")
        if name in ("weights", "recurrent") and stored != "float32":
            value = np.round(value * 32)
            if stored == "int8":
                ids.append(g.constant(value.astype(stored)))
            else:
                ids.append(g.node("reorder", [g.constant(value / 32)], value.shape, stored))
        elif name in ("weights", "recurrent", "bias", "peepholes", "scales"):
            ids.append(g.constant(value / 16 if name == "scales" else value))
        else:
            ids.append(g.input(value.shape, str(value.dtype)))
            arguments.append(value)
    curves = USUAL[cell.rpartition("_")[2]] * count
    numbers = [0.0] * len(curves)
    rows = sum(STEPS if name == "all" else 1 for name in results)
    lists = {"roles": list(roles), "results": list(results), "directions": list(directions), "activations": curves}
    known = {"alg": cell, **lists, "alphas": numbers, "betas": numbers, "clip": "inf", **attrs}
    g.outputs = [g.node("recurrent", ids, (rows, count, BATCH, HIDDEN), **known)]
    return g, arguments


BOTH = ("forward", "reverse")
LSTM = ("bias", "peepholes", "state", "cell", "lengths")


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("directions", [("forward",), ("reverse",), BOTH])
def test_cells(cell: str, directions: tuple[str, ...]) -> None:
    roles = LSTM if "lstm" in cell else ("bias", "state", "lengths")
    check(*recurrent(cell, roles=roles, directions=directions))
    check(*recurrent(cell, roles=(), directions=directions, clip=0.3))


NARROW = {"bfloat16": (), "int8": ("scales",)}


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("stored", NARROW)
def test_weights_of_fewer_bits(cell: str, stored: str) -> None:
    others = LSTM if "lstm" in cell else ("bias", "state", "lengths")
    for roles in (NARROW[stored], (*others, *NARROW[stored])):
        check(*recurrent(cell, roles=roles, directions=BOTH, stored=stored))


@pytest.mark.parametrize("results", [("all",), ("state",), ("cell",), ("cell", "all"), ("state", "cell", "all")])
def test_results(results: tuple[str, ...]) -> None:
    check(*recurrent("lstm", results=results, directions=BOTH))


@pytest.mark.parametrize("name", CURVES)
def test_activations(name: str) -> None:
    check(*recurrent("gru", activations=["sigmoid", name], alphas=[0.0, -0.5], betas=[0.0, -0.0]))


@pytest.mark.parametrize(
    ("cell", "stored"),
    [
        *(pytest.param(cell, "float32", marks=[] if cell == "lstm" else pytest.mark.sweep) for cell in GATES),
        pytest.param("lstm", "bfloat16", marks=pytest.mark.sweep),
        ("lbr_gru", "int8"),
    ],
)
def test_emitted_source_gives_the_same(cell: str, stored: str, tmp_path: Any) -> None:
    roles = (*(LSTM if "lstm" in cell else ("bias", "state", "lengths")), *NARROW.get(stored, ()))
    attrs: dict[str, Any] = {"directions": BOTH, "clip": 0.7, "stored": stored}
    g, arguments = recurrent(cell, roles=roles, **attrs)
    wrong = differences(run_emitted(g, arguments, tmp_path), execute(g, arguments), 1e-6, least=1.0)
    assert not wrong, wrong


def test_views_of_source_and_result_are_no_copies() -> None:
    """A source with the batch first, and directions that are joined behind the layer."""
    g = GraphBuilder()
    gates = 4 * HIDDEN
    source = g.node("permute", [g.input((BATCH, STEPS, INPUT))], (STEPS, BATCH, INPUT), axes=[1, 0, 2])
    weights = [g.constant(np.ones((2, gates, n), "float32") / 9) for n in (INPUT, HIDDEN)]
    lists = {"roles": [], "results": ["all"], "directions": list(BOTH), "activations": USUAL["lstm"] * 2}
    y = g.node("recurrent", [source, *weights], (STEPS, 2, BATCH, HIDDEN), alg="lstm", **lists)
    y = g.node("permute", [y], (STEPS, BATCH, 2, HIDDEN), axes=[0, 2, 1, 3])
    y = g.node("reshape", [y], (STEPS, BATCH, 2 * HIDDEN))
    g.outputs = [g.node("eltwise", [y], (STEPS, BATCH, 2 * HIDDEN), alg="relu", alpha=0.0, beta=0.0)]
    assert probe(g)["reorders"] == 0


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "weights of another input": ({"shapes": {"weights": (1, 20, 4)}}, "weights of the source"),
    "weights of other gates": ({"shapes": {"recurrent": (1, 15, 5)}}, "weights of the states"),
    "a bias of one part": ({"shapes": {"bias": (1, 20)}}, "bias"),
    "a state of another batch": ({"roles": ("state",), "shapes": {"state": (1, 3, 5)}}, "state"),
    "an unknown activation": ({"activations": ["cube"] * 3}, "cube"),
    "too few activations": ({"activations": ["tanh"]}, "activations of each direction"),
    "too few numbers": ({"alphas": [1.0]}, "a number for each activation"),
    "no results": ({"results": ()}, "directions and results"),
    "results in another order": ({"results": ("all", "state")}, "in this order"),
    "directions in another order": ({"directions": ("reverse", "forward")}, "in this order"),
    "a negative clip": ({"clip": -1.0}, "clip"),
    "bytes without scales": ({"stored": "int8"}, "int8 with scales"),
    "scales of float32": ({"roles": ("scales",)}, "int8 with scales"),
    "scales of one product": ({"stored": "int8", "roles": ("scales",), "shapes": {"scales": (1, 20)}}, "scales"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_graphs_are_refused(case: str) -> None:
    attrs, message = BAD[case]
    with pytest.raises(GraphError, match=message):
        execute(*recurrent("lstm", **attrs))


@pytest.mark.parametrize("role", ["peepholes", "cell"])
def test_what_only_an_lstm_has(role: str) -> None:
    with pytest.raises(GraphError, match=role):
        execute(*recurrent("gru", roles=("bias", role)))
