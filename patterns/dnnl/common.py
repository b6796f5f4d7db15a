"""Checks and helpers that the families share: dtypes, layouts, attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm.relax.dpl import DFPattern, is_op

from ...vendor import (
    ACTIVATIONS,
    INT8,
    PRECISIONS,
    WEIGHTS,
    Dim,
    GraphBuilder,
    PortableGraph,
    Reject,
    Value,
    constant_numpy,
    dtype_of,
    is_constant,
    pattern_example,
    register_pattern,
    require,
    shape_dims,
)

#: dtypes in which oneDNN computes what Relax means (integers would pass through float32 and lose bits)
FLOATS = ("float32", "float16", "bfloat16")
#: kinds of nodes that sum products, whose primitives take scales and zero points
PRODUCTS = ("convolution", "deconvolution", "matmul")
#: what a binary node computes with numbers
ARITHMETIC = ("add", "sub", "mul", "div", "max", "min")
#: what quantised tensors are stored in
BYTES = ("int8", "uint8")
_MOVABLE = (*FLOATS, "bool", *BYTES)


#: option → its default, or the values that it may have, the default first
OPTIONS: dict[str, Any] = {
    # whether Winograd's algorithm is used where it is faster, and at most how many results a tile has per axis: 2 gives
    # smaller rounding errors
    "fast_convolution": True,
    "winograd_tile": (4, 2),
    # how products of float32 with constant weights are computed where the CPU has AMX (docs/numerics.md)
    "products": ("auto", "bf16x2", "float32"),
    # how sums of 8-bit products are computed on a CPU without VNNI
    "int8": INT8,
    # the dtype in which regions compute
    "precision": PRECISIONS,
    # whether NaN may be lost, for fewer primitives; and whether bounds behind products pass one on
    "finite_math": False,
    "keep_nan": False,
    "float32_ops": "",  # operators that stay in float32, separated by commas
    # the dtype in which large constant weights are stored, and the one in which their sources are multiplied, by
    # default the one that the model asks for; the engine reads these
    "weights": ("float32", *WEIGHTS),
    "activations": ("stored", *ACTIVATIONS),
}


def option(graph: PortableGraph, name: str) -> Any:
    """The value of an option of the namespace for a graph."""
    value = graph.options.get(name, OPTIONS[name])
    return value[0] if isinstance(value, tuple) else value


def algorithm(graph: PortableGraph) -> dict[str, Any]:
    """The attribute ``alg`` of a product that says what the user's options say; none for the defaults."""
    wanted = option(graph, "products")
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


def floats(g: GraphBuilder, call: Any, count: int | None = None) -> list[Value]:
    """The first tensors that a call reads, or all, in floating point."""
    values = [g.value(arg) for arg in call.args[:count]]
    require_float(call.op.name, *values)
    return values


def movable(g: GraphBuilder, call: Any) -> Value:
    """The first tensor that a call reads, of a dtype that oneDNN copies as it is."""
    src = g.value(call.args[0])
    require_movable(call.op.name, src)
    return src


def ints(values: Sequence[Any]) -> list[int]:
    """Attribute list as Python ints."""
    return [int(v) for v in values[:]]  # TVM's array is read faster as a slice


def broadcast_shape(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape that two operands broadcast to, which are known to fit."""
    rank = max(len(a), len(b))
    a, b = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (a, b))
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def size_of(dim: Dim, reason: str) -> int:
    """A dim that is a number; ``reason`` refuses an open one."""
    if not isinstance(dim, int):
        raise Reject(reason)
    return dim


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


Match = Mapping[str, Any]
#: the relative error of a constant: the precision of the short types, and of a float32 that exporters print
_TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}


def times(x: DFPattern, by: DFPattern, over: DFPattern) -> DFPattern:
    """A pattern for ``x · by`` or ``x / over``."""
    return is_op("relax.multiply")(x, by) | is_op("relax.divide")(x, over)


def number(match: Match, name: str, default: float | None = None) -> float:
    """The number that a matched constant holds in every element; ``default`` where that part was not matched.

    Raises `Reject` if it is no constant, or its elements differ.
    """
    expr = match.get(name)
    if expr is None and default is not None:
        return default
    value = getattr(expr, "value", expr)
    if isinstance(value, (int, float)):
        return float(value)
    if not is_constant(expr):
        raise Reject(f"{name} is not a constant")
    values = constant_numpy(expr).reshape(-1)
    if values.size != 1 and (not values.size or (values != values[0]).any()):
        raise Reject(f"{name} is not one number, but {values.size} different ones")
    return float(values[0])


def close(value: float, wanted: float, like: Any) -> bool:
    """Whether a constant of a formula on tensors like ``like`` has the expected value."""
    within = _TOLERANCE.get(dtype_of(like.ty), 2e-6)
    return math.isclose(value, wanted, rel_tol=within, abs_tol=1e-12)


def require_shape(match: Match) -> None:
    """Refuse a match whose result is broadcast by one of its constants."""
    before, after = (shape_dims(match[key].ty) for key in ("x", "root"))
    if before is None or after is None or [str(d) for d in before] != [str(d) for d in after]:
        raise Reject(f"a constant broadcasts {before} to {after}")


def pattern(
    name: str,
    root: DFPattern,
    parts: Mapping[str, DFPattern],
    lower: Callable[..., Any],
    example: Callable[[Any], Any],
    shape: Sequence[int] = (2, 6, 5, 7),
) -> None:
    """Register a pattern that is taken where its lowering is; ``example`` of a tensor of this shape matches it."""
    made = pattern_example(example, shape)
    register_pattern("dnnl", name, root, annotations=parts, lower=lower, example=made)
