"""Operators between conversions from and to 8-bit integers, as quantised models have them.

    x (uint8) ─ dequantize ┐
    w (int8)  ─ dequantize ┴ conv2d ─ quantize ─ y (uint8)

All scales are powers of two, so every sum is exact in float32 and in integers, and a right result is equal to TVM's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as R

from ...ir.relax_utils import op_calls
from ...ir.tvm_compat import make_constant
from ...vendors.namespace import Namespace
from ..op_calls import integers
from .case import Case

_CONVERSIONS = {"relax.quantize", "relax.dequantize"}


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
    return set(ns.ops()) >= _CONVERSIONS or not _CONVERSIONS.isdisjoint(found)


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
