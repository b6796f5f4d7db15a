"""`Loop`, `Scan` and `SequenceMap`: few rounds of a known number are written out, and else a round is a function.

What is written out is fused with what is around it, and the number of each round is known in it. A function has the
states as parameters. A size of a state that no round changes is the one of outside; the others each call has its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from tvm import relax

from ....ir.native_loop import loop_call
from ..dim import Dim, Size, at_least, equal, expr_of
from ..emit import Emit, common
from ..scope import Boundary, Scope
from ..structure import nodes_in
from ..value import Node, Value, whole
from .branches import decided
from .sequences import joined, of_call

#: nodes that all rounds may have together where they are written out
_MOST_NODES = 512
_FOREVER = 2**63 - 1


class _Round(NamedTuple):
    """What a round gives: whether another one follows, the states, and the parts of the stacked results."""

    go: Value
    states: list[Value]
    parts: list[Value]


#: ``step(walk, boundary, number, go, states)``; the boundary is that of the function, if the round has its own
_Step = Callable[[Any, "Boundary | None", Value, Value, list[Value]], _Round]
#: sizes of a state, ``None`` for one that a round may change; ``None`` where it may change their number
_Sizes = list[Any] | None


# ---- operators --------------------------------------------------------------------------------------------


def loop(walk: Any, node: Node, scope: Scope) -> Sequence[Value]:
    body: onnx.GraphProto = node.attr("body")
    states = [node.needed(i) for i in range(2, len(node.inputs))]
    count = len(states)
    if len(body.input) != count + 2 or len(body.output) <= count:
        raise node.wrong(f"has {count} states, and a body of {len(body.input)} inputs and {len(body.output)} outputs")

    def step(walk: Any, boundary: Boundary | None, number: Value, go: Value, states: list[Value]) -> _Round:
        results = walk.inside(body, Scope(scope.opsets, scope, scope.label, boundary=boundary), [number, go, *states])
        return _Round(results[0], results[1 : 1 + count], results[1 + count :])

    trips = node.input(0) or Value(known=np.array(_FOREVER))
    go = node.input(1) or Value(known=np.array(True))
    found = _run(walk, node, len(nodes_in(body)), trips, go, states, step)
    return [*found.states, *found.parts]


def scan(walk: Any, node: Node, scope: Scope) -> Sequence[Value]:
    body: onnx.GraphProto = node.attr("body")
    count = node.attr("num_scan_inputs")
    given = [node.needed(i) for i in range(node.opset < 9, len(node.inputs))]
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    if not scanned or len(body.input) != len(given) or len(body.output) < len(states):
        raise node.wrong(f"has {len(given)} inputs, and a body of {len(body.input)} inputs")
    if any(x.dims is None for x in scanned):
        raise node.refused("goes through a tensor of unknown rank")

    def inside(boundary: Boundary | None, walk: Any, values: list[Value], around: Scope) -> list[Value]:
        return list(walk.inside(body, Scope(scope.opsets, around, scope.label, boundary=boundary), values))

    through = _Through(node, len(states), len(body.output) - len(states), inside)
    size = len(nodes_in(body))
    if node.opset >= 9:
        return through.results(walk, size, states, scanned, scope)
    return _in_batch(walk, node, size, through, states, scanned, scope)


def mapped(walk: Any, node: Node, scope: Scope) -> Sequence[Value]:
    body: onnx.GraphProto = node.attr("body")
    first, *others = (node.needed(i) for i in range(len(node.inputs)))
    if first.items is None or any(x.items is not None and len(x.items) != len(first.items) for x in others):
        raise node.wrong(f"has sequences of {', '.join(map(str, (first, *others)))}; expected as many items in each")
    rounds = [
        walk.subgraph(body, scope, [item, *(x if x.items is None else x.items[i] for x in others)])
        for i, item in enumerate(first.items)
    ]
    return [Value(items=[results[i] for results in rounds]) for i in range(len(body.output))]


# ---- Scan -------------------------------------------------------------------------------------------------


class _Through:
    """A body that goes through tensors along one axis of each."""

    def __init__(self, node: Node, states: int, parts: int, inside: Callable[..., list[Value]]) -> None:
        self.node, self.states, self.inside = node, states, inside
        named = "directions" if node.opset < 9 else "scan_input_directions"
        count = node.attr("num_scan_inputs")
        self.backward = node.attr(named, (0,) * count)
        self.axes = node.attr("scan_input_axes", (0,) * count)
        self.out_backward = node.attr("scan_output_directions", (0,) * parts)
        self.out_axes = node.attr("scan_output_axes", (0,) * parts)

    def results(
        self, walk: Any, size: int, states: list[Value], scanned: list[Value], scope: Scope, used: Value | None = None
    ) -> list[Value]:
        """The last states and the stacked results; only the first ``used`` elements count, if that is given."""
        e: Emit = walk.emit
        axes = [axis % len(x.sizes) for x, axis in zip(scanned, self.axes, strict=True)]
        length = common([x.sizes[axis] for x, axis in zip(scanned, axes, strict=True)])
        scanned = [
            e.agree(x, [length if i == axis else d for i, d in enumerate(x.sizes)])
            for x, axis in zip(scanned, axes, strict=True)
        ]

        def step(walk: Any, boundary: Boundary | None, number: Value, _go: Value, states: list[Value]) -> _Round:
            e: Emit = walk.emit
            captured = (lambda value: value) if boundary is None else boundary.captured
            count = captured(whole(length)) if used is None else captured(used)
            last = e.onnx("Sub", count, e.const(1, "int64"), opset=14)
            elements = [
                _element(e, captured(x), axis, e.onnx("Sub", last, number, opset=14) if back else number)
                for x, axis, back in zip(scanned, axes, self.backward, strict=True)
            ]
            found = self.inside(boundary, walk, [*states, *elements], scope)
            return _Round(e.const(True, "bool"), found[: self.states], found[self.states :])

        trips = whole(length) if used is None else used
        found = _run(walk, self.node, size, trips, e.const(True, "bool"), states, step)
        parts = zip(found.parts, self.out_axes, self.out_backward, strict=True)
        return [*found.states, *(_placed(e, part, axis, back) for part, axis, back in parts)]


def _element(e: Emit, x: Value, axis: int, number: Value) -> Value:
    if number.known is not None:
        return e.onnx("Gather", x, number, opset=13, axis=axis)
    return e.take(x, number, axis=axis, mode="clip")


def _placed(e: Emit, stacked: Value, axis: int, is_backward: int) -> Value:
    """What was stacked along the first axis, along another one, or the last part first."""
    if is_backward:
        stacked = e.flip(stacked, axis=0)
    axes = list(range(1, stacked.rank or 0))
    axes.insert(axis % (stacked.rank or 1), 0)
    return e.transpose(stacked, axes)


def _in_batch(
    walk: Any, node: Node, size: int, through: _Through, states: list[Value], scanned: list[Value], scope: Scope
) -> Sequence[Value]:
    """Before opset 9 all tensors have a batch in front, and a sequence of it may be shorter than the others."""
    e: Emit = walk.emit
    lengths = node.input(0)
    batch = common([(x.dims or (1,))[0] for x in (*states, *scanned)])
    count = len(states)

    def step(walk: Any, boundary: Boundary | None, number: Value, _go: Value, _states: list[Value]) -> _Round:
        captured = (lambda value: value) if boundary is None else boundary.captured
        at = [_element(walk.emit, captured(x), 0, number) for x in (*states, *scanned)]
        used = None if lengths is None else _element(walk.emit, captured(lengths), 0, number)
        around = Scope(scope.opsets, scope, scope.label, boundary=boundary)
        return _Round(go, [], through.results(walk, size, at[:count], at[count:], around, used))

    if lengths is not None:
        raise node.refused("has sequence_lens; its stacked results end with numbers that the standard does not say")
    go = e.const(True, "bool")
    trips = whole(batch)
    steps = next((x.sizes[1] for x in scanned if x.dims is not None and isinstance(x.sizes[1], int)), _FOREVER)
    return _run(walk, node, size * steps, trips, go, [], step).parts


# ---- rounds -----------------------------------------------------------------------------------------------


def _run(walk: Any, node: Node, size: int, trips: Value, go: Value, states: list[Value], step: _Step) -> _Round:
    """What remains after all rounds, at most ``trips``, each of so many nodes; parts are stacked along a first axis."""
    runs, count = decided(go), _length(trips)
    if isinstance(count, int) and runs and 0 < count * size <= _MOST_NODES:
        found = _written_out(walk, count, states, step)
        if found is not None:
            return found
    return _called(walk, node, trips, go, states, step)


def _written_out(walk: Any, count: int, states: list[Value], step: _Step) -> _Round | None:
    """All rounds; None where only a call knows whether there is a next one."""
    e: Emit = walk.emit
    stacks: list[list[Value]] = []
    for number in range(count):
        made = step(walk, None, Value(known=np.array(number)), Value(known=np.array(True)), states)
        goes_on = decided(made.go)
        if goes_on is None:
            return None
        states = made.states
        stacks.append([e.onnx("Unsqueeze", part, e.const([0], "int64"), opset=13) for part in made.parts])
        if not goes_on:
            break
    return _Round(e.const(True, "bool"), states, [e.onnx("Concat", *parts, opset=13, axis=0) for parts in zip(*stacks)])


class _Wider(Exception):
    """A round gives a state other sizes than it got, or a sequence other items."""


def _called(walk: Any, node: Node, trips: Value, go: Value, given: list[Value], step: _Step) -> _Round:
    """A call that runs a function of one round."""
    e: Emit = walk.emit
    body = _Body(walk, node, given, step)
    states, sizes = body.outside, body.sizes
    of_states = [_state_type(state, dims) for state, dims in zip(states, sizes, strict=True)]
    length = _length(trips) if body.always_goes_on and decided(go) else None
    parts = [[length, *dims] for dims, _ in body.parts]
    of_parts = [_type(dims, dtype) for dims, (_, dtype) in zip(parts, body.parts, strict=True)]
    call = loop_call(
        body.function,
        body.boundary.closed()[1],
        [e.tensor(state) for state in states],
        [(e.shape([0 if d is None else d for d in dims]), dtype) for dims, dtype in body.parts],
        e.tensor(e.reshape(e.cast(trips, "int64"), [])),
        e.tensor(e.reshape(go, [])),
        relax.TupleType([*of_states, *of_parts]),
        node.what,
    )
    whole = e.bb.emit(call)
    found = []
    for i, dims in enumerate([*sizes, *parts]):
        item = states[i].item if i < len(states) else None
        result = Value(e.bb.emit(relax.TupleGetItem(whole, i)), item=item)
        if dims is not None and None in dims:
            new = [Dim.symbol(f"loop_{i}_dim{axis}") if d is None else d for axis, d in enumerate(dims)]
            result = Value(e.bb.match_cast(result.expr, relax.TensorType(e.shape(new), result.dtype)))
        found.append(result)
    return _Round(go, found[: len(states)], found[len(states) :])


def _length(trips: Value) -> Size | None:
    """The number of rounds, if it is known and all of them run."""
    if trips.known is None:
        return None
    found = trips.known.reshape(-1)[0]
    count = found if isinstance(found, Dim) else max(int(found), 0)
    return count if at_least(count, 0) else None


def _type(dims: Sequence[Any], dtype: str) -> relax.TensorType:
    if None in dims:
        return relax.TensorType(None, dtype, ndim=len(dims))
    return relax.TensorType([expr_of(d) for d in dims], dtype)


def _state_type(state: Value, dims: _Sizes) -> Any:
    if state.item is not None:
        return relax.ObjectType()
    return relax.TensorType(None, state.dtype) if dims is None else _type(dims, state.dtype)


def _sizes_of(e: Emit, value: Value) -> _Sizes:
    if value.item is not None:
        return None
    if value.dims is not None:
        return list(value.dims)
    rank = int(e.tensor(value).ty.ndim)
    return None if rank < 0 else [None] * rank


class _Body:
    """The function of one round: of its number, of whether it was to run, of the states and of outer values."""

    def __init__(self, walk: Any, node: Node, given: list[Value], step: _Step) -> None:
        self.node, self.step = node, step
        # what the first round gets
        self.outside = [of_call(walk.emit, state) if state.is_sequence else state for state in given]
        self.empty = {i for i, state in enumerate(given) if state.items == []}  # until a round shows what comes in
        self.sizes: list[_Sizes] = [_sizes_of(walk.emit, state) for state in self.outside]
        self.boundary = Boundary()
        self.parts: list[tuple[list[Any], str]] = []  # sizes of outside, or `None`, and dtype of what it adds
        self.always_goes_on = False
        self.function: Any = None
        while self.function is None:
            with contextlib.suppress(_Wider):
                self.function = walk.function(f"{node.op.lower()}_body", self._read)

    def _read(self, walk: Any) -> tuple[list[relax.Var], Any]:
        self.boundary = walk.boundary = Boundary()
        number = Value(relax.Var("round", relax.TensorType((), "int64")))
        go = Value(relax.Var("goes_on", relax.TensorType((), "bool")))
        states = [self._parameter(i) for i in range(len(self.sizes))]
        made = self.step(walk, self.boundary, number, go, [self._before(*place) for place in enumerate(states)])
        after = [self._as_given(walk.emit, *place) for place in enumerate(made.states)]
        for i, (before, state) in enumerate(zip(states, after, strict=True)):
            self._compare(i, before, state, _sizes_of(walk.emit, state))
        self.always_goes_on = made.go is go or bool(decided(made.go))
        self.parts = [self._part(walk.emit, part) for part in made.parts]
        results = [walk.emit.reshape(made.go, []), *after, *made.parts]
        params = [value.expr for value in (number, go, *states)]
        return [*params, *self.boundary.closed()[0]], relax.Tuple([walk.emit.tensor(value) for value in results])

    def _as_given(self, e: Emit, place: int, after: Value) -> Value:
        """A state after a round, a sequence in the form that it had."""
        before = self.outside[place]
        if before.is_sequence != after.is_sequence:
            raise self.node.wrong(f"has {before} as its state {place}, which a round makes {after}")
        if before.item is None:
            return after
        is_filled = place in self.empty and after.items != []
        after = of_call(e, after, before.item)
        item = joined(e, before.item, after.item or before.item)
        if is_filled or (item != before.item and before.item[1] is not None):
            self.outside[place] = Value(before.expr, item=item)
            self.empty.discard(place)
            raise _Wider
        return after

    def _before(self, place: int, state: Value) -> Value:
        return Value(items=[], item=state.item) if place in self.empty else state

    def _parameter(self, i: int) -> Value:
        if self.outside[i].item is not None:
            return Value(relax.Var(f"state_{i}", relax.ObjectType()), item=self.outside[i].item)
        dims, dtype = self.sizes[i], self.outside[i].dtype
        if dims is None:
            return Value(relax.Var(f"state_{i}", relax.TensorType(None, dtype)))
        own = [
            self.boundary.fresh(f"state_{i}_dim{axis}") if size is None else self.boundary.inside(size)
            for axis, size in enumerate(dims)
        ]
        return Value(relax.Var(f"state_{i}", _type(own, dtype)))

    def _compare(self, i: int, before: Value, after: Value, dims: _Sizes) -> None:
        """Where a round changes a size, it is one that it may change."""
        if after.dtype != before.dtype:
            raise self.node.wrong(f"has a state {i} of {before.dtype}, which a round makes {after.dtype}")
        had = self.sizes[i]
        if had is None or dims is None:  # a call compares the number of dims
            return
        if len(had) != len(dims):
            self.sizes[i] = None
            raise _Wider
        own = before.sizes
        new = [
            size if size is None or (b is not None and equal(a, b)) else None
            for size, a, b in zip(had, own, dims, strict=True)
        ]
        if new != had:
            self.sizes[i] = new
            raise _Wider

    def _part(self, e: Emit, part: Value) -> tuple[list[Any], str]:
        dims = _sizes_of(e, part)
        if dims is None:
            raise self.node.refused("stacks parts of unknown rank")
        return [None if size is None else self.boundary.outside(size) for size in dims], part.dtype
