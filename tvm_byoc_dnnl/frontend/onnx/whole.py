"""Calls of operators that stay whole until no compiler takes them."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ...whole import Operator
from .dim import Size, size_of
from .emit import Emit
from .value import Node, Value

__all__ = ["emit_whole"]

#: dtypes of which TVM has no constants
_SHORT = ("int2", "int4", "uint2", "uint4")
_NUMBERS = (int, float, str, bool)


def emit_whole(e: Emit, node: Node, whole: Operator) -> list[Value | None]:
    """The outputs of one call of a node's operator, ``None`` for those that nothing reads."""
    wanted = node.wanted if any(node.wanted) else (True,)
    for key, value in node.attrs.items():
        if not isinstance(value, _NUMBERS) and not (
            isinstance(value, tuple) and all(isinstance(v, _NUMBERS) for v in value)
        ):
            raise node.refused(f"has the attribute `{key}`, which is no number and no string")
    inputs = [None if v is None else _argument(e, v, i in whole.sizes) for i, v in enumerate(node.inputs)]
    result = e.bb.emit(whole.call(inputs, node.attrs, wanted, node.name))
    if sum(wanted) == 1:
        return [Value(result) if w else None for w in wanted]
    found = iter(range(sum(wanted)))
    return [Value(e.bb.emit(relax.TupleGetItem(result, next(found)))) if w else None for w in wanted]


def _argument(e: Emit, value: Value, is_size: bool) -> Any:
    known = value.known
    if known is not None and (is_size or not value.is_constant):
        return e.shape(known.reshape(-1).tolist())
    if is_size:
        return e.shape([_size(e, value)])
    if known is not None and value.dtype in _SHORT:
        return e.tensor(e.const(known.astype("int8")))
    return e.tensor(value)


def _size(e: Emit, value: Value) -> Size:
    """The open size that a tensor of one number is."""
    shape = e.bb.emit(relax.op.tensor_to_shape(e.tensor(e.reshape(e.cast(value, "int64"), [1]))))
    symbol = tirx.Var("size", "int64")
    e.bb.match_cast(shape, relax.ShapeType([symbol]))
    return size_of(symbol)
