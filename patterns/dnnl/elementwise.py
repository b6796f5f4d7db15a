"""Unary and binary elementwise operators: tables, and the few that have rules of their own."""

from __future__ import annotations

import math
from typing import Any

from ...builder import GraphBuilder, Value
from ...registry import register_lowering
from ...verdict import require
from .common import require_float

__all__: list[str] = []

#: Relax op → (oneDNN algorithm, alpha, beta)
_UNARY: dict[str, tuple[str, float, float]] = {
    "relax.abs": ("abs", 0, 0),
    "relax.exp": ("exp", 0, 0),
    "relax.log": ("log", 0, 0),
    "relax.negative": ("linear", -1, 0),
    "relax.nn.gelu": ("gelu_erf", 0, 0),
    "relax.nn.gelu_tanh": ("gelu_tanh", 0, 0),
    "relax.nn.relu": ("relu", 0, 0),
    "relax.nn.silu": ("swish", 1, 0),
    "relax.round": ("round", 0, 0),
    "relax.rsqrt": ("pow", 1, -0.5),
    "relax.sigmoid": ("logistic", 0, 0),
    "relax.sqrt": ("sqrt", 0, 0),
    "relax.square": ("square", 0, 0),
    "relax.tanh": ("tanh", 0, 0),
}

_BINARY = {
    "relax.add": "add",
    "relax.subtract": "sub",
    "relax.multiply": "mul",
    "relax.divide": "div",
    "relax.maximum": "max",
    "relax.minimum": "min",
    "relax.greater": "gt",
    "relax.greater_equal": "ge",
    "relax.less": "lt",
    "relax.less_equal": "le",
    "relax.equal": "eq",
    "relax.not_equal": "ne",
}

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@register_lowering("dnnl", list(_UNARY))
def unary(g: GraphBuilder, call: Any) -> Value:
    """One eltwise primitive."""
    src = g.value(call.args[0])
    require_float(call.op.name, src)
    return g.eltwise(src, *_UNARY[call.op.name])


@register_lowering("dnnl", "relax.nn.leakyrelu")
def leaky_relu(g: GraphBuilder, call: Any) -> Value:
    """Relu with a negative slope."""
    src = g.value(call.args[0])
    require_float(call.op.name, src)
    return g.eltwise(src, "relu", float(call.attrs.alpha))


@register_lowering("dnnl", "relax.nn.softplus")
def softplus(g: GraphBuilder, call: Any) -> Value:
    """``log(1 + exp(beta·x)) / beta``; the threshold only avoids an overflow that oneDNN avoids by itself."""
    src = g.value(call.args[0])
    require_float(call.op.name, src)
    return g.eltwise(src, "soft_relu", float(call.attrs.beta))


@register_lowering("dnnl", "relax.nn.selu")
def selu(g: GraphBuilder, call: Any) -> Value:
    """Scaled elu; the two constants are those of Klambauer et al. 2017, eq. 14."""
    src = g.value(call.args[0])
    require_float(call.op.name, src)
    return g.eltwise(g.eltwise(src, "elu", _SELU_ALPHA), "linear", _SELU_SCALE)


@register_lowering("dnnl", "relax.clip")
def clip(g: GraphBuilder, call: Any) -> Value:
    """Clip to constant bounds."""
    src = g.value(call.args[0])
    require_float(call.op.name, src)
    low, high = (float(getattr(a, "value", a)) for a in call.args[1:3])
    require(low <= high, f"clip to the empty range [{low}, {high}]")
    return g.eltwise(src, "clip", low, high)


@register_lowering("dnnl", "relax.nn.prelu")
def prelu(g: GraphBuilder, call: Any) -> Value:
    """Relu with a slope per channel."""
    src, slope = g.value(call.args[0]), g.value(call.args[1])
    require_float(call.op.name, src, slope)
    axis = int(call.attrs.axis) % src.ndim
    require(slope.ndim == 1, f"prelu with a slope of rank {slope.ndim}")
    shape = [slope.shape[0] if i == axis else 1 for i in range(src.ndim)]
    return g.emit("prelu", [src, g.reshape(slope, shape)], src.shape)


def _with_scalar(alg: str, scalar: float, scalar_first: bool) -> tuple[str, float, float] | None:
    """A binary operation with a constant number as an eltwise algorithm, where there is one."""
    if not math.isfinite(scalar):
        return None
    if alg == "add":
        return ("linear", 1, scalar)
    if alg == "sub":
        return ("linear", -1, scalar) if scalar_first else ("linear", 1, -scalar)
    if alg == "mul":
        return ("linear", scalar, 0)
    if alg == "div" and not scalar_first and scalar != 0:
        return ("linear", 1 / scalar, 0)
    return None


@register_lowering("dnnl", list(_BINARY))
def binary(g: GraphBuilder, call: Any) -> Value:
    """Two operands that broadcast; a constant number is folded into an eltwise primitive."""
    alg = _BINARY[call.op.name]
    a, b = g.value(call.args[0]), g.value(call.args[1])
    require_float(call.op.name, a, b)
    shape = g.shape_of(call.ty)
    for value, scalar, first in ((a, b.scalar, False), (b, a.scalar, True)):
        if scalar is not None and value.shape == shape:
            eltwise = _with_scalar(alg, scalar, first)
            if eltwise is not None:
                return g.eltwise(value, *eltwise)
    if alg in ("add", "mul", "max", "min") and a.shape != shape and b.shape == shape:
        a, b = b, a  # oneDNN broadcasts its second operand
    return g.binary(alg, a, b, shape, str(call.ty.dtype))


@register_lowering("dnnl", "relax.power")
def power(g: GraphBuilder, call: Any) -> Value:
    """A constant exponent."""
    src, exponent = g.value(call.args[0]), g.value(call.args[1])
    require_float(call.op.name, src, exponent)
    require(exponent.scalar is not None, "power with an exponent that is not one constant number")
    require(src.shape == g.shape_of(call.ty), "power whose exponent broadcasts the base")
    assert exponent.scalar is not None
    return g.eltwise(src, "pow", 1, exponent.scalar)


@register_lowering("dnnl", "relax.astype")
def astype(g: GraphBuilder, call: Any) -> Value:
    """Conversion between floating-point types."""
    src, dtype = g.value(call.args[0]), str(call.ty.dtype)
    require_float(call.op.name, src)
    require_float(call.op.name, Value(-1, dtype, ()))
    return g.emit("reorder", [src], src.shape, dtype)
