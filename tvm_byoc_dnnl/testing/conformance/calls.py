"""The single calls of an operator: its example, its special attributes, and both in every dtype, rank and size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from tvm.relax import op as R

from ..op_calls import NEEDS_BUILDER, OPS, REFERENCE
from .case import Case, lifted, resized
from .special import special_calls

#: what the operands that are float32 in the example become
_DTYPES = ("float16", "float64", "int8", "uint8", "int32", "int64", "bool")
#: shapes of the only operand
_SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (1, 1), (13, 17), (2, 3, 5, 7), (1, 2, 3, 1, 2, 3), (0, 5)]
#: sizes of the leading axis
_SIZES = (1, 7, 0)

#: operators that TVM cannot compile → what to compare them with
_BY: dict[str, Any] = {**REFERENCE, "ewise_fma": lambda a, b, c: R.add(R.multiply(a, b), c)}


def example(op: str) -> Case | None:
    """The plainest call of an operator, ``None`` where the table has none."""
    short = op.removeprefix("relax.")
    by = lifted(_BY[short]) if short in _BY else None
    if short in OPS and OPS[short][0] not in NEEDS_BUILDER:
        function, arrays = OPS[short]
        return Case(op, "the example", lifted(function), arrays, by=by)
    for what, function, arrays in special_calls(short):
        return Case(op, what, lifted(function), arrays, by=by)
    return None


def call_cases(op: str) -> list[Case]:
    """Every case of an operator that Relax accepts."""
    base = example(op)
    if base is None:
        return []
    short = op.removeprefix("relax.")
    special = [replace(base, what=w, function=lifted(f), arrays=a) for w, f, a in special_calls(short)]
    cases = {c.what: c for c in (base, *special, *_variations(base))}
    return [c for c in cases.values() if c.main is not None and c.reference is not None]


def _variations(base: Case) -> Iterator[Case]:
    first = base.arrays[0]
    for dtype in _DTYPES:
        arrays = tuple(_as(a, dtype) for a in base.arrays)
        if any(a.dtype != b.dtype for a, b in zip(arrays, base.arrays)):
            yield replace(base, what=f"dtype {dtype}", arrays=arrays)
    if first.ndim:
        yield replace(base, what="a symbolic leading dimension", symbolic=True)
    if len(base.arrays) > 1:
        rest = tuple(range(1, len(base.arrays)))
        yield replace(base, what="constants but for the first operand", constants=rest)
        yield replace(base, what="a constant first operand", constants=(0,))
    if len({a.dtype.kind for a in base.arrays} - {"b"}) > 1:
        return  # an index of a larger axis would be out of the bounds of a smaller one
    if len(base.arrays) == 1:
        for shape in _SHAPES:
            yield replace(base, what=f"shape {shape}", arrays=(resized(first, shape),))
        return
    yield replace(base, what="one more axis", arrays=tuple(resized(a, (2, *a.shape)) for a in base.arrays))
    for size in _SIZES if first.ndim else ():
        leading = [a.ndim > 0 and a.shape[0] == first.shape[0] for a in base.arrays]
        arrays = tuple(
            resized(a, (size, *a.shape[1:])) if change else a for a, change in zip(base.arrays, leading, strict=True)
        )
        yield replace(base, what=f"a leading dimension of {size}", arrays=arrays)


def _as(array: np.ndarray, dtype: str) -> np.ndarray:
    """``array`` in another dtype where it is float32, without a zero to divide by."""
    if array.dtype != "float32":
        return array
    if dtype == "bool":
        return np.asarray(array > np.median(array))
    if dtype.startswith("float"):
        return array.astype(dtype)
    whole = np.trunc(array * 4)
    whole = np.where(whole == 0, 1, whole)
    return np.abs(whole).astype(dtype) if dtype == "uint8" else whole.astype(dtype)
