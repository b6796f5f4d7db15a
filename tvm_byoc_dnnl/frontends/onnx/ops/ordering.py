"""The largest and smallest elements, where a NaN counts as larger and as smaller than every number, as in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim, Size, at_least, max_of
from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .shapes import int_of, whole

__all__ = ["cut_checked", "keys"]

_UPPER = 1 << 63


def _axis(node: Node, dims: Sequence[Size], default: int) -> int:
    return int(node.attr("axis", default)) % max(len(dims), 1)


def cut_checked(e: Emit, x: Value, axis: int, end: Size) -> Value:
    """The first elements of an axis; that it has so many is checked in the call."""
    dims = list(x.sizes)
    if not at_least(dims[axis], end):
        x = e.agree(x, [max_of(d, end) if a == axis else d for a, d in enumerate(dims)])
    return e.cut(x, axis, 0, end)


# ---- ArgMax, ArgMin ---------------------------------------------------------------------------------------


@operator("ArgMax", "ArgMin")
def _arg(e: Emit, node: Node, x: Value, *, select_last_index: int = 0, keepdims: int = 1) -> Any:
    """The first NaN if there is one, else the first extreme; the last ones with ``select_last_index``."""
    dims = node.needed(0).sizes
    axis, keeps = _axis(node, dims, 0), bool(keepdims)
    is_last = bool(select_last_index)
    if not dims:
        return e.const(0, "int64")
    x = e.flip(x, axis=axis) if is_last else x
    if x.dtype in ("bfloat16", "float16", "bool"):
        x = e.cast(x, "float32" if "float" in x.dtype else "int32")
    pick = relax.op.argmax if node.op == "ArgMax" else relax.op.argmin
    found = e.call(pick, x, axis=axis, keepdims=keeps)
    if "float" in x.dtype:
        is_nan = e.cast(e.isnan(x), "int32")
        some = e.cast(e.max(is_nan, axis=axis, keepdims=keeps), "bool")
        found = e.where(some, e.argmax(is_nan, axis=axis, keepdims=keeps), found)
    return whole(dims[axis] - 1) - found if is_last else found


# ---- TopK -------------------------------------------------------------------------------------------------


def keys(e: Emit, x: Value) -> Value:
    """Numbers in the order of a tensor's, of a dtype that TVM sorts.

    Of reals they are float64 in which a NaN is ∞, and ∞ a number that no narrower type has.
    """
    if "float" in x.dtype:
        wide = e.cast(x, "float64")
        largest = e.const(np.finfo("float64").max)
        number = e.where(e.equal(wide, e.const(np.inf)), largest, wide)
        return e.where(e.isnan(wide), e.const(np.inf), number)
    if x.dtype == "uint64":  # the highest bit is a sign here
        return e.cast(x ^ e.const(np.uint64(_UPPER)), "int64")
    return e.cast(x, "int64")


@operator("TopK")
def _top(e: Emit, node: Node, x: Value) -> Any:
    dims = x.sizes
    axis, largest = _axis(node, dims, -1), bool(node.attr("largest", 1))
    node.attr("sorted", 1)  # results that may have any order are sorted
    k = node.attr("k") if node.opset < 10 else int_of(e, node, 1, "k")
    how = {"k": k if isinstance(k, int) else -1, "axis": axis, "ret_type": "indices", "largest": largest}
    places = e.topk(keys(e, x), dtype="int64", **how)
    if isinstance(k, Dim):
        places = cut_checked(e, places, axis, k)
    values = e.gather_elements(x, places, axis=axis) if node.wanted[0] else None
    return [values, places]
