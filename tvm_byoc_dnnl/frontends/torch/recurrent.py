"""LSTM, GRU and RNN of PyTorch: each layer is the operator of ONNX that is kept whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ...ir.relax_utils import make_constant, shape_dims
from ...whole import operator

#: overload → ONNX's operator, the places of ONNX's gates among PyTorch's (i, f, g, o and r, z, n), its attributes
_LAYERS: dict[str, tuple[str, list[int], dict[str, Any]]] = {
    "lstm.input": ("LSTM", [0, 3, 1, 2], {}),
    "gru.input": ("GRU", [1, 0, 2], {"linear_before_reset": 1}),
    "rnn_tanh.input": ("RNN", [0], {}),
    "rnn_relu.input": ("RNN", [0], {"activations": ["Relu"]}),
}


def decompositions(program: Any) -> dict[Any, Callable[..., Any]]:
    """PyTorch's usual decompositions, without those that would write out every step.

    An LSTM with projections of its states (``proj_size``) is written out: ONNX has none.
    """
    from torch.export import default_decompositions

    written_out = {n.target for n in program.graph.nodes if _name(n.target) in _LAYERS and _projects(_arguments(n))}
    table = default_decompositions()
    for overload in list(table):
        if _name(overload) in _LAYERS and overload not in written_out:
            del table[overload]
    return dict(table)


def _name(target: Any) -> str:
    return str(target).removeprefix("aten.")


def _arguments(node: Any) -> dict[str, Any]:
    names = [argument.name for argument in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _dims(tensor: Any) -> list[Any]:
    dims = shape_dims(tensor.ty)
    assert dims is not None
    return list(dims)


def _ways(given: Mapping[str, Any]) -> int:
    return 2 if given["bidirectional"] else 1


def _projects(given: Mapping[str, Any]) -> bool:
    """Whether each direction of each layer has a matrix more than others."""
    return len(given["params"]) != given["num_layers"] * _ways(given) * (4 if given["has_biases"] else 2)


def _converter(overload: str) -> Callable[[Any, Any], Any]:
    op, gates, attributes = _LAYERS[overload]

    def convert(node: Any, importer: Any) -> Any:
        given = {**_arguments(node), **dict(zip(_arguments(node), importer.retrieve_args(node), strict=False))}
        states = list(given["hx"]) if op == "LSTM" else [given["hx"]]
        made = _Layers(importer.block_builder, op, gates, attributes, node.name)
        return made.build(given["input"], states, given["params"], given)

    return convert


class _Layers:
    def __init__(
        self, bb: relax.BlockBuilder, op: str, gates: list[int], attributes: dict[str, Any], name: str
    ) -> None:
        self.bb, self.gates, self.attributes, self.name = bb, gates, attributes, name
        entry = operator("", op)
        assert entry is not None
        self.entry = entry

    def build(self, x: Any, states: Sequence[Any], params: Sequence[Any], given: dict[str, Any]) -> Any:
        """The output, and the last states of all layers and directions."""
        count, ways = int(given["num_layers"]), _ways(given)
        each = len(params) // (count * ways)
        if given["batch_first"]:
            x = self.emit(relax.op.permute_dims(x, [1, 0, 2]))
        last: list[list[Any]] = [[] for _ in states]
        for layer in range(count):
            first = layer * ways
            own = [params[(first + way) * each : (first + way + 1) * each] for way in range(ways)]
            begin = [self.emit(relax.op.strided_slice(s, [0], [first], [first + ways])) for s in states]
            y, *ends = self.layer(x, begin, own)
            for found, end in zip(last, ends, strict=True):
                found.append(end)
            is_last = layer == count - 1 and given["batch_first"]
            steps, _, batch, hidden = _dims(y)
            rows = (batch, steps) if is_last else (steps, batch)
            y = self.emit(relax.op.permute_dims(y, [2, 0, 1, 3] if is_last else [0, 2, 1, 3]))
            x = self.emit(relax.op.reshape(y, relax.ShapeExpr([*rows, ways * hidden])))
        ends = [self.emit(relax.op.concat(found, axis=0)) if count > 1 else found[0] for found in last]
        return self.emit(relax.Tuple([x, *ends]))

    def layer(self, x: Any, states: Sequence[Any], params: Sequence[Sequence[Any]]) -> list[Any]:
        """One layer: the states of all steps, then what it ends with."""
        weights, recurrent, *biases = (
            self.joined([self.ordered(matrix) for matrix in of_ways]) for of_ways in zip(*params, strict=True)
        )
        bias = self.emit(relax.op.concat(biases, axis=1)) if biases else None
        attributes = {**self.attributes, "direction": "bidirectional" if len(params) == 2 else "forward"}
        if "activations" in attributes:
            attributes["activations"] = attributes["activations"] * len(params)
        inputs = [x, weights, recurrent, bias, None, *states]
        call = self.emit(self.entry.call(inputs, attributes, [True] * (1 + len(states)), self.name))
        return [self.emit(relax.TupleGetItem(call, i)) for i in range(1 + len(states))]

    def joined(self, parts: Sequence[Any]) -> Any:
        """The directions one behind the other, along a first axis of their own."""
        parts = [self.emit(relax.op.expand_dims(part, 0)) for part in parts]
        return self.emit(relax.op.concat(parts, axis=0)) if len(parts) > 1 else parts[0]

    def ordered(self, parameter: Any) -> Any:
        """A matrix or a bias with its gates in ONNX's order."""
        if len(self.gates) == 1:
            return parameter
        rows, *others = _dims(parameter)
        apart = self.emit(relax.op.reshape(parameter, [len(self.gates), rows // len(self.gates), *others]))
        moved = self.emit(relax.op.take(apart, make_constant(np.array(self.gates, "int64")), axis=0))
        return self.emit(relax.op.reshape(moved, [rows, *others]))

    def emit(self, expr: Any) -> Any:
        return self.bb.emit(expr)


#: in place of the importer's own, by the name of the overload
CONVERTERS = {overload: _converter(overload) for overload in _LAYERS}
