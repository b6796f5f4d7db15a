"""Checks and helpers that the families share: dtypes, layouts, attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...vendor import Dim, GraphBuilder, InputError, Reject, Value, require

#: dtypes in which oneDNN computes what Relax means (integers would pass through float32 and lose bits)
FLOATS = ("float32", "float16", "bfloat16")
#: what quantised tensors are stored in
BYTES = ("int8", "uint8")
_PRODUCTS = ("auto", "bf16x2", "float32")
#: how products of float32 with constant weights are computed where the CPU has AMX (docs/numerics.md)
OPTIONS = {"products": "auto"}
_MOVABLE = (*FLOATS, "bool", *BYTES)


def algorithm(options: Mapping[str, Any]) -> dict[str, Any]:
    """The attribute ``alg`` of a product that says what the user's options say; none for the defaults."""
    wanted = str(options.get("products", OPTIONS["products"]))
    if wanted not in _PRODUCTS:
        raise InputError(f"the option products of dnnl is {wanted!r}; expected one of {', '.join(_PRODUCTS)}")
    return {} if wanted == "auto" else {"alg": wanted}


def require_float(op: str, *values: Value) -> None:
    """Refuse anything but floating point."""
    for value in values:
        if value.dtype not in FLOATS:
            raise Reject(f"{op} of dtype {value.dtype}; oneDNN computes in {', '.join(FLOATS)}")


def require_movable(op: str, *values: Value) -> None:
    """Refuse dtypes that oneDNN cannot copy without a change: it converts through float32."""
    for value in values:
        require(value.dtype in _MOVABLE, f"{op} of dtype {value.dtype}; oneDNN copies {', '.join(_MOVABLE)}")


def ints(values: Sequence[Any]) -> list[int]:
    """Attribute list as Python ints."""
    return [int(v) for v in values[:]]  # TVM's array is read faster as a slice


def broadcast_shape(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that two operands broadcast to, which are known to fit."""
    rank = max(len(a), len(b))
    a, b = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (a, b))
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def product(dims: Sequence[Dim]) -> Dim:
    """Product of dims, folded as far as they are numbers."""
    result: Dim = 1
    for dim in dims:
        if isinstance(result, int) and isinstance(dim, int):
            result = result * dim
        else:
            result = dim if result == 1 else result if dim == 1 else ("*", result, dim)
    return result


def canonical_layout(layout: str, first: str) -> str:
    """``layout`` with its axes in oneDNN's logical order: ``first``, then the spatial axes: ``NHWC`` → ``NCHW``."""
    require(layout.isalpha() and layout.isupper(), f"layout {layout}: only unblocked layouts are taken")
    return first + "".join(a for a in "DHW" if a in layout)


def to_layout(g: GraphBuilder, value: Value, layout: str, wanted: str) -> Value:
    """``value``, stored as ``layout``, seen as ``wanted``."""
    require(sorted(layout) == sorted(wanted), f"layout {layout} has not the axes of {wanted}")
    require(len(layout) == value.ndim, f"layout {layout} does not fit rank {value.ndim}")
    return g.permute(value, [layout.index(a) for a in wanted])


def from_layout(shape: Sequence[Dim], layout: str, wanted: str) -> list[Dim]:
    """A shape given in ``layout``, in the axis order of ``wanted``."""
    return [shape[layout.index(a)] for a in wanted]
