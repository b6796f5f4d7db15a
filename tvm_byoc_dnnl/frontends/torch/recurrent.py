"""LSTM, GRU and RNN of PyTorch: each layer is the operator of ONNX that is kept whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...whole import operator
from ..onnx.emit import Emit
from ..onnx.value import Node, Value
from ..onnx.whole import emit_whole
from . import arguments, by_values

#: overload → ONNX's operator, the places of ONNX's gates among PyTorch's (i, f, g, o and r, z, n), its attributes
_LAYERS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "lstm.input": ("LSTM", [0, 3, 1, 2], {}),
    "gru.input": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
    "rnn_tanh.input": ("RNN", [0], {}),
    "rnn_relu.input": ("RNN", [0], {"activations": ("Relu",)}),
}


def decompositions(program: Any) -> dict[Any, Callable[..., Any]]:
    """PyTorch's usual decompositions, without those that would write out every step.

    An LSTM with projections of its states (``proj_size``) is written out: ONNX has none.
    """
    from torch.export import default_decompositions

    written_out = {n.target for n in program.graph.nodes if _name(n.target) in _LAYERS and _projects(arguments(n))}
    table = default_decompositions()
    for overload in list(table):
        if _name(overload) in _LAYERS and overload not in written_out:
            del table[overload]
    return dict(table)


def _name(target: Any) -> str:
    return str(target).removeprefix("aten.")


def _projects(given: Mapping[str, Any]) -> bool:
    """Whether each direction of each layer has a matrix more than others."""
    ways, each = 2 if given["bidirectional"] else 1, 4 if given["has_biases"] else 2
    return len(given["params"]) != given["num_layers"] * ways * each


def _layers(
    e: Emit, node: Any, x: Value, hx: Any, params: list[Value], _biases: bool, count: int, _dropout: float,
    _trains: bool, both_ways: bool, batch_first: bool,
) -> list[Value]:  # fmt: skip
    """The output, and the last states of all layers and directions."""
    kind = op, *_ = _LAYERS[_name(node.target)]
    states, ways = hx if op == "LSTM" else [hx], 2 if both_ways else 1
    each = len(params) // (count * ways)
    if batch_first:
        x = e.transpose(x, [1, 0, 2])
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(count):
        first = layer * ways
        own = [params[(first + way) * each : (first + way + 1) * each] for way in range(ways)]
        begin = [e.strided_slice(s, axes=[0], begin=[first], end=[first + ways]) for s in states]
        y, *ends = _layer(e, node.name, kind, x, begin, own)
        for found, end in zip(last, ends, strict=True):
            found.append(end)
        is_last = layer == count - 1 and batch_first
        steps, _, batch, hidden = y.sizes
        y = e.transpose(y, [2, 0, 1, 3] if is_last else [0, 2, 1, 3])
        x = e.reshape(y, [*((batch, steps) if is_last else (steps, batch)), ways * hidden])
    return [x, *(e.concat(found, 0) for found in last)]


def _layer(
    e: Emit, name: str, kind: Any, x: Value, states: Sequence[Value], params: Sequence[Sequence[Value]]
) -> list[Any]:
    """One layer: the states of all steps, then what it ends with."""
    op, gates, attributes = kind
    # of each matrix or bias, the directions one behind the other, along a first axis of their own
    weights, recurrent, *biases = (
        e.concat([e.expand_dims(_ordered(e, part, gates), axis=0) for part in parts], 0)
        for parts in zip(*params, strict=True)
    )
    bias = e.concat(biases, 1) if biases else None
    attributes = {**attributes, "direction": "bidirectional" if len(params) == 2 else "forward"}
    if "activations" in attributes:
        attributes["activations"] = attributes["activations"] * len(params)
    inputs = [x, weights, recurrent, bias, None, *states]
    entry = operator("", op)
    assert entry is not None
    return emit_whole(e, Node(op, "", 14, name, inputs, attributes, [True] * (1 + len(states))), entry)


def _ordered(e: Emit, parameter: Value, gates: list[int]) -> Value:
    """A matrix or a bias with its gates in ONNX's order."""
    if len(gates) == 1:
        return parameter
    rows, *others = parameter.sizes
    apart = e.reshape(parameter, [len(gates), rows // len(gates), *others])
    return e.reshape(e.take(apart, e.const(gates, "int64"), axis=0), parameter.sizes)


#: in place of the importer's own, by the name of the overload
CONVERTERS = {overload: by_values(_layers) for overload in _LAYERS}
