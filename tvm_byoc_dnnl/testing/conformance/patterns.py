"""Graphs of several calls: the example of a registered pattern and graphs that look like it, and structures around one
call that a backend accepts, which partitioning and a backend's own code must get right.

Operators between conversions from and to 8-bit integers, as quantised models have them.

    x (uint8) ─ dequantize ┐
    w (int8)  ─ dequantize ┴ conv2d ─ quantize ─ y (uint8)

All scales are powers of two, so every sum is exact in float32 and in integers, and a right result is equal to TVM's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...ir.relax_utils import (
    bindings_of,
    constant_numpy,
    constants_in,
    make_constant,
    op_calls,
    shape_dims,
    static_shape,
)
from ...ir.tvm_compat import dtype_of, is_constant
from ...partitioning.trial import ask
from ...vendors import Namespace, Pattern
from ...vendors.quantised_groups import CONVERSIONS
from ..op_calls import floats, integers
from .judge import Case, resized

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
    conversions = [c for _, c in op_calls(main) if c.op.name in CONVERSIONS]
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
    """The bindings of straight-line code as a function of other operands, whose dtype the constants of float32 take.

    ``leak`` is an intermediate result to be returned beside the result; ``others`` has new values of constants.
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


#: calls that keep shape and dtype, of which the backend leaves some with TVM
_OTHERS: list[Callable[[Any], Any]] = [R.sin, R.erf, R.tan, lambda x: R.flip(x, 0), lambda x: R.cumsum(x, 0), R.sort]


def structural_cases(ns: Namespace, base: Case) -> list[Case]:
    """The structures that fit ``base``, an accepted call."""
    plain = replace(base, by=None, must_match=False)
    cases = [replace(plain, what=what, function=function) for what, function in _structures(base)]
    if _keeps_type(base):
        cases += [replace(plain, what=what, function=f, is_chain=True) for what, f in _chains(ns, base)]
    return [case for case in cases if case.main is not None]


def _structures(base: Case) -> Iterator[tuple[str, Any]]:
    emitted = _emitting(base.function)

    def alias(builder: Any, *operands: Any) -> Any:
        result = emitted(builder, *operands)
        return result, result

    def beside_parameter(builder: Any, *operands: Any) -> Any:
        return operands[0], emitted(builder, *operands)

    def used_twice(builder: Any, *operands: Any) -> Any:
        result = emitted(builder, *operands)
        return emitted(builder, *operands), result, result

    def unused(builder: Any, *operands: Any) -> Any:
        emitted(builder, *operands)
        return emitted(builder, *operands)

    def same_operand(builder: Any, first: Any, *rest: Any) -> Any:
        alike = [first if _looks(r) == _looks(first) else r for r in rest]
        return emitted(builder, first, *alike)

    yield "its result returned twice", alias
    yield "a parameter returned beside it", beside_parameter
    yield "the same call twice, results used twice", used_twice
    yield "an unused copy of it", unused
    if len(base.arrays) > 1:
        yield "one operand in every place where it fits", same_operand


