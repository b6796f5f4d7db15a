"""`If`: a condition that is known picks a branch now; else both are functions, and one of them is called.

TVM plans memory for a whole function, and takes what one branch frees for the other. So a branch is one call. Where the
ranks of a result differ between the branches, what reads it is also a function for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import onnx
from tvm import relax
from tvm.script.ir_builder import tirx as T

from ....core.errors import InputError, UnsupportedError
from ....core.tvm_fast import is_a, items
from ....ir.native_loop import native_call
from ....ir.relax_utils import shape_dims
from ....ir.tvm_compat import dtype_of
from ..dim import Dim, Size, Undecided, equal, expr_of, size_of
from ..emit import Emit
from ..scope import Again, Boundary, PlainBlocks, Plan, Scope
from ..value import Item, Node, Value, Ways, whole
from .computed import asked, written
from .sequences import joined as items_joined

_NAMES = ("then_branch", "else_branch")
#: how often the rest of a graph is read for both branches of an ``If``; each one in another doubles the model
_MOST_RESTS = 32


class Part(NamedTuple):
    """A function, what it is called with, the items of its results that are sequences, and the types each may have.

    Of a result with one type the function itself says it, and the list is empty.
    """

    function: Any
    arguments: list[Any]
    items: list[Item | None]
    types: list[list[Any]]


def chosen(walk: Any, node: Node, scope: Scope) -> Sequence[Value | None]:
    branches: list[onnx.GraphProto] = [node.attr(name) for name in _NAMES]
    condition = node.needed(0)
    name = f"{node.name} {node.proto.output[0] if node.proto is not None else ''}"
    taken = decided(condition)
    if taken is None:
        taken = _taken(walk, node, name, condition)
    if taken is not None:
        return walk.subgraph(branches[not taken], scope)
    if walk.is_dataflow:
        raise PlainBlocks

    def way(number: int) -> Part:
        def read(inner: Any, boundary: Boundary) -> list[Value]:
            return list(inner.inside(branches[number], Scope(scope.opsets, scope, scope.label, boundary=boundary)))

        return walk.part(_NAMES[number], read)

    return _either(walk, node, name, condition, _possible(walk, node, name, way, InputError))


def each_way(walk: Any, ways: Ways, scope: Scope, plan: Plan) -> bool:
    """Compute the rest of a graph for each of the ranks that a value of it has: one function for either branch.

    Returns whether that was done; otherwise only one of them is possible, and the value has the types of that.
    """
    if walk.is_dataflow:
        raise PlainBlocks
    name, node, shared = ways.name, ways.node, walk.shared
    values = {key: v for key, v in scope.names.items() if v is not None and v.ways and v.ways.flag is ways.flag}
    results = [name for name in plan.results if name not in scope.names]

    def cast(e: Emit, own: Scope, number: int) -> None:
        inside = own.boundary.inside if own.boundary is not None else lambda size: size
        for key, value in values.items():
            assert value.ways is not None
            own.names[key] = _of_types(e, node, own.find(key), value.ways.types[number], inside)

    def way(number: int) -> Part:
        def read(inner: Any, boundary: Boundary) -> list[Value]:
            own = Scope(scope.opsets, scope, scope.label, scope.attributes, boundary)
            with inner.emit.converting(node):
                cast(inner.emit, own, number)
            return [value or Value() for value in inner.graph(own, plan, results)]

        shared.path.append((name, not number))
        try:
            return walk.part(f"with_{_NAMES[number]}", read)
        finally:
            shared.path.pop()

    with walk.emit.converting(node):
        taken = _taken(walk, node, name, ways.flag)
        if taken is not None:
            cast(walk.emit, scope, not taken)
            return False
        shared.rests += 1
        if shared.rests > _MOST_RESTS:
            raise node.refused(f"has results of several ranks, as others of the model; the limit is {_MOST_RESTS}")
        made = _possible(walk, node, name, way, (InputError, UnsupportedError))
        found = _either(walk, node, name, ways.flag, made)
        scope.names.update(zip(results, map(walk.emit.named, found), strict=True))
    return True


def ranks(value: Value) -> list[Any]:
    """The types that a value may have, without sizes, if its rank is unknown."""
    types = value.ways.types if value.ways is not None else ()
    found = {int(ty.ndim) for way in types for ty in way}
    return [relax.TensorType(None, value.stored, ndim=rank) for rank in sorted(found)]


def _of_types(e: Emit, node: Node, value: Any, types: list[Any], inside: Callable[[Size], Size]) -> Value:
    """A value of unknown rank as one of the types that it may have."""
    ty, *others = types
    if not others:
        dims = _dims(ty)
        sizes = [Dim.symbol(f"either_dim{i}") for i in range(ty.ndim)] if dims is None else [*map(inside, dims)]
        return Value(e.bb.match_cast(value.expr, relax.TensorType(e.shape(sizes), value.stored)), dtype=value.dtype)
    rank = Dim.symbol("rank")
    shape = e.bb.emit(relax.op.shape_to_tensor(e.bb.emit(relax.op.shape_of(value.expr))))
    # TVM gives it the size -1, which the copy does not have.
    shape = e.bb.emit(native_call("Copy", [shape], relax.TensorType(dtype="int64", ndim=1)))
    e.bb.match_cast(shape, relax.TensorType(e.shape([rank]), "int64"))
    flag = e.tensor(whole(rank))
    value = Value(value.expr, dtype=value.dtype)
    value.ways = Ways(e.equal(flag, e.const(ty.ndim, "int64")), f"{node.name} {ty.ndim}", node, ([ty], others))
    return value


def _taken(walk: Any, node: Node, name: str, condition: Value) -> bool | None:
    """Which branch is the only one possible, if that is known; other calls are refused."""
    taken: bool | None = walk.shared.taken.get((*walk.shared.path, name))
    if taken is not None:
        _demand(walk.emit, node, condition, taken)
    return taken


def _possible(walk: Any, node: Node, name: str, way: Callable[[int], Part], errors: Any) -> list[Part]:
    """Both of two ways. Where one is possible only, the function around is to be read again, for that."""
    made: list[Part] = []
    failed: list[tuple[bool, Exception]] = []
    for number in range(2):
        try:
            made.append(way(number))
        except errors as error:
            failed.append((bool(number), error))
    if not failed:
        return made
    if made:
        key = (*walk.shared.path, name)
        walk.shared.taken[key] = failed[0][0]
        raise Again
    (_, then), (_, other) = failed
    if str(then) == str(other):
        raise then
    raise type(then)(f"{node.what} can have neither branch: with the first, {then}; with the second, {other}")


def _either(walk: Any, node: Node, name: str, condition: Value, parts: list[Part]) -> list[Value]:
    """The results of one of two functions."""
    e: Emit = walk.emit
    flag = e.tensor(e.reshape(condition, []))
    ways = [_called(e, part.function, part.arguments) for part in parts]
    types = list(zip(*(_types(result) for _, result in ways), strict=True))
    joined = [_joined(node, i, *two) for i, two in enumerate(types)]
    wide = [inside for inside, _, _ in joined] if any(differ for _, _, differ in joined) else []
    whole = _chosen_by(e, flag, [_ended(e, way, wide) for way in ways], walk.boundary)
    count = len(joined)
    found = [whole] if count == 1 else [e.bb.emit(relax.TupleGetItem(whole, i)) for i in range(count)]
    kept = [one and other and items_joined(e, one, other) for one, other in zip(*(p.items for p in parts), strict=True)]
    values = [
        Value(e.bb.match_cast(v, behind) if differ and behind.ndim >= 0 else v, item=item)
        for v, (_, behind, differ), item in zip(found, joined, kept, strict=True)
    ]
    for value, two, more in zip(values, types, zip(*(part.types for part in parts), strict=True), strict=True):
        if value.item is not None:
            continue
        then, other_types = (several or [ty] for ty, several in zip(two, more, strict=True))
        known = {int(ty.ndim) for ty in (*then, *other_types)}
        if len(known) > 1 and -1 not in known:
            value.ways = Ways(condition, name, node, (then, other_types))
    return values


def decided(condition: Value) -> bool | None:
    """Whether the condition holds, if that is known now."""
    if condition.known is None:
        return None
    try:
        return bool(condition.known.reshape(-1)[0])
    except Undecided:
        return None


def _demand(e: Emit, node: Node, condition: Value, wanted: bool) -> None:
    """Let calls fail whose condition is another one."""
    message = (
        f"{node.what}: the rest of the model cannot be computed with the branch that these inputs choose; expected "
        "inputs for the other one"
    )

    def write(flag: Any, one: Any) -> None:
        with T.Assert(flag[0] == wanted, message, "ByocInputValueError"):
            one[0] = T.int64(1)

    flag = e.cast(e.reshape(condition, [1]), "int32")
    asked(e, written(e, "check_condition", write, [flag], [([1], "int64")])[0], [1])


def _chosen_by(e: Emit, flag: Any, ways: list[relax.SeqExpr], boundary: Boundary | None) -> Any:
    """The result of either way. Its type keeps symbols only while they are known as parameters."""
    symbols = [] if boundary is None else boundary.symbols
    if not symbols:
        return e.bb.emit(relax.If(flag, *ways))
    e.bb.begin_scope([relax.Var("sizes", relax.ShapeType(symbols))])
    try:
        return e.bb.emit(relax.If(flag, *ways))
    finally:
        e.bb.end_scope()


def _called(e: Emit, function: Any, arguments: list[Any]) -> tuple[relax.BindingBlock, Any]:
    """A branch: one call; and its result."""
    e.bb._begin_binding_block()
    result = e.bb.emit(relax.Call(function, arguments))
    return e.bb._end_block(), result


def _ended(e: Emit, way: tuple[relax.BindingBlock, Any], wide: list[Any]) -> relax.SeqExpr:
    """A branch whose result has the types that both have."""
    block, result = way
    if not wide:
        return relax.SeqExpr([block], result)
    e.bb._begin_binding_block()
    result = e.bb.match_cast(result, wide[0] if len(wide) == 1 else relax.TupleType(wide))
    return relax.SeqExpr([block, e.bb._end_block()], result)


def _types(result: Any) -> list[Any]:
    return items(result.ty.fields) if is_a(result.ty, relax.TupleType) else [result.ty]


def _dims(ty: Any) -> list[Size] | None:
    dims = shape_dims(ty)
    return None if dims is None else [size_of(d) for d in dims]


def _joined(node: Node, i: int, then: Any, other: Any) -> tuple[Any, Any, bool]:
    """The type that a result has in both branches, that which it has behind them, and whether these differ."""
    if not all(is_a(ty, relax.TensorType) for ty in (then, other)):
        if type(then) is not type(other):
            raise node.refused(f"has branches whose result {i} is a tensor in one, and a sequence in the other")
        return then, then, False
    dtype = dtype_of(then)
    if dtype != dtype_of(other):
        raise node.refused(f"has branches whose result {i} is of {dtype}, or of {dtype_of(other)}")
    rank = int(then.ndim)
    if rank < 0 or rank != int(other.ndim):
        unknown = relax.TensorType(None, dtype)
        return unknown, unknown, rank >= 0 or int(other.ndim) >= 0
    none: list[Any] = [None] * rank
    ways = list(zip(_dims(then) or none, _dims(other) or none, strict=True))
    same = [a is not None and b is not None and equal(a, b) for a, b in ways]
    if all(same):
        return then, then, False
    dims = [
        a if is_same else Dim.symbol(f"{node.op.lower()}_{i}_dim{axis}")
        for axis, ((a, _), is_same) in enumerate(zip(ways, same, strict=True))
    ]
    return relax.TensorType(None, dtype, ndim=rank), relax.TensorType([expr_of(d) for d in dims], dtype), True
