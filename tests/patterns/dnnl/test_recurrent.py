"""LSTM, GRU and RNN: one node each; what else they may have is in tests/unit/test_frontend_recurrent.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.harness import accept, data, refuse, table_tests
from tests.unit.recurrent_reference import GATES, layer
from tvm_byoc_dnnl.whole.table import operator

_USUAL = {"rnn": ["tanh"], "gru": ["sigmoid", "tanh"], "lstm": ["sigmoid", "tanh", "tanh"]}
_DIRECTIONS = {"forward": ["forward"], "reverse": ["reverse"], "bidirectional": ["forward", "reverse"]}


def _call(name: str, **attrs: Any) -> Callable[..., Any]:
    entry = operator("", name)
    assert entry is not None
    return lambda *inputs: entry.call(inputs, attrs, [True] * (3 if name == "LSTM" else 2), "rnn")


def _reference(cell: str, direction: str = "forward", clip: float = np.inf) -> Callable[..., Any]:
    directions = _DIRECTIONS[direction]
    curves = [(name, 0, 0) for name in _USUAL[cell.rpartition("_")[2]] * len(directions)]

    def function(source: Any, weights: Any, recurrent: Any, bias: Any = None) -> Any:
        results = layer(cell, source, weights, recurrent, directions=directions, curves=curves, bias=bias, clip=clip)
        return results if "lstm" in cell else results[:2]

    return function


def _operands(cell: str, steps: Any, batch: int, size: int, hidden: int, ways: int = 1, dtype: str = "float32") -> Any:
    gates = GATES[cell] * hidden
    shapes = [(steps, batch, size), (ways, gates, size), (ways, gates, hidden), (ways, 2 * gates)]
    return [data(*shape, dtype=dtype, low=-1, high=1) for shape in shapes]


ACCEPT = [
    *(
        accept(
            f"{name}-{sizes}",
            _call(name),
            *_operands(name.lower(), *sizes),
            reference=_reference(name.lower()),
        )
        for name in ("LSTM", "GRU", "RNN")
        for sizes in [(1, 1, 1, 1), (7, 3, 13, 5), (0, 2, 3, 4), (33, 1, 16, 16)]
    ),
    *(
        accept(
            f"{name}-bidirectional-clip",
            _call(name, direction="bidirectional", clip=0.5),
            *_operands(name.lower(), 5, 2, 3, 7, 2),
            reference=_reference(name.lower(), "bidirectional", 0.5),
        )
        for name in ("LSTM", "GRU", "RNN")
    ),
    accept(
        "GRU-linear-open",
        _call("GRU", linear_before_reset=1),
        *_operands("gru", "n", 2, 3, 7),
        symbols={"n": 6},
        reference=_reference("lbr_gru"),
    ),
    accept(
        "LSTM-input-forget",
        _call("LSTM", input_forget=1),
        *_operands("lstm", 5, 2, 3, 7),
        reference=_reference("coupled_lstm"),
    ),
]
REFUSE = [
    refuse(
        name, f"source of dtype {dtype}; expected float32", _call(name), *_operands(name.lower(), 4, 1, 3, 5, 1, dtype)
    )
    for name, dtype in (("LSTM", "float16"), ("GRU", "float64"), ("RNN", "float64"))
]
test_accepted, test_refused = table_tests(ACCEPT, REFUSE)
