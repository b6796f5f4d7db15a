"""The cases of a registered pattern: its example, and graphs that look like it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ...ir.relax_utils import bindings_of, constants_in, op_calls
from ...ir.tvm_compat import constant_numpy, dtype_of, is_constant, make_constant, static_shape
from ...vendors.namespace import Pattern
from ..op_calls import floats, integers
from .case import Case, resized

#: what float32 becomes in variations
_DTYPES = ("float16", "float64")
#: what quantised operands are
_BYTES = ("int8", "uint8")
#: factor of large values: exponentials overflow, and sums of squares stay far from the largest float
_LARGE = 1e3


def pattern_cases(compiler: str, pattern: Pattern) -> list[Case]:
    """The example of a pattern and its variations; nothing where it was registered without one."""
    if pattern.example is None:
        return []
    main = pattern.example()["main"]
    arrays = tuple(_noise(p.ty) for p in main.params)
    base = Case(f"{compiler}.{pattern.name}", "its example", replayed(main), arrays, must_match=True)
    cases = [base, *(replace(c, must_match=False) for c in _variations(base, main))]
    return [base, *(case for case in cases[1:] if case.main is not None)]


def _variations(base: Case, main: relax.Function) -> Iterator[Case]:
    has_floats = any(a.dtype == "float32" for a in base.arrays)
    for dtype in _DTYPES if has_floats else ():
        arrays = tuple(a.astype(dtype) if a.dtype == "float32" else a for a in base.arrays)
        yield replace(base, what=f"dtype {dtype}", arrays=arrays)
    if base.arrays and base.arrays[0].ndim:
        yield replace(base, what="a symbolic leading dimension", symbolic=True)
    if has_floats:
        large = tuple(a * a.dtype.type(_LARGE) if a.dtype == "float32" else a for a in base.arrays)
        yield replace(base, what="large values", arrays=large)
    for number, constant in enumerate(_constants(main)):
        other = constant_numpy(constant) * np.float32(1.5) + np.float32(0.25)
        yield replace(base, what=f"another constant {number}", function=replayed(main, others={constant: other}))
    yield from _quantised(base, main)
    for number, array in enumerate(base.arrays):
        for axes in _broadcast_axes(array):
            shape = [1 if axis in axes else dim for axis, dim in enumerate(array.shape)]
            arrays = (*base.arrays[:number], resized(array, shape), *base.arrays[number + 1 :])
            yield replace(base, what=f"operand {number} of shape {tuple(shape)}", arrays=arrays)
    inner = [var for var, _ in bindings_of(main)][:-1]
    for number, var in enumerate(inner):
        if isinstance(var.ty, relax.TensorType) and not var.same_as(main.body.body):
            yield replace(base, what=f"its intermediate result {number} leaks out", function=replayed(main, var))


def _quantised(base: Case, main: relax.Function) -> Iterator[Case]:
    """Other integers, zero points, and scales for each channel, where the pattern converts from or to integers."""
    for number, array in enumerate(base.arrays):
        if array.dtype in _BYTES:
            other = array.view(_BYTES[0] if array.dtype == _BYTES[1] else _BYTES[1])
            arrays = (*base.arrays[:number], other, *base.arrays[number + 1 :])
            yield replace(base, what=f"operand {number} of {other.dtype}", arrays=arrays)
    conversions = [c for _, c in op_calls(main) if c.op.name in ("relax.quantize", "relax.dequantize")]
    for number, call in enumerate(conversions):
        data, scale, point = call.args
        shape = static_shape(data.ty)
        if is_constant(point):
            old = constant_numpy(point)
            new = np.where(old < np.iinfo(old.dtype).max, old + 1, old - 1).astype(old.dtype)
            yield replace(base, what=f"another zero point {number}", function=replayed(main, others={point: new}))
        if is_constant(scale) and shape and constant_numpy(scale).size == 1:
            channels = np.arange(shape[int(call.attrs.axis)])
            scales = constant_numpy(scale).reshape(1) * (2.0 ** (channels % 3 - 1)).astype("float32")
            yield replace(
                base, what=f"a scale for each channel {number}", function=replayed(main, others={scale: scales})
            )


def _constants(main: relax.Function) -> list[Any]:
    """The constants of float32 in a function, each once, in the order of their use."""
    return [c for c in dict.fromkeys(constants_in(main)) if dtype_of(c.ty) == "float32"]


def _broadcast_axes(array: np.ndarray) -> list[set[int]]:
    """Axes that are made 1: the first, the last, and all; if that is another shape."""
    wide = [axis for axis, dim in enumerate(array.shape) if dim > 1]
    chosen = [{wide[0]}, {wide[-1]}, set(wide)] if wide else []
    return [axes for i, axes in enumerate(chosen) if axes not in chosen[:i]]


def replayed(
    main: relax.Function, leak: Any = None, others: Mapping[Any, np.ndarray] | None = None
) -> Callable[..., Any]:
    """The bindings of a function as a function of other operands, whose dtype the constants of float32 take.

    Parameters
    ----------
    main : relax.Function
        The function; its blocks are straight-line code.
    leak : Var, optional
        An intermediate result to be returned beside the result.
    others : mapping, optional
        Constant → the value to be in its place.
    """
    changed = others or {}

    def function(builder: relax.BlockBuilder, *operands: Any) -> Any:
        values = dict(zip(main.params, operands, strict=True))
        dtypes = {dtype_of(p.ty): dtype_of(o.ty) for p, o in values.items()}
        for var, value in bindings_of(main):
            values[var] = builder.emit(_substituted(value, values, dtypes.get("float32", "float32"), changed))
        result = _substituted(main.body.body, values, "", changed)
        return result if leak is None else (result, values[leak])

    return function


def _substituted(expr: Any, values: Mapping[Any, Any], dtype: str, others: Mapping[Any, np.ndarray]) -> Any:
    """A value of a binding with other variables, and its constants of float32 in ``dtype``; its type is open."""
    if isinstance(expr, relax.Var):
        return values[expr]
    if is_constant(expr):
        value = next((array for old, array in others.items() if old.same_as(expr)), None)
        if dtype_of(expr.ty) != "float32":
            return expr if value is None else make_constant(value)
        return make_constant(constant_numpy(expr) if value is None else value, dtype)
    if isinstance(expr, relax.Call):
        args = [_substituted(a, values, dtype, others) for a in expr.args]
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_substituted(f, values, dtype, others) for f in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_substituted(expr.tuple_value, values, dtype, others), expr.index)
    return expr


def _noise(ty: Any) -> np.ndarray:
    shape, dtype = static_shape(ty), dtype_of(ty)
    if shape is None:
        raise ValueError(f"the example of a pattern has a parameter of type {ty}; expected tensors of static shapes")
    if dtype in _BYTES:
        return integers(*shape, low=np.iinfo(dtype).min, high=np.iinfo(dtype).max + 1).astype(dtype)
    return (floats(*shape, low=0.5, high=2) if dtype.startswith("float") else integers(*shape)).astype(dtype)
