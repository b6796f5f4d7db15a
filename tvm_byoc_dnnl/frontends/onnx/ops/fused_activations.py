"""ONNX Runtime's activations, with the sums that it has put into them."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..dim import Dim, product
from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .attention_parts import columns

__all__ = ["activated"]

R = relax.op
_MS = "com.microsoft"


def _plus(e: Emit, x: Value, bias: Value | None) -> Value:
    return x if bias is None else x + bias


@operator("Gelu", "BiasGelu", domain=_MS)
def _gelu(e: Emit, node: Node, x: Value) -> Value:
    most = 1 if node.op == "Gelu" else 2
    if len(node.inputs) > most:
        raise node.wrong(f"has {len(node.inputs)} inputs; expected {most}")
    return e.gelu(_plus(e, x, node.input(1)))


@operator("FastGelu", domain=_MS)
def _fast_gelu(e: Emit, node: Node, x: Value) -> Value:
    return e.gelu_tanh(_plus(e, x, node.input(1)))


@operator("QuickGelu", domain=_MS)
def _quick_gelu(e: Emit, x: Value, *, alpha: float = 1.702) -> Value:
    return _gated(e, x, alpha)


def _gated(e: Emit, x: Value, alpha: float) -> Value:
    inner = x if alpha == 1 else x * alpha
    return x * e.sigmoid(inner)


@operator("ScaledSiLU", domain=_MS)
def _scaled_silu(e: Emit, node: Node, x: Value, *, alpha: float = 1.0) -> Value:
    out = _gated(e, x, alpha)
    return out if node.input(1) is None else out * node.needed(1)


@operator("BiasAdd", domain=_MS)
def _bias_add(e: Emit, node: Node, x: Value) -> Value:
    return _plus(e, _plus(e, x, node.input(1)), node.input(2))


@operator("BiasSplitGelu", domain=_MS)
def _split_gelu(e: Emit, node: Node, data: Value) -> Value:
    """The first half times gelu of the second."""
    x = _plus(e, data, node.input(1))
    dims = x.sizes
    width = dims[-1]
    if isinstance(width, Dim) or width % 2:
        raise node.wrong(f"has {width} columns; expected an even number")
    first, second = (columns(e, x, len(dims) - 1, begin, begin + width // 2) for begin in (0, width // 2))
    return first * e.gelu(second)


@operator("BiasSoftmax", domain=_MS)
def _bias_softmax(e: Emit, node: Node, x: Value, bias: Value, *, is_inner_broadcast: int = 1) -> Value:
    """All axes from ``axis`` on are one; the bias repeats for the rows of a block, or for the blocks."""
    dims = x.sizes
    axis = int(node.attr("axis", 1)) % len(dims)
    own = bias.sizes
    if not is_inner_broadcast and len(own) < len(dims):
        bias = e.reshape(bias, [*(1 for _ in range(len(dims) - len(own))), *own])
    total = _plus(e, x, bias)
    if axis == len(dims) - 1:
        return e.softmax(total, axis=-1)
    flat = e.reshape(total, [product(dims[:axis]), product(dims[axis:])])
    return e.reshape(e.softmax(flat, axis=-1), dims)


_PARAMETERS: dict[str, tuple[str, ...]] = {
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
}


def activated(e: Emit, node: Node, x: Value, kind: str, numbers: Any) -> Value:
    """The activation that an operator ends with, with its parameters."""
    if not kind:
        return x
    if kind == "Clip":
        least, most = numbers
        result: Value = e.onnx("Clip", x, e.const(least, x.dtype), e.const(most, x.dtype), opset=13)
        return result
    names = _PARAMETERS.get(kind, ())
    return e.onnx(kind, x, opset=20, **dict(zip(names, numbers, strict=False)))
