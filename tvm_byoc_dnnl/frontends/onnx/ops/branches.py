"""`If`: a condition that is known picks a branch now; else both are functions, and one of them is called.

TVM plans memory for a whole function, and takes what one branch frees for the other. So a branch is one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from tvm import relax
from tvm.script.ir_builder import tirx as T

from ....core.errors import InputError
from ....core.tvm_fast import is_a, items
from ....ir.relax_utils import shape_dims
from ....ir.tvm_compat import dtype_of
from ..dim import Dim, Size, Undecided, equal, expr_of, size_of
from ..emit import Emit
from ..scope import Boundary, PlainBlocks
from ..value import Node, Value
from .computed import asked, written

__all__ = ["chosen", "decided", "flat", "formed"]

_NAMES = ("then_branch", "else_branch")


def chosen(walk: Any, node: Node, scope: Any) -> Sequence[Value | None]:
    """The results of an ``If``."""
    branches: list[onnx.GraphProto] = [node.attr(name) for name in _NAMES]
    condition, e = node.needed(0), walk.emit
    taken = decided(condition)
    if taken is not None:
        return walk.subgraph(branches[not taken], scope)
    key = f"{node.name} {node.proto.output[0] if node.proto is not None else ''}"
    if key in walk.shared.supposed:
        taken = walk.shared.supposed[key]
        _demand(e, condition, taken, f"{node.what}: the rest of the model cannot be computed with the branch")
        return walk.subgraph(branches[not taken], scope)
    if walk.is_dataflow:
        raise PlainBlocks
    try:
        made = [walk.branch(graph, scope, name) for graph, name in zip(branches, _NAMES, strict=True)]
    except InputError:
        walk.shared.impossible.setdefault(key)
        raise
    flag = e.tensor(e.reshape(condition, []))
    ways = [_called(e, function, arguments) for function, arguments, _ in made]
    forms, other = (forms for _, _, forms in made)
    if forms != other:
        raise node.refused(f"has branches with sequences of {forms} and of {other} items (-1: a tensor)")
    types = [_types(result) for _, result in ways]
    if any(then.ndim != other.ndim for then, other in zip(*types, strict=True)):
        walk.shared.unsure.setdefault(key)
    joined = [_joined(node, i, *two) for i, two in enumerate(zip(*types, strict=True))]
    wide = [inside for inside, _, _ in joined] if any(differ for _, _, differ in joined) else []
    whole = _chosen_by(e, flag, [_ended(e, way, wide) for way in ways], walk.boundary)
    count = len(joined)
    found = [whole] if count == 1 else [e.bb.emit(relax.TupleGetItem(whole, i)) for i in range(count)]
    values = iter(
        [
            Value(e.bb.match_cast(v, behind) if differ and behind.ndim >= 0 else v)
            for v, (_, behind, differ) in zip(found, joined, strict=True)
        ]
    )
    return formed(values, forms)


def flat(results: Sequence[Value], forms: list[int]) -> list[Value]:
    """Tensors, and those in sequences one after the other; ``forms``: -1 for a tensor, or the length of a sequence."""
    forms[:] = [-1 if value.items is None else len(value.items) for value in results]
    return [item for value in results for item in ([value] if value.items is None else value.items)]


def formed(tensors: Iterator[Value], forms: Sequence[int]) -> list[Value]:
    """What `flat` made tensors of."""
    return [next(tensors) if form < 0 else Value(items=[next(tensors) for _ in range(form)]) for form in forms]


def decided(condition: Value) -> bool | None:
    """Whether the condition holds, if that is known now."""
    if condition.known is None:
        return None
    try:
        return bool(condition.known.reshape(-1)[0])
    except Undecided:
        return None


def _demand(e: Emit, condition: Value, wanted: bool, message: str) -> None:
    """Let calls fail whose condition is another one."""
    message = f"{message} that these inputs choose; expected inputs for the other one"

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
