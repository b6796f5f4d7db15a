"""A recurrent layer as a function of TVM: a loop over the steps of each sequence, for any number of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..ir.tvm_compat import analyzer

__all__ = ["Curve", "Loop", "loop", "shapes"]

#: TVM's kind of a function that is fused with nothing
_OPAQUE = 8


@dataclass(frozen=True)
class Curve:
    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Loop:
    """What is computed: see `Layer`."""

    cell: str
    gates: int
    directions: tuple[str, ...]
    curves: tuple[Curve, ...]
    clip: float


#: a number in the dtype that is computed in
Number = Callable[[float], Any]


def _limited(x: Any, low: Any, high: Any) -> Any:
    """Where it is in no order with a limit, it is NaN and stays."""
    return tirx.Select(x < low, low, tirx.Select(x > high, high, x))


def _size(x: Any) -> Any:
    return tirx.Select(x < 0, -x, x)


def _softplus(x: Any, _alpha: Any, _beta: Any, number: Number) -> Any:
    return tirx.Select(x < 0, number(0), x) + tirx.log(1 + tirx.exp(-_size(x)))


#: ``(x, alpha, beta, number)``
_CURVES: dict[str, Callable[[Any, Any, Any, Number], Any]] = {
    "sigmoid": lambda x, _alpha, _beta, _number: tirx.sigmoid(x),
    "tanh": lambda x, _alpha, _beta, _number: tirx.tanh(x),
    "relu": lambda x, _alpha, _beta, number: tirx.Select(x < 0, number(0), x),
    "affine": lambda x, alpha, beta, _number: alpha * x + beta,
    "leaky_relu": lambda x, alpha, _beta, _number: tirx.Select(x < 0, alpha * x, x),
    "thresholded_relu": lambda x, alpha, _beta, number: tirx.Select(x <= alpha, number(0), x),
    "scaled_tanh": lambda x, alpha, beta, _number: alpha * tirx.tanh(beta * x),
    "hard_sigmoid": lambda x, alpha, beta, number: _limited(alpha * x + beta, number(0), number(1)),
    "elu": lambda x, alpha, _beta, _number: tirx.Select(x < 0, alpha * (tirx.exp(x) - 1), x),
    "softsign": lambda x, _alpha, _beta, _number: x / (1 + _size(x)),
    "softplus": _softplus,
}


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


def loop(bb: relax.BlockBuilder, what: Loop, values: Mapping[str, Any]) -> Any:
    """A call that gives all states, the last states, and the last cells; the inputs have the names of `Layer`."""
    names = list(values)

    def kernel(*tensors: te.Tensor) -> list[te.Tensor]:
        given = dict(zip(names, tensors, strict=True))
        source, hidden = given["source"], given["recurrent"].shape[2]
        (steps, batch, _), count = source.shape, len(what.directions)
        wide = "float64" if source.dtype == "float64" else "float32"
        shapes = [[steps, count, batch, hidden], *[[count, batch, hidden]] * 2, [count, batch, _ROWS, hidden]]
        dtypes = [source.dtype] * 3 + [wide]
        outs = [tirx.decl_buffer(s, d, f"out{i}", layout=None) for i, (s, d) in enumerate(zip(shapes, dtypes))]
        return te.extern(
            shapes,
            list(tensors),
            lambda ins, outs: _body(what, dict(zip(names, ins, strict=True)), outs, wide),
            out_buffers=outs,
            name="recurrent",
        )

    attrs = {"op_pattern": _OPAQUE}
    return bb.emit(bb.call_te(kernel, *values.values(), primfunc_name_hint="recurrent_loop", primfunc_attrs=attrs))


#: rows of the numbers that a sequence works with: four gates, the state, the cell
_STATE, _CELL, _ROWS = 4, 5, 6


def _body(what: Loop, given: Mapping[str, Any], outs: Sequence[Any], wide: str) -> Any:
    """Each sequence of each direction, from its first step to its last."""
    data = {role: T.buffer_proxy(buffer) for role, buffer in given.items()}
    steps, batch = given["source"].shape[:2]
    parts = [*_checks(what, given)]
    if "lengths" in given:
        with IRBuilder() as ib, T.serial(0, batch) as b:
            length = data["lengths"][b]
            message = "a sequence length is below 0 or above the number of steps"
            with T.Assert(tirx.all(length >= 0, length <= steps), message, "IndexError"):
                T.evaluate(0)
        parts.append(ib.get())
    for d in range(len(what.directions)):
        with IRBuilder() as ib, T.parallel(0, batch) as b:
            _Sequence(what, given, data, outs, wide, d, b).write()
        parts.append(ib.get())
    return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]


def _checks(what: Loop, given: Mapping[str, Any]) -> Iterator[Any]:
    """Nothing is read beyond the end of an input, whose open sizes only a call knows."""
    _, batch, size = given["source"].shape
    expected = shapes(len(what.directions), what.gates, batch, size, given["recurrent"].shape[2])
    known = analyzer()
    for role in filter(given.__contains__, expected):
        pairs = zip(given[role].shape, expected[role], strict=True)
        open_pairs = [got == want for got, want in pairs if not known.can_prove_equal(got, want)]
        if open_pairs:
            message = f"the shape of the {role} of a recurrent layer does not fit its source"
            with IRBuilder() as ib, T.Assert(tirx.all(*open_pairs), message, "ByocInputValueError"):
                T.evaluate(0)
            yield ib.get()


class _Sequence:
    """The statements for one sequence of one direction."""

    def __init__(
        self, what: Loop, given: Mapping[str, Any], data: Any, outs: Sequence[Any], wide: str, d: int, b: Any
    ) -> None:
        self.what, self.data, self.d, self.b, self.wide = what, data, d, b, wide
        self.steps, _, self.input = given["source"].shape
        self.hidden = given["recurrent"].shape[2]
        self.every, self.last_state, self.last_cell, self.work = map(T.buffer_proxy, outs)
        self.dtype = outs[0].dtype
        each = len(what.curves) // len(what.directions)
        self.curves = what.curves[d * each : (d + 1) * each]
        self.is_lstm = what.cell.endswith("lstm")

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
        return _CURVES[curve.name](x, self.number(curve.alpha), self.number(curve.beta), self.number)

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
        if self.is_lstm:
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
