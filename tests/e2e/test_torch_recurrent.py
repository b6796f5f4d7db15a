"""LSTM, GRU and RNN of PyTorch, through torch.export and torch.compile: one operator for each layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import ops
from tvm_byoc_dnnl.frontends import to_relax

torch = pytest.importorskip("torch", reason="needs torch, which `make test-torch` installs")

pytestmark = pytest.mark.native

KINDS: dict[str, dict[str, Any]] = {"LSTM": {}, "GRU": {}, "RNN": {}, "RNN-relu": {"nonlinearity": "relu"}}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True, "batch_first": True},
    {"num_layers": 2, "bias": False},
    {"num_layers": 3, "bidirectional": True},
]


class Network(torch.nn.Module):
    """A recurrent network that gets its state, if there is one, and returns all that there is."""

    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__()
        self.layers = getattr(torch.nn, kind.partition("-")[0])(3, 5, **KINDS[kind], **options)

    def forward(self, x: Any, *state: Any) -> Any:
        y, last = self.layers(x, state if len(state) == 2 else state[0] if state else None)
        return (y, *last) if isinstance(last, tuple) else (y, last)


def network(kind: str, options: dict[str, Any], state: bool = False) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    model, rows = Network(kind, options).eval(), (7, 2)
    arguments = [torch.randn(*(rows[::-1] if options.get("batch_first") else rows), 3)]
    if state:
        ways = (2 if options.get("bidirectional") else 1) * options.get("num_layers", 1)
        arguments += [torch.randn(ways, 2, 5) for _ in range(2 if kind == "LSTM" else 1)]
    return model, arguments


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("state", [False, True])
def test_a_network(kind: str, options: dict[str, Any], state: bool) -> None:
    model, arguments = network(kind, options, state)
    program = torch.export.export(model, tuple(arguments))
    mod = to_relax(program)
    assert ops(mod)[f"onnx.{kind.partition('-')[0]}"] == options.get("num_layers", 1)
    got = byoc.Runner(byoc.compile(mod))(*[a.numpy() for a in arguments])
    with torch.no_grad():
        want = model(*arguments)
    for one, other in zip(got, want, strict=True):
        assert_right(np.asarray(one), other.numpy(), 1e-5, least=1.0)


def test_projections_are_written_out() -> None:
    model, arguments = network("LSTM", {"proj_size": 2})
    mod = to_relax(torch.export.export(model, tuple(arguments)))
    assert "onnx.LSTM" not in ops(mod)
    with torch.no_grad():
        want = model(*arguments)
    for one, other in zip(byoc.Runner(byoc.compile(mod))(*[a.numpy() for a in arguments]), want, strict=True):
        assert_right(np.asarray(one), other.numpy(), 1e-5, least=1.0)
