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
def _clip(e: Emit, node: Node) -> Any:
    """NaN in the data stays; a limit that is NaN is none."""
    x = node.needed(0)
    for bound, call, none in zip(
        _bounds(node), (relax.op.maximum, relax.op.minimum), (-math.inf, math.inf), strict=True
    ):
        if bound is None:
            continue
        limit = e.reshape(bound, []) if bound.dims != () else bound
        if not limit.dtype.startswith(("int", "uint")) and not _is_number(limit):
            limit = e.call(relax.op.where, e.call(relax.op.isnan, limit), e.const(none, limit.dtype), limit)
        x = e.call(call, x, limit)
    return x


def _is_number(limit: Value) -> bool:
    return limit.is_constant and limit.known is not None and not np.isnan(limit.known.astype("float64")).any()


@operator("LeakyRelu")
def _leaky_relu(e: Emit, node: Node) -> Any:
    return e.call(relax.op.nn.leakyrelu, node.needed(0), alpha=node.attr("alpha", 0.01))


@operator("Gelu", since=20)
def _gelu(e: Emit, node: Node) -> Any:
    kind = node.attr("approximate", "none")
    if kind not in ("none", "tanh"):
        raise node.wrong(f"has approximate={kind}; expected none or tanh")
    return e.call(relax.op.nn.gelu_tanh if kind == "tanh" else relax.op.nn.gelu, node.needed(0))


def _in_float32(e: Emit, x: Value) -> Value:
    return e.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _elu_of(e: Emit, x: Value, alpha: float) -> Value:
    rising = e.call(relax.op.nn.relu, x)
    falling = e.call(relax.op.nn.relu, e.call(relax.op.subtract, e.const(1, x.dtype), e.call(relax.op.exp, x)))
    return e.call(relax.op.add, e.call(relax.op.multiply, e.const(-alpha, x.dtype), falling), rising)


@operator("Elu")
def _elu(e: Emit, node: Node) -> Any:
    x = node.needed(0)
    return e.cast(_elu_of(e, _in_float32(e, x), node.attr("alpha", 1.0)), x.dtype)


@operator("Selu")
def _selu(e: Emit, node: Node) -> Any:
    x = node.needed(0)
    wide = _in_float32(e, x)
    found = _elu_of(e, wide, node.attr("alpha", _SELU[0]))
    return e.cast(e.call(relax.op.multiply, e.const(node.attr("gamma", _SELU[1]), wide.dtype), found), x.dtype)


@operator("HardSigmoid")
def _hard_sigmoid(e: Emit, node: Node) -> Any:
    x = node.needed(0)
    alpha, beta = e.const(node.attr("alpha", 0.2), x.dtype), e.const(node.attr("beta", 0.5), x.dtype)
    return e.call(relax.op.clip, e.call(relax.op.add, e.call(relax.op.multiply, alpha, x), beta), min=0, max=1)


@operator("HardSwish", since=14)
def _hard_swish(e: Emit, node: Node) -> Any:
    x = node.needed(0)
    gate = e.call(relax.op.clip, e.call(relax.op.add, x, e.const(3, x.dtype)), min=0, max=6)
    return e.call(relax.op.multiply, x, e.call(relax.op.divide, gate, e.const(6, x.dtype)))


@operator("Softplus")
def _softplus(e: Emit, node: Node) -> Any:
    x = node.needed(0)
    decay = e.call(relax.op.exp, e.call(relax.op.negative, e.call(relax.op.abs, x)))
    curve = e.call(relax.op.log, e.call(relax.op.add, e.const(1, x.dtype), decay))
    return e.call(relax.op.add, e.call(relax.op.maximum, x, e.const(0, x.dtype)), curve)


@operator("Softsign")
def _softsign(e: Emit, node: Node) -> Any:
    x = node.needed(0)
    return e.call(relax.op.divide, x, e.call(relax.op.add, e.call(relax.op.abs, x), e.const(1, x.dtype)))


@operator("ThresholdedRelu", since=10)
def _thresholded_relu(e: Emit, node: Node) -> Any:
    x = node.needed(0)
    above = e.call(relax.op.greater, x, e.const(node.attr("alpha", 1.0), x.dtype))
    return e.call(relax.op.where, above, x, e.const(0, x.dtype))


@operator("Shrink", since=9)
def _shrink(e: Emit, node: Node) -> Any:
    x = node.needed(0)
    limit, bias, zero = (e.const(v, x.dtype) for v in (node.attr("lambd", 0.5), node.attr("bias", 0.0), 0))
    below = e.call(relax.op.less, x, e.call(relax.op.negative, limit))
    low = e.call(relax.op.where, below, e.call(relax.op.add, x, bias), zero)
    return e.call(relax.op.where, e.call(relax.op.greater, x, limit), e.call(relax.op.subtract, x, bias), low)
