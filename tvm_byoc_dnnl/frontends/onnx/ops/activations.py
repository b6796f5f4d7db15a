"""Activations, and the limits of a Clip."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ..emit import Emit
from ..table import definition, operator
from ..value import Node, Value

definition("Celu", "Swish", since=12)

_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def _bounds(node: Node) -> tuple[Value | None, Value | None]:
    if node.opset >= 11:
        return node.input(1), node.input(2)
    dtype = node.needed(0).dtype
    low, high = (node.attr(name) for name in ("min", "max"))
    return tuple(None if v is None else Value(known=np.array(v, dtype)) for v in (low, high))  # type: ignore[return-value]


@operator("Clip")
def _clip(e: Emit, node: Node, x: Value) -> Any:
    """NaN in the data stays; a limit that is NaN is none."""
    for bound, call, none in zip(
        _bounds(node), (relax.op.maximum, relax.op.minimum), (-math.inf, math.inf), strict=True
    ):
        if bound is None:
            continue
        limit = e.reshape(bound, []) if bound.dims != () else bound
        if not limit.dtype.startswith(("int", "uint")) and not _is_number(limit):
            limit = e.where(e.isnan(limit), e.const(none, limit.dtype), limit)
        x = e.call(call, x, limit)
    return x


def _is_number(limit: Value) -> bool:
    return limit.is_constant and limit.known is not None and not np.isnan(limit.known.astype("float64")).any()


@operator("LeakyRelu")
def _leaky_relu(e: Emit, x: Value, *, alpha: float = 0.01) -> Any:
    return e.leakyrelu(x, alpha=alpha)


@operator("Gelu", since=20)
def _gelu(e: Emit, node: Node, x: Value) -> Any:
    kind = node.attr("approximate", "none")
    if kind not in ("none", "tanh"):
        raise node.wrong(f"has approximate={kind}; expected none or tanh")
    return e.call(relax.op.nn.gelu_tanh if kind == "tanh" else relax.op.nn.gelu, x)


def _in_float32(e: Emit, x: Value) -> Value:
    return e.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _elu_of(e: Emit, x: Value, alpha: float) -> Value:
    rising = e.relu(x)
    falling = e.relu(e.const(1, x.dtype) - e.exp(x))
    return e.const(-alpha, x.dtype) * falling + rising


@operator("Elu")
def _elu(e: Emit, x: Value, *, alpha: float = 1.0) -> Any:
    return e.cast(_elu_of(e, _in_float32(e, x), alpha), x.dtype)


@operator("Selu")
def _selu(e: Emit, node: Node, x: Value) -> Any:
    wide = _in_float32(e, x)
    found = _elu_of(e, wide, node.attr("alpha", _SELU[0]))
    return e.cast(e.const(node.attr("gamma", _SELU[1]), wide.dtype) * found, x.dtype)


@operator("HardSigmoid")
def _hard_sigmoid(e: Emit, node: Node, x: Value) -> Any:
    alpha, beta = e.const(node.attr("alpha", 0.2), x.dtype), e.const(node.attr("beta", 0.5), x.dtype)
    return e.clip(alpha * x + beta, min=0, max=1)


@operator("HardSwish", since=14)
def _hard_swish(e: Emit, x: Value) -> Any:
    gate = e.clip(x + 3, min=0, max=6)
    return x * (gate / e.const(6, x.dtype))


@operator("Softplus")
def _softplus(e: Emit, x: Value) -> Any:
    decay = e.exp(-abs(x))
    curve = e.log(e.const(1, x.dtype) + decay)
    return e.maximum(x, 0) + curve


@operator("Softsign")
def _softsign(e: Emit, x: Value) -> Any:
    return x / (abs(x) + e.const(1, x.dtype))


@operator("ThresholdedRelu", since=10)
def _thresholded_relu(e: Emit, x: Value, *, alpha: float = 1.0) -> Any:
    above = x > e.const(alpha, x.dtype)
    return e.where(above, x, 0)


@operator("Shrink", since=9)
def _shrink(e: Emit, node: Node, x: Value, *, lambd: float = 0.5) -> Any:
    limit, bias, zero = (e.const(v, x.dtype) for v in (lambd, node.attr("bias", 0.0), 0))
    below = x < -limit
    low = e.where(below, x + bias, zero)
    return e.where(x > limit, x - bias, low)
