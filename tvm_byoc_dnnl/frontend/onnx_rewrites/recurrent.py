"""LSTM, GRU and RNN of a known length, unrolled: Relax has no operator for them, and no loop.

The part of every step that only depends on the input is one matmul over the whole sequence; a step then costs
one matmul with the recurrent weights and some arithmetic. States keep a leading axis of 1, (1, batch, hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes

_MAX_STEPS = 512  # an unrolled step is about 15 operations, which TVM compiles one by one
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


@dataclass
class _Direction:
    """One direction: its weights as (input, gates), (hidden, gates), and its biases, perhaps none."""

    b: Builder
    hidden: int
    kernel: str
    recurrent: str
    w_bias: str
    r_bias: str
    activations: list[str]

    def act(self, which: int, value: str) -> str:
        """The ``which``-th activation."""
        return self.b.add(self.activations[which], [value])

    def add(self, *terms: str) -> str:
        """The sum of the terms that there are."""
        given = [t for t in terms if t]
        total = given[0]
        for term in given[1:]:
            total = self.b.add("Add", [total, term])
        return total

    def part(self, value: str, gate: int, count: int = 1) -> str:
        """Some gates of a value that holds all of them along its last axis."""
        if not value:
            return ""
        start, stop = gate * self.hidden, (gate + count) * self.hidden
        return _slice(self.b, value, start, stop, -1)


def _slice(b: Builder, value: str, start: int, stop: int, axis: int) -> str:
    return b.add("Slice", [value, b.ints([start]), b.ints([stop]), b.ints([axis])])


def _unsqueeze(b: Builder, value: str, axis: int) -> str:
    if b.graph.opset >= 13:
        return b.add("Unsqueeze", [value, b.ints([axis])])
    return b.add("Unsqueeze", [value], axes=[axis])


# ---- one step: (direction, input part, h, c) -> (h, c) ----------------------------------------------

State = tuple[str, str]


def _lstm(d: _Direction, x: str, h: str, c: str) -> State:
    gates = d.add(x, d.b.add("MatMul", [h, d.recurrent]) if h else "", d.w_bias, d.r_bias)
    i, o, f, g = (d.part(gates, k) for k in range(4))
    new = d.b.add("Mul", [d.act(0, i), d.act(1, g)])
    kept = d.b.add("Mul", [d.act(0, f), c]) if c else ""
    cell = d.add(kept, new)
    return d.b.add("Mul", [d.act(0, o), d.act(2, cell)]), cell


def _gru(d: _Direction, x: str, h: str, _c: str) -> State:
    b = d.b
    linear_before_reset = bool(b.attrs.get("linear_before_reset", 0))
    recurrent = b.add("MatMul", [h, d.part(d.recurrent, 0, 2)]) if h else ""
    gates = d.act(0, d.add(d.part(x, 0, 2), recurrent, d.part(d.w_bias, 0, 2), d.part(d.r_bias, 0, 2)))
    z, r = d.part(gates, 0), d.part(gates, 1)
    weights, r_bias = d.part(d.recurrent, 2), d.part(d.r_bias, 2)
    if linear_before_reset:
        inner = [t for t in (b.add("MatMul", [h, weights]) if h else "", r_bias) if t]
        reset = b.add("Mul", [r, d.add(*inner)]) if inner else ""
    else:
        reset = d.add(b.add("MatMul", [b.add("Mul", [r, h]), weights]) if h else "", r_bias) if h or r_bias else ""
    new = d.act(1, d.add(d.part(x, 2), reset, d.part(d.w_bias, 2)))
    if not h:
        return b.add("Sub", [new, b.add("Mul", [z, new])]), ""
    return b.add("Add", [new, b.add("Mul", [z, b.add("Sub", [h, new])])]), ""


def _rnn(d: _Direction, x: str, h: str, _c: str) -> State:
    recurrent = d.b.add("MatMul", [h, d.recurrent]) if h else ""
    return d.act(0, d.add(x, recurrent, d.w_bias, d.r_bias)), ""


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


# ---- the whole --------------------------------------------------------------------------------------


def _recurrent(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    steps = _length(b)
    if steps is None:
        return None
    x, batch_first = node.input[0], bool(b.attrs.get("layout", 0))
    if batch_first:
        x = b.add("Transpose", [x], perm=[1, 0, 2])
    direction = b.attrs.get("direction", "forward")
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    results = [_way(b, x, i, steps, reverse) for i, reverse in enumerate(ways)]
    sequences = [_unsqueeze(b, b.add("Concat", all_h, axis=0) if steps > 1 else all_h[0], 1) for all_h, _ in results]
    _finish(b, 0, sequences, 1, [2, 0, 1, 3] if batch_first else None)
    for output in (1, 2):
        last = [state[output - 1] for _, state in results]
        if all(last):
            _finish(b, output, last, 0, [1, 0, 2] if batch_first else None)
    return b.nodes


def _length(b: Builder) -> int | None:
    """Steps of the sequence when the node can be unrolled."""
    kind, attrs = b.old.op_type, b.attrs
    dims = b.graph.dims(b.old.input[0])
    steps = None if dims is None else dims[1 if attrs.get("layout") else 0]
    lengths, peepholes = b.inputs[4], b.inputs[7]
    plain = not peepholes and not attrs.get("clip") and not attrs.get("input_forget")
    if not isinstance(steps, int) or not plain or "hidden_size" not in attrs:
        return None
    if lengths and not _all_full(b.graph, lengths, steps):
        return None
    names = attrs.get("activations", [])
    if any((n.decode() if isinstance(n, bytes) else n) not in ("Sigmoid", "Tanh", "Relu") for n in names):
        return None
    if steps > _MAX_STEPS:
        raise UnsupportedError(
            f"{kind} over {steps} steps would be unrolled; at most {_MAX_STEPS} are (node `{b.old.name}`)"
        )
    return steps


def _all_full(graph: Graph, lengths: str, steps: int) -> bool:
    value = graph.constant(lengths)
    return value is not None and bool((value == steps).all())


def _way(b: Builder, x: str, index: int, steps: int, reverse: bool) -> tuple[list[str], State]:
    """States of one direction in the order of the sequence, and the last."""
    d = _weights(b, index)
    projected = b.add("MatMul", [x, d.kernel])
    inputs = [projected] if steps == 1 else [_slice(b, projected, t, t + 1, 0) for t in range(steps)]
    h, c = (_slice(b, s, index, index + 1, 0) if s else "" for s in _initial(b))
    states = [""] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        h, c = _STEPS[b.old.op_type](d, inputs[t], h, c)
        states[t] = h
    return states, (h, c)


def _initial(b: Builder) -> Sequence[str]:
    states = b.inputs[5:7] if b.old.op_type == "LSTM" else [b.inputs[5], ""]
    swap = b.attrs.get("layout", 0)
    return [b.add("Transpose", [s], perm=[1, 0, 2]) if s and swap else s for s in states]


def _weights(b: Builder, index: int) -> _Direction:
    kind, hidden = b.old.op_type, int(b.attrs["hidden_size"])
    count = _GATES[kind] * hidden

    def transposed(name: str) -> str:
        one = b.add("Transpose", [_slice(b, name, index, index + 1, 0)], perm=[0, 2, 1])
        return b.add("Reshape", [one, b.ints([-1, count])])

    w_bias = r_bias = ""
    if b.inputs[3]:
        both = b.add("Reshape", [_slice(b, b.inputs[3], index, index + 1, 0), b.ints([2 * count])])
        w_bias, r_bias = (_slice(b, both, i * count, (i + 1) * count, 0) for i in range(2))
    given: list[Any] = b.attrs.get("activations", [])
    names = [n.decode() if isinstance(n, bytes) else n for n in given]
    each = len(_ACTIVATIONS[kind])
    activations = names[index * each : (index + 1) * each] or _ACTIVATIONS[kind]
    return _Direction(b, hidden, transposed(b.inputs[1]), transposed(b.inputs[2]), w_bias, r_bias, activations)


def _finish(b: Builder, output: int, parts: list[str], axis: int, perm: list[int] | None) -> None:
    """Make an output of the old node, if it has that."""
    if output >= len(b.old.output) or not b.old.output[output]:
        return
    whole = b.add("Concat", parts, axis=axis) if len(parts) > 1 else parts[0]
    name = b.old.output[output]
    if perm is None:
        b.add("Identity", [whole], name)
    else:
        b.add("Transpose", [whole], name, perm=perm)


RULES = {("", kind): _recurrent for kind in _GATES}
