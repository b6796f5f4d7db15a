"""Operators of which Relax has no part: one function of tensor expressions for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ....core.tvm_fast import is_a
from ....te.legalize import emitted, stage
from ..dim import Dim, Size, expr_of
from ..emit import Emit
from ..value import Value


def computed(e: Emit, name: str, function: Callable[..., Any], *operands: Any) -> Value:
    """The result of a function of tensor expressions, as `all_computed` takes it."""
    (made,) = all_computed(e, name, function, *operands)
    return made


def all_computed(e: Emit, name: str, function: Callable[..., Any], *operands: Any) -> list[Value]:
    """The results of a function of tensor expressions.

    ``function`` gets tensors for values, and expressions of TIR for sizes and lists of sizes. What it reads of open
    sizes must be among its operands.
    """
    given = [_given(e, operand) for operand in operands]
    return _results(e, e.bb.emit_te(function, *given, primfunc_name_hint=name))


def _results(e: Emit, made: Any) -> list[Value]:
    if is_a(made.ty, relax.TupleType):
        return [e.value(relax.TupleGetItem(made, i)) for i in range(len(made.ty.fields))]
    return [Value(made)]


def _given(e: Emit, operand: Any) -> Any:
    if isinstance(operand, Value):
        return e.tensor(operand)
    if isinstance(operand, (list, tuple)):
        return [_given(e, part) for part in operand]
    return expr_of(operand) if isinstance(operand, (int, Dim)) else operand


def asked(e: Emit, numbers: Value, sizes: Sequence[str | Size]) -> list[Size]:
    """The integers of a vector that only a call knows.

    ``sizes``: for each of them the name of a new open size, or the size that it must be, which the call checks.
    """
    shape = e.bb.emit(relax.op.tensor_to_shape(e.tensor(e.cast(numbers, "int64"))))
    found: list[Size] = [Dim.symbol(size) if isinstance(size, str) else size for size in sizes]
    e.bb.match_cast(shape, relax.ShapeType([expr_of(size) for size in found]))
    return found


def int64(value: int) -> Any:
    return tirx.const(value, "int64")


def wide_dtype(dtype: str) -> str:
    """The dtype that sums of products of a float dtype are taken in."""
    return "float64" if dtype == "float64" else "float32"


def lowest(dtype: str) -> Any:
    return int(np.iinfo(dtype).min) if "int" in dtype else -np.inf


def within(place: Any, size: Any) -> Any:
    """A position cut to those that a tensor has."""
    return tirx.max(tirx.min(place, size - 1), tirx.const(0, "int64"))


def written(
    e: Emit,
    name: str,
    write: Callable[..., None],
    operands: Sequence[Value],
    results: Sequence[tuple[Sequence[Size], str]],
    sizes: Sequence[Size] = (),
) -> list[Value]:
    """The results, of these sizes and dtypes, of a function whose body is statements; ``sizes`` are what else it reads.

    ``write(*inputs, *outputs, *sizes)`` is as `statements.stage` takes it.
    """

    def kernel(*given: Any) -> Any:
        *tensors, shapes, own = given
        dtypes = [dtype for _, dtype in results]
        return stage(name, lambda *buffers: write(*buffers, *own), tensors, list(zip(shapes, dtypes, strict=True)))

    exprs = [[expr_of(d) for d in dims] for dims in (*(dims for dims, _ in results), sizes)]
    return _results(e, emitted(e.bb, name, kernel, *map(e.tensor, operands), exprs[:-1], exprs[-1]))
