"""Quantising and dequantising: conversions whose integers have a scale and a zero point.

`quantized.use_integers` then lets products, pooling and sums read and write the integers themselves. A conversion that
is left computes to the last bit what TVM does:

    quantize      clip(round(x / scale) + zero)      one division, which stores rounded to even and saturated
    dequantize    (x - zero) · scale                 conversion to float32, then both steps in one primitive

A product with ``1 / scale`` would be as quick, and off by one where the quotient is next to a half.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...vendor import Dim, GraphBuilder, Node, PortableGraph, PostOp, Reject, Scaling, Value, register_lowering, require
from .common import BYTES
from .library import fused
from .views import is_read_once

_ZEROS = (*BYTES, "int32")


@register_lowering("dnnl", "relax.quantize")
def quantize(g: GraphBuilder, call: Any) -> Value:
    """Float32 to int8 and uint8, with one scale or one per channel."""
    src, scale, zero = (g.value(a) for a in call.args)
    dtype = str(call.ty.dtype)
    require(src.dtype == "float32", f"quantize of dtype {src.dtype}")
    require(dtype in BYTES, f"quantize to {dtype}; oneDNN stores {', '.join(BYTES)}")
    whole = g.reshape(src, src.shape or (1,))
    scaling = _scaling(g, call, whole, scale, zero)
    return g.reshape(g.emit("reorder", [whole], whole.shape, dtype, result_scaling=scaling), src.shape)


@register_lowering("dnnl", "relax.dequantize")
def dequantize(g: GraphBuilder, call: Any) -> Value:
    """Int8, uint8 and int32 to float32, with one scale or one per channel."""
    src, scale, zero = (g.value(a) for a in call.args)
    dtype = str(call.ty.dtype)
    require(src.dtype in _ZEROS, f"dequantize of dtype {src.dtype}")
    require(dtype == "float32", f"dequantize to {dtype}")
    # In float32 the difference of two bytes is exact; that of two int32 need not be.
    require(src.dtype != "int32" or _is_zero(zero), "dequantize of int32 with a zero point")
    whole = g.reshape(src, src.shape or (1,))
    scaling = _scaling(g, call, whole, scale, zero)
    return g.reshape(g.emit("reorder", [whole], whole.shape, "float32", scalings={0: scaling}), src.shape)


def _scaling(g: GraphBuilder, call: Any, src: Value, scale: Value, zero: Value) -> Scaling:
    """Scale and zero point as the graph has them: vectors of float32 and int32."""
    name = call.op.name.rpartition(".")[2]
    require(scale.dtype == "float32", f"{name} with a scale of dtype {scale.dtype}")
    require(zero.dtype in _ZEROS, f"{name} with a zero point of dtype {zero.dtype}")
    axis = int(call.attrs.axis) % src.ndim
    for value in (scale, zero):
        if any(d != 1 for d in value.shape) and (value.ndim != 1 or value.shape[0] != src.shape[axis]):
            raise Reject(f"{name} along axis {axis} of {src.shape} with parameters of shape {value.shape}")
    of_all = all(d == 1 for value in (scale, zero) for d in value.shape)
    point = None
    if not _is_zero(zero):
        whole = zero if zero.dtype == "int32" else g.emit("reorder", [zero], zero.shape, "int32")
        point = _vector(g, whole).id
    return Scaling(_vector(g, scale).id, point, None if of_all else axis)


def _vector(g: GraphBuilder, value: Value) -> Value:
    return g.reshape(value, (1,)) if all(d == 1 for d in value.shape) else value


def _is_zero(zero: Value) -> bool:
    constant = zero.constant
    return constant is not None and not constant.any()


# ---------------------------------------------------------------- on the portable graph
def is_dequantize(node: Node | None) -> bool:
    """Whether the node is a conversion from integers with a scale."""
    return node is not None and node.kind == "reorder" and 0 in node.scalings and node.result_scaling is None


def is_quantize(node: Node | None) -> bool:
    """Whether the node is a conversion to integers with a scale."""
    return node is not None and node.kind == "reorder" and not node.scalings and node.result_scaling is not None


def write_out(graph: PortableGraph) -> bool:
    """Replace every conversion that has a scale by the primitives that compute it to the last bit; whether any has."""
    found = False
    for node in list(graph.nodes):
        if is_dequantize(node):
            _write_dequantize(graph, node, node.scalings[0])
        elif is_quantize(node) and node.result_scaling is not None:
            _write_quantize(graph, node, node.result_scaling)
        else:
            continue
        found = True
    return found


def _write_dequantize(graph: PortableGraph, node: Node, scaling: Scaling) -> None:
    (src,), (out,) = node.inputs, node.outputs
    shape = graph.tensors[out].shape
    steps = [("sub", scaling.zero_point), ("mul", scaling.scale)]
    made = [graph.insert("reorder", [src], shape, "float32", before=node)]
    for alg, operand in steps:
        if operand is not None:
            operands = [*made[-1].outputs, _spread(graph, operand, scaling, shape, node)]
            made.append(graph.insert("binary", operands, shape, "float32", before=node, alg=alg))
    _replace(graph, node, made)


def _write_quantize(graph: PortableGraph, node: Node, scaling: Scaling) -> None:
    (src,), (out,) = node.inputs, node.outputs
    shape, dtype = graph.tensors[out].shape, graph.tensors[out].dtype
    zero = scaling.zero_point
    assert scaling.scale is not None
    if _write_behind(graph, node, scaling):
        return
    scale = _spread(graph, scaling.scale, scaling, shape, node)
    known = None if zero is None else graph.value_of(zero)
    step = graph.insert("binary", [src, scale], shape, dtype, before=node, alg="div")
    # Rounded before the zero point is added; otherwise a tie could be rounded the other way.
    if zero is not None and (known is None or known.size != 1):
        graph.nodes.rewire(step, [src, scale, _spread(graph, zero, scaling, shape, step)])
        step.post_ops = [PostOp("eltwise", "round"), PostOp("binary", "add", input=2)]
    elif known is not None and (point := float(known.reshape(-1)[0])):
        step.post_ops = [PostOp("eltwise", "round"), PostOp("eltwise", "linear", 1.0, point)]
    _replace(graph, node, [step])


def _write_behind(graph: PortableGraph, node: Node, scaling: Scaling) -> bool:
    """Let the binary operation in front of a conversion do the same steps as its last post-ops, where oneDNN can."""
    (src,), (out,) = node.inputs, node.outputs
    before, constants = graph.nodes.producer(src), graph.constant_tensors()
    point = 0.0 if scaling.zero_point is None else graph.value_of(scaling.zero_point)
    if before is None or before.kind != "binary" or before.is_scaled or graph.tensors[src].dtype != "float32":
        return False
    if not is_read_once(graph, src) or scaling.scale not in constants or graph.symbols:
        return False
    if scaling.axis is not None or point is None:
        return False
    scale = _spread(graph, scaling.scale, scaling, graph.tensors[out].shape, before)
    steps = [PostOp("binary", "div", input=len(before.inputs)), PostOp("eltwise", "round")]
    steps.append(PostOp("eltwise", "linear", 1.0, float(np.reshape(point, -1)[0])))
    inputs = (*before.inputs, scale)
    joined = Node("binary", inputs, (out,), before.attrs, [*before.post_ops, *steps])
    if fused(graph.isolate(joined, {*constants, scale}))[1]:
        return False
    graph.nodes.remove(node)
    graph.nodes.rewire(before, inputs, (out,))
    before.post_ops = joined.post_ops
    before.stands_for(node)
    return True


def _replace(graph: PortableGraph, node: Node, made: Sequence[Node]) -> None:
    """Let the last of the new nodes make what ``node`` made."""
    for new in made:
        new.source, new.apart = list(node.source), node.apart
    graph.nodes.remove(node)
    graph.nodes.rewire(made[-1], outputs=node.outputs)


def _spread(graph: PortableGraph, tensor: int, scaling: Scaling, shape: Sequence[Dim], node: Node) -> int:
    """A scale or zero point in float32, in a shape that broadcasts."""
    count = graph.tensors[tensor].shape[0]
    if graph.tensors[tensor].dtype != "float32":
        tensor = graph.insert("reorder", [tensor], (count,), "float32", before=node).outputs[0]
    spread = [count if count != 1 and i == scaling.axis else 1 for i in range(len(shape))]
    return graph.insert("reshape", [tensor], spread, "float32", before=node).outputs[0]
