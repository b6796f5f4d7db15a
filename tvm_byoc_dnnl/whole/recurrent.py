"""LSTM, GRU and RNN of ONNX, kept whole: what a call means, and its definition as a loop over any number of steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from ..core.errors import InputError, UnsupportedError
from ..ir.relax_utils import shape_dims
from ..ir.tvm_compat import analyzer, dtype_of
from ..te.legalize import emitted, stage
from .table import Operator, attributes_of, declare, inputs_of

_GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
_USUAL = {"RNN": ["tanh"], "LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"]}
_DIRECTIONS = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}
#: the operators
RECURRENT = tuple(f"onnx.{name}" for name in _GATES)


@dataclass(frozen=True)
class Curve:
    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Layer:
    """A call of an LSTM, a GRU or an RNN.

    Attributes
    ----------
    cell : str
        ``"rnn"``, ``"lstm"``, ``"coupled_lstm"``, ``"gru"``, or ``"lbr_gru"``, in which the reset gate multiplies the
        product with the recurrent weights.
    directions : tuple of str
        ``"forward"``, ``"reverse"``.
    curves : tuple of Curve
        The activations f, g and h, as many as the cell has, for one direction after the other.
    clip : float
        The sums of the gates are limited to [-clip, clip]; infinity for no limit.
    batch_major : bool
        Whether the batch is the first axis of the source and of the states.
    inputs : dict of str to Expr
        ``"source"`` (steps, batch, input), ``"weights"`` (directions, gates·hidden, input) and ``"recurrent"``
        (directions, gates·hidden, hidden); where there are such, ``"bias"`` (directions, 2·gates·hidden), ``"lengths"``
        (batch,), ``"state"`` and ``"cell"`` (directions, batch, hidden), ``"peepholes"`` (directions, 3·hidden).
    """

    cell: str
    directions: tuple[str, ...]
    curves: tuple[Curve, ...]
    clip: float
    batch_major: bool
    inputs: Mapping[str, Any]

    @property
    def is_lstm(self) -> bool:
        return self.cell.endswith("lstm")

    @property
    def gates(self) -> int:
        return _GATES["LSTM" if self.is_lstm else "RNN" if self.cell == "rnn" else "GRU"]


_ROLES = ("source", "weights", "recurrent", "bias", "lengths", "state", "cell", "peepholes")


def layer_of(call: Any) -> Layer:
    """What a call of one of `RECURRENT` computes; an `InputError` for attributes that the standard does not have."""
    op = call.op.name.removeprefix("onnx.")
    attributes = attributes_of(call)
    direction = str(attributes["direction"]).lower()
    if direction not in _DIRECTIONS:
        raise InputError(f"{op} has the direction {direction!r}; expected one of {', '.join(_DIRECTIONS)}")
    directions = _DIRECTIONS[direction]
    cell = op.lower()
    if op == "GRU" and attributes["linear_before_reset"]:
        cell = "lbr_gru"
    if op == "LSTM" and attributes["input_forget"]:
        cell = "coupled_lstm"
    inputs = dict(zip(_ROLES, inputs_of(call), strict=False))
    clip = attributes.get("clip")
    return Layer(
        cell,
        directions,
        _curves(op, len(directions), attributes),
        math.inf if clip is None else float(clip),
        bool(attributes["layout"]),
        {role: value for role, value in inputs.items() if value is not None},
    )


def _curves(op: str, directions: int, attributes: Mapping[str, Any]) -> tuple[Curve, ...]:
    """The activations. Each takes the next alpha and the next beta, if it has such."""
    names = [str(name).lower() for name in attributes.get("activations") or ()] or _USUAL[op] * directions
    if len(names) != len(_USUAL[op]) * directions:
        raise InputError(
            f"{op} has {len(names)} activations; expected {len(_USUAL[op])} for each of {directions} direction"
            f"{'s' if directions > 1 else ''}"
        )
    given = [iter(attributes.get(f"activation_{which}") or ()) for which in ("alpha", "beta")]
    curves = []
    for name in names:
        if name not in _CURVES:
            raise InputError(f"{op} has the activation {name!r}; expected one of {', '.join(_CURVES)}")
        own, defaults, _ = _CURVES[name]
        numbers = [float(next(values, default)) for values, default in zip(given, defaults, strict=False)]
        curves.append(Curve(own, *numbers))
    return tuple(curves)


def _dims(layer: Layer) -> tuple[Any, Any, Any, str]:
    """Steps, batch, hidden size and dtype."""
    source, recurrent = (layer.inputs[role] for role in ("source", "recurrent"))
    dims, sizes = shape_dims(source.ty), shape_dims(recurrent.ty)
    if dims is None or sizes is None or len(dims) != 3 or len(sizes) != 3:
        kind = UnsupportedError if dims is None or sizes is None else InputError
        raise kind(f"has the source {source.ty} and the weights {recurrent.ty}; expected shapes of rank 3")
    steps, batch = dims[:2] if not layer.batch_major else (dims[1], dims[0])
    return steps, batch, sizes[2], dtype_of(source.ty)


def _check_sizes(layer: Layer, op: str, attributes: Mapping[str, Any]) -> None:
    """Compare the sizes that are numbers; those that are open are compared where they are known."""
    _, batch, hidden, _ = _dims(layer)
    size, count = (shape_dims(layer.inputs["source"].ty) or [None])[-1], len(layer.directions)
    expected = shapes(count, layer.gates, batch, size, hidden)
    if layer.batch_major:
        expected["state"] = expected["cell"] = [batch, count, hidden]
    for role in filter(layer.inputs.__contains__, expected):
        got = shape_dims(layer.inputs[role].ty) or []
        pairs = list(zip(got, expected[role], strict=False))
        fits = all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
        if not fits or len(got) != len(expected[role]):
            shown = [", ".join(map(str, dims)) for dims in (got, expected[role])]
            raise InputError(f"{op} has {role} of shape ({shown[0]}); expected ({shown[1]})")
    given = attributes.get("hidden_size")
    if given is not None and isinstance(hidden, int) and given != hidden:
        raise InputError(f"{op} has the hidden_size {given}; expected that of its weights, {hidden}")


def _types(call: Any) -> list[Any]:
    layer = layer_of(call)
    steps, batch, hidden, dtype = _dims(layer)
    _check_sizes(layer, call.op.name.removeprefix("onnx."), attributes_of(call))
    count = len(layer.directions)
    every, last = [steps, count, batch, hidden], [count, batch, hidden]
    if layer.batch_major:
        every, last = [batch, steps, count, hidden], [batch, count, hidden]
    results = [every, last] + ([last] if layer.is_lstm else [])
    return [relax.TensorType(shape, dtype) for shape in results]


def _build(bb: relax.BlockBuilder, call: Any, _node: str) -> Sequence[Any]:
    """The definition: one loop over all steps, in a function of its own."""
    layer = layer_of(call)
    values = dict(layer.inputs)
    if layer.batch_major:
        for role in filter(values.__contains__, ("source", "state", "cell")):
            values[role] = bb.emit(relax.op.permute_dims(values[role], [1, 0, 2]))
    done = loop(bb, layer, values)
    results = [bb.emit(relax.TupleGetItem(done, i)) for i in range(3 if layer.is_lstm else 2)]
    if layer.batch_major:
        axes = [[2, 0, 1, 3], [1, 0, 2], [1, 0, 2]]
        results = [bb.emit(relax.op.permute_dims(r, a)) for r, a in zip(results, axes, strict=False)]
    return results


#: a number in the dtype that is computed in
Number = Callable[[float], Any]


def _limited(x: Any, low: Any, high: Any) -> Any:
    """Where it is in no order with a limit, it is NaN and stays."""
    return tirx.Select(x < low, low, tirx.Select(x > high, high, x))


def _size(x: Any) -> Any:
    return tirx.Select(x < 0, -x, x)


def _softplus(x: Any, _alpha: Any, _beta: Any, number: Number) -> Any:
    return tirx.Select(x < 0, number(0), x) + tirx.log(1 + tirx.exp(-_size(x)))


#: name in ONNX, in lower case → name here, the defaults of alpha and beta that it has, ``(x, alpha, beta, number)``
_CURVES: dict[str, tuple[str, tuple[float, ...], Callable[[Any, Any, Any, Number], Any]]] = {
    "sigmoid": ("sigmoid", (), lambda x, _alpha, _beta, _number: tirx.sigmoid(x)),
    "tanh": ("tanh", (), lambda x, _alpha, _beta, _number: tirx.tanh(x)),
    "relu": ("relu", (), lambda x, _alpha, _beta, number: tirx.Select(x < 0, number(0), x)),
    "affine": ("affine", (1.0, 0.0), lambda x, alpha, beta, _number: alpha * x + beta),
    "leakyrelu": ("leaky_relu", (0.01,), lambda x, alpha, _beta, _number: tirx.Select(x < 0, alpha * x, x)),
    "thresholdedrelu": (
        *("thresholded_relu", (1.0,)),
        lambda x, alpha, _beta, number: tirx.Select(x <= alpha, number(0), x),
    ),
    "scaledtanh": ("scaled_tanh", (1.0, 1.0), lambda x, alpha, beta, _number: alpha * tirx.tanh(beta * x)),
    "hardsigmoid": (
        *("hard_sigmoid", (0.2, 0.5)),
        lambda x, alpha, beta, number: _limited(alpha * x + beta, number(0), number(1)),
    ),
    "elu": ("elu", (1.0,), lambda x, alpha, _beta, _number: tirx.Select(x < 0, alpha * (tirx.exp(x) - 1), x)),
    "softsign": ("softsign", (), lambda x, _alpha, _beta, _number: x / (1 + _size(x))),
    "softplus": ("softplus", (), _softplus),
}
_FORMULAS = {name: formula for name, _, formula in _CURVES.values()}


def shapes(directions: int, gates: int, batch: Any, size: Any, hidden: Any) -> dict[str, list[Any]]:
    """The shapes of what a layer has beside its source (steps, batch, size)."""
    state = [directions, batch, hidden]
    return {
        "weights": [directions, gates * hidden, size],
        "recurrent": [directions, gates * hidden, hidden],
        "bias": [directions, 2 * gates * hidden],
        "lengths": [batch],
        "state": state,
        "cell": state,
        "peepholes": [directions, 3 * hidden],
    }


def loop(bb: relax.BlockBuilder, what: Layer, values: Mapping[str, Any]) -> Any:
    """A call that gives all states, the last states, and the last cells; the inputs have the names of `Layer`."""
    names = list(values)

    def kernel(*tensors: te.Tensor) -> list[te.Tensor]:
        given = dict(zip(names, tensors, strict=True))
        source, hidden = given["source"], given["recurrent"].shape[2]
        (steps, batch, _), count = source.shape, len(what.directions)
        wide = "float64" if source.dtype == "float64" else "float32"
        shapes = [[steps, count, batch, hidden], *[[count, batch, hidden]] * 2, [count, batch, _ROWS, hidden]]

        def write(*buffers: Any) -> None:
            """Each sequence of each direction, from its first step to its last."""
            data, outs = dict(zip(names, buffers, strict=False)), buffers[len(names) :]
            _check_shapes(what, given)
            if "lengths" in given:
                with T.serial(0, batch) as b:
                    length = data["lengths"][b]
                    message = "a sequence length is below 0 or above the number of steps"
                    _check(tirx.all(length >= 0, length <= steps), message, "IndexError")
            for d in range(count):
                with T.parallel(0, batch) as b:
                    _Sequence(what, given, data, outs, wide, d, b).write()

        return stage("recurrent", write, tensors, list(zip(shapes, [source.dtype] * 3 + [wide], strict=True)))

    return emitted(bb, "recurrent_loop", kernel, *values.values())


#: rows of the numbers that a sequence works with: four gates, the state, the cell
_STATE, _CELL, _ROWS = 4, 5, 6


def _check(condition: Any, message: str, kind: str) -> None:
    with T.Assert(condition, message, kind):
        T.evaluate(0)


def _check_shapes(what: Layer, given: Mapping[str, Any]) -> None:
    """Nothing is read beyond the end of an input, whose open sizes only a call knows."""
    _, batch, size = given["source"].shape
    expected = shapes(len(what.directions), what.gates, batch, size, given["recurrent"].shape[2])
    known = analyzer()
    for role in filter(given.__contains__, expected):
        pairs = zip(given[role].shape, expected[role], strict=True)
        open_pairs = [got == want for got, want in pairs if not known.can_prove_equal(got, want)]
        if open_pairs:
            message = f"the shape of the {role} of a recurrent layer does not fit its source"
            _check(tirx.all(*open_pairs), message, "ByocInputValueError")


class _Sequence:
    """The statements for one sequence of one direction."""

    def __init__(
        self, what: Layer, given: Mapping[str, Any], data: Any, outs: Sequence[Any], wide: str, d: int, b: Any
    ) -> None:
        self.what, self.data, self.d, self.b, self.wide = what, data, d, b, wide
        self.steps, _, self.input = given["source"].shape
        self.hidden = given["recurrent"].shape[2]
        self.every, self.last_state, self.last_cell, self.work = outs
        self.dtype = given["source"].dtype
        each = len(what.curves) // len(what.directions)
        self.curves = what.curves[d * each : (d + 1) * each]

    def read(self, role: str, *place: Any) -> Any:
        """A number of an input, 0 where there is no such input."""
        return self.data[role][place].astype(self.wide) if role in self.data else self.number(0)

    def at(self, row: int, u: Any) -> Any:
        return self.work[self.d, self.b, row, u]

    def put(self, row: int, u: Any, value: Any) -> None:
        self.work[self.d, self.b, row, u] = value

    def act(self, which: int, x: Any) -> Any:
        """An activation; what a gate sums up is limited first, a cell is not."""
        curve = self.curves[which]
        if math.isfinite(self.what.clip) and which < 2:
            x = _limited(x, self.number(-self.what.clip), self.number(self.what.clip))
        return _FORMULAS[curve.name](x, self.number(curve.alpha), self.number(curve.beta), self.number)

    def number(self, value: float) -> Any:
        return tirx.const(value, self.wide)

    def write(self) -> None:
        d, b = self.d, self.b
        length = self.data["lengths"][b].astype("int64") if "lengths" in self.data else self.steps
        with T.serial(0, self.hidden) as u:
            self.put(_STATE, u, self.read("state", d, b, u))
            self.put(_CELL, u, self.read("cell", d, b, u))
        with T.serial(0, self.steps - length) as t, T.serial(0, self.hidden) as u:
            self.every[length + t, d, b, u] = tirx.const(0, self.dtype)
        with T.serial(0, length) as step:
            time = length - 1 - step if self.what.directions[d] == "reverse" else step
            self._step(time)
            with T.serial(0, self.hidden) as u:
                self.every[time, d, b, u] = self.at(_STATE, u).astype(self.dtype)
        with T.serial(0, self.hidden) as u:  # without a step there is no last state
            for result, row in ((self.last_state, _STATE), (self.last_cell, _CELL)):
                last = tirx.if_then_else(length > 0, self.at(row, u), self.number(0))
                result[d, b, u] = last.astype(self.dtype)

    def _gate(
        self, row: int, gate: int, time: Any, reset: bool = False, source: bool = True, state: bool = True
    ) -> None:
        """The sums of a gate, of all units: the products with the source, and with the state or the ``reset`` one."""
        d, gates = self.d, self.what.gates
        with T.serial(0, self.hidden) as u:
            line = gate * self.hidden + u
            self.put(row, u, self.read("bias", d, line) if source else self.number(0))
            if source:
                with T.serial(0, self.input) as k:
                    product = self.read("source", time, self.b, k) * self.read("weights", d, line, k)
                    self.put(row, u, self.at(row, u) + product)
            if state:
                self.put(row, u, self.at(row, u) + self.read("bias", d, gates * self.hidden + line))
                with T.serial(0, self.hidden) as k:
                    factor = self.at(_STATE, k)
                    if reset:
                        factor = factor * self.at(1, k)
                    self.put(row, u, self.at(row, u) + factor * self.read("recurrent", d, line, k))

    def _step(self, time: Any) -> None:
        if self.what.is_lstm:
            self._lstm(time)
        elif self.what.cell == "rnn":
            self._gate(0, 0, time)
            with T.serial(0, self.hidden) as u:
                self.put(_STATE, u, self.act(0, self.at(0, u)))
        else:
            self._gru(time)

    def _lstm(self, time: Any) -> None:
        """Gates i, o, f and c; peepholes i, o and f."""
        for gate in range(4):
            self._gate(gate, gate, time)
        with T.serial(0, self.hidden) as u:
            peephole = functools.partial(self._peephole, u)
            self.put(0, u, self.act(0, peephole(0)))
            self.put(2, u, 1 - self.at(0, u) if self.what.cell == "coupled_lstm" else self.act(0, peephole(2)))
            self.put(_CELL, u, self.at(2, u) * self.at(_CELL, u) + self.at(0, u) * self.act(1, self.at(3, u)))
            self.put(_STATE, u, self.act(0, peephole(1)) * self.act(2, self.at(_CELL, u)))

    def _peephole(self, u: Any, gate: int) -> Any:
        weight = self.read("peepholes", self.d, gate * self.hidden + u)
        return self.at(gate, u) + weight * self.at(_CELL, u) if "peepholes" in self.data else self.at(gate, u)

    def _gru(self, time: Any) -> None:
        """Gates z, r and h; the fourth row is the product of h's weights with the state, where it is apart."""
        for gate in range(2):
            self._gate(gate, gate, time)
            with T.serial(0, self.hidden) as u:
                self.put(gate, u, self.act(0, self.at(gate, u)))
        is_linear = self.what.cell == "lbr_gru"
        if is_linear:
            self._gate(2, 2, time, state=False)
            self._gate(3, 2, time, source=False)
        else:
            self._gate(2, 2, time, reset=True)
        with T.serial(0, self.hidden) as u:
            total = self.at(2, u) + self.at(1, u) * self.at(3, u) if is_linear else self.at(2, u)
            self.put(2, u, self.act(1, total))
        with T.serial(0, self.hidden) as u:
            self.put(_STATE, u, (1 - self.at(0, u)) * self.at(2, u) + self.at(0, u) * self.at(_STATE, u))


_COMMON = {
    **dict.fromkeys(("activations", "activation_alpha", "activation_beta", "clip", "hidden_size", "output_sequence")),
    "direction": "forward",
    "layout": 0,
}
for _name, _more in {"LSTM": {"input_forget": 0}, "GRU": {"linear_before_reset": 0}, "RNN": {}}.items():
    declare(Operator("", _name, build=_build, infer=_types, attributes={**_COMMON, **_more}))
