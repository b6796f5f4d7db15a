"""Calls of operators that stay whole until no compiler takes them; entries of the table that are such operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from ...core.errors import InputError, UnsupportedError
from ...core.tvm_fast import is_a, items
from ...ir.relax_utils import constant_numpy
from ...ir.tvm_compat import is_constant
from ...whole.table import Operator, attributes_of, declare, inputs_of, wanted_of
from .dim import expr_of, size_of
from .emit import Emit, common
from .table import Entry, outputs
from .value import Node, Type, Value, numbers

_NUMBERS = (int, float, str, bool)


def declare_whole(entry: Entry, emit_for: Callable[[relax.BlockBuilder], Emit]) -> None:
    """Make the operator of an entry known; ``emit_for`` gives what emits into a builder."""

    def build(bb: relax.BlockBuilder, call: Any, name: str) -> list[Any]:
        assert entry.convert is not None
        e, node = emit_for(bb), node_of(call, entry.op, entry.domain, entry.since, name)
        with e.converting(node):
            results = outputs(entry.convert(e, node))
        if unread := sorted(node.attrs.keys() - node.read):
            raise node.refused(f"has the attribute `{unread[0]}`")
        return [None if value is None else e.tensor(value) for value in results]

    def infer(call: Any) -> list[Any]:
        assert entry.types is not None
        return [_type(t) for t in entry.types(node_of(call, entry.op, entry.domain, entry.since, ""))]

    declare(Operator(entry.domain, entry.op, build, infer if entry.types is not None else None, sizes=entry.sizes))


def node_of(call: Any, op: str, domain: str, since: int, name: str) -> Node:
    """The node that a call was made from."""
    inputs = [None if x is None else value_of(x) for x in inputs_of(call)]
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes_of(call).items()}
    return Node(op, domain, since, name or op, inputs, attrs, wanted_of(call))


def value_of(expr: Any) -> Value:
    if is_a(expr.ty, relax.ShapeType):
        dims = [int(d) if is_a(d, tirx.IntImm) else size_of(d) for d in items(expr.ty.values)]
        return Value(known=numbers(dims), dtype="int64")
    return Value(expr, constant_numpy(expr)) if is_constant(expr) else Value(expr)


def _type(t: Type) -> Any:
    if t.dims is None:
        return relax.TensorType(None, t.dtype)
    return relax.TensorType(relax.ShapeExpr([expr_of(d) for d in t.dims]), t.dtype)


def emit_whole(e: Emit, node: Node, whole: Operator) -> list[Value | None]:
    """The outputs of one call of a node's operator, ``None`` for those that nothing reads."""
    wanted = node.wanted if any(node.wanted) else (True,)
    for key, value in node.attrs.items():
        if not isinstance(value, _NUMBERS) and not (
            isinstance(value, tuple) and all(isinstance(v, _NUMBERS) for v in value)
        ):
            raise node.refused(f"has the attribute `{key}`, which is no number and no string")
    given = _sizes_agreed(e, node) if node.domain == "" and node.op in ("LSTM", "GRU", "RNN") else node.inputs
    inputs = [None if v is None else _argument(e, v, i in whole.sizes) for i, v in enumerate(given)]
    try:
        result = e.bb.emit(whole.call(inputs, node.attrs, wanted, node.name))
    except (InputError, UnsupportedError) as error:  # of its types
        text = str(error).replace(f"(node `{node.op}`)", f"(node `{node.name}`)")
        raise type(error)(text if node.name in text else f"{node.what}: {text}") from error
    if sum(wanted) == 1:
        return [Value(result) if w else None for w in wanted]
    found = iter(range(sum(wanted)))
    return [Value(e.bb.emit(relax.TupleGetItem(result, next(found)))) if w else None for w in wanted]


def _sizes_agreed(e: Emit, node: Node) -> list[Value | None]:
    """The inputs of a recurrent layer; the source, the lengths and the states are of one batch, and as wide as the
    weights.
    """
    axis = 0 if node.attr("layout", 0) else 1
    axes = {0: axis, 4: 0, 5: axis, 6: axis}
    there = {i: node.needed(i) for i in (0, 1, 2, *axes) if node.input(i) is not None}
    if any(v.rank != (1 if i == 4 else 3) for i, v in there.items()):
        return node.inputs  # what the operator refuses
    batch = common([there[i].sizes[axis] for i, axis in axes.items() if i in there])
    widths = {i: common([there[w].sizes[2], there[i].sizes[2]]) for i, w in ((0, 1), (5, 2), (6, 2)) if i in there}

    def agreed(i: int, v: Value) -> Value:
        sizes = [batch if a == axes[i] else d for a, d in enumerate(v.sizes)]
        return e.agree(v, [*sizes[:2], widths[i]] if i in widths else sizes)

    return [v if v is None or i not in axes else agreed(i, v) for i, v in enumerate(node.inputs)]


def _argument(e: Emit, value: Value, is_size: bool) -> Any:
    known = value.known
    if known is not None and (is_size or not value.is_constant):
        return e.shape(known.reshape(-1).tolist())
    if not is_size:
        return e.tensor(value)
    shape = e.bb.emit(relax.op.tensor_to_shape(e.tensor(e.reshape(e.cast(value, "int64"), [1]))))
    symbol = tirx.Var("size", "int64")
    e.bb.match_cast(shape, relax.ShapeType([symbol]))
    return relax.ShapeExpr([symbol])