def _emitting(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda builder, *operands: builder.emit(call(builder, *operands))


def _chains(ns: Namespace, base: Case) -> Iterator[tuple[str, Any]]:
    """Structures of several calls, each on the result of another."""
    call = _emitting(base.function)

    def chain(builder: Any, first: Any, *rest: Any) -> Any:
        return call(builder, call(builder, call(builder, first, *rest), *rest), *rest)

    def leak(builder: Any, first: Any, *rest: Any) -> Any:
        inner = call(builder, first, *rest)
        return call(builder, inner, *rest), inner

    def fork(builder: Any, first: Any, *rest: Any) -> Any:
        inner = call(builder, first, *rest)
        left, right = call(builder, inner, *rest), call(builder, inner, *rest)
        return left, call(builder, right, *rest), right

    yield "a chain of three", chain
    yield "a chain whose middle leaks out", leak
    yield "a fork: several results", fork
    other = _left_with_tvm(ns, base)
    if other is None:
        return

    def around(builder: Any, first: Any, *rest: Any) -> Any:
        inner = call(builder, first, *rest)
        outside = builder.emit(other(inner))
        return call(builder, outside, *rest), call(builder, inner, *rest)

    def between(builder: Any, first: Any, *rest: Any) -> Any:
        inner = call(builder, first, *rest)
        return call(builder, builder.emit(R.add(builder.emit(other(inner)), inner)), *rest)

    yield "beside a call that stays with TVM", around
    yield "a region that must not close over a call of TVM", between


def _looks(expr: Any) -> str:
    return str(expr.ty)


def _keeps_type(base: Case) -> bool:
    assert base.main is not None
    result, first = base.main.ret_ty, base.main.params[0].ty if base.main.params else None
    if not isinstance(result, relax.TensorType) or not isinstance(first, relax.TensorType):
        return False
    return dtype_of(result) == dtype_of(first) and shape_dims(result) == shape_dims(first)


def _left_with_tvm(ns: Namespace, base: Case) -> Callable[[Any], Any] | None:
    """A call on a tensor like the first operand that ``ns`` rejects."""
    assert base.main is not None
    x = relax.Var("x", base.main.params[0].ty)
    for make in _OTHERS:
        try:
            call = relax.BlockBuilder().normalize(make(x))
        except Exception:  # Relax has none for this dtype or rank
            continue
        if ask(ns, call) is not None:
            return make
    return None


@dataclass(frozen=True)
class _Form:
    """Dtypes, zero points and scales of the operands and of the result."""

    what: str
    source: str = "uint8"
    weights: str = "int8"
    point: int = 3
    weights_point: int = 0
    per_channel: bool = False
    points_per_channel: bool = False
    largest: bool = False
    leaks: bool = False
    ends: bool = True


_FORMS = (
    _Form("with one scale"),
    _Form("with a scale for each channel", per_channel=True),
    _Form("with a zero point for each channel", per_channel=True, points_per_channel=True),
    _Form("of signed integers", source="int8", point=-5),
    _Form("of weights without a sign", weights="uint8", weights_point=128),
    _Form("of the largest integers", point=0, largest=True),
    _Form("of symmetric integers", source="int8", point=0),
    _Form("whose real result is read elsewhere", leaks=True),
    _Form("whose result stays real", ends=False),
)


@dataclass(frozen=True)
class _Link:
    """A function of real operands; the second is a weight whose channels lie along ``axis``, or another source."""

    call: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    axis: int | None = None
    scale: float = 0.5  # of the result


_IMAGE = (2, 8, 6, 5)
_LINKS: dict[str, tuple[_Link, ...]] = {
    "nn.conv2d": (
        _Link(lambda x, w: R.nn.conv2d(x, w, padding=1), (_IMAGE, (16, 8, 3, 3)), 0, 64.0),
        _Link(lambda x, w: R.nn.conv2d(x, w, padding=1, groups=2), (_IMAGE, (6, 4, 3, 3)), 0, 64.0),
        _Link(lambda x, w: R.nn.conv2d(x, w, padding=1, groups=8), (_IMAGE, (8, 1, 3, 3)), 0, 16.0),
    ),
    "nn.conv2d_transpose": (
        _Link(lambda x, w: R.nn.conv2d_transpose(x, w, strides=2), (_IMAGE, (8, 4, 2, 2)), 1, 32.0),
    ),
    "matmul": (_Link(R.matmul, ((3, 20), (20, 12)), 1, 64.0), _Link(R.matmul, ((2, 3, 20), (2, 20, 12)), None, 64.0)),
    "add": (_Link(R.add, (_IMAGE, _IMAGE)),),
    "multiply": (_Link(R.multiply, (_IMAGE, _IMAGE), None, 32.0),),
    "concat": (_Link(lambda x, y: R.concat([x, y], axis=1), (_IMAGE, _IMAGE)),),
    "nn.relu": (_Link(R.nn.relu, (_IMAGE,)),),
    "nn.max_pool2d": (_Link(lambda x: R.nn.max_pool2d(x, (3, 3), padding=1), (_IMAGE,)),),
    "reshape": (_Link(lambda x: R.reshape(x, (2, 240)), (_IMAGE,)),),
    "permute_dims": (_Link(lambda x: R.permute_dims(x, [0, 2, 3, 1]), (_IMAGE,)),),
}


def is_quantised(ns: Namespace, of_patterns: Sequence[Case]) -> bool:
    """Whether a backend takes conversions from and to 8-bit integers, or one of its patterns' cases has one."""
    found = {call.op.name for case in of_patterns for _, call in op_calls(case.main)}
    return set(ns.ops()) >= CONVERSIONS or not CONVERSIONS.isdisjoint(found)


def quantised_cases(op: str) -> list[Case]:
    """The cases of an operator between conversions; nothing for one that quantised models do not have there."""
    cases = {case.what: case for link in _LINKS.get(op.removeprefix("relax."), ()) for case in _cases(op, link)}
    return [case for case in cases.values() if case.main is not None]


def _cases(op: str, link: _Link) -> Iterator[Case]:
    shape = " by ".join(map(str, link.shapes))
    for form in _FORMS:
        if (form.per_channel or form.weights_point) and link.axis is None:
            continue
        dtypes = (form.source, form.source if link.axis is None else form.weights)
        arrays = tuple(_bytes(dtype, dims, form.largest) for dtype, dims in zip(dtypes, link.shapes))
        constants = (1,) if link.axis is not None else ()
        yield Case(op, f"quantised, {form.what}, {shape}", _function(link, form), arrays, constants)


def _bytes(dtype: str, shape: tuple[int, ...], largest: bool) -> np.ndarray:
    limits = np.iinfo(dtype)
    if largest:  # neighbours of one sign: sums of two products overflow 16 bits
        return np.where(integers(*shape) < 8, limits.max, limits.min + 1).astype(dtype)
    return integers(*shape, low=limits.min, high=limits.max + 1).astype(dtype)


def _function(link: _Link, form: _Form) -> Callable[..., Any]:
    def function(builder: relax.BlockBuilder, *operands: Any) -> Any:
        reals = [_real(operands[0], 0.25, form.point)]
        for operand in operands[1:]:
            if link.axis is None:
                reals.append(_real(operand, 0.5, form.point))
                continue
            channels = np.arange(int(operand.ty.shape[link.axis]))
            scale = 2.0 ** (channels % 3 - 2) if form.per_channel else 0.5
            point = channels % 4 - 1 if form.points_per_channel else form.weights_point
            reals.append(_real(operand, scale, point, link.axis))
        result = builder.emit(link.call(*(builder.emit(real) for real in reals)))
        if not form.ends:
            return result
        point = make_constant(np.asarray(form.point + 2, form.source))
        scale = make_constant(np.asarray(link.scale, "float32"))
        whole = R.quantize(result, scale, point, axis=0, out_dtype=form.source)
        return (whole, result) if form.leaks else whole

    return function


def _real(operand: Any, scale: Any, point: Any, axis: int = 0) -> Any:
    dtype = operand.ty.dtype
    scales, points = make_constant(np.asarray(scale, "float32")), make_constant(np.asarray(point, str(dtype)))
    return R.dequantize(operand, scales, points, axis=axis, out_dtype="float32")
