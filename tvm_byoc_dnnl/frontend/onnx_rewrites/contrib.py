"""Fused operators that ONNX Runtime's optimiser and exporters make, back to standard ones."""

from __future__ import annotations

from typing import Any

import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes

_MS = "com.microsoft"
_ACTIVATION_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}


def _activation(b: Builder, data: str, output: str) -> Nodes | None:
    """The activation that a fused operator ends with."""
    kind, numbers = b.attrs.get("activation", ""), list(b.attrs.get("activation_params", ()))
    if not kind:
        b.add("Identity", [data], output)
    elif kind == "Clip":
        names = [b.number(v, like=b.inputs[0]) for v in numbers]
        b.add("Clip", [data, *names], output)
    else:
        b.add(kind, [data], output, **dict(zip(_ACTIVATION_PARAMETERS.get(kind, ()), numbers, strict=False)))
    return b.nodes


def _fused_conv(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    x, w, bias, other = b.inputs[:4]
    attrs = {k: v for k, v in b.attrs.items() if not k.startswith("activation")}
    result = b.add("Conv", [x, w, bias] if bias else [x, w], **attrs)
    return _activation(b, b.add("Add", [result, other]) if other else result, node.output[0])


def _fused_gemm(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    attrs = {k: v for k, v in b.attrs.items() if not k.startswith("activation")}
    return _activation(b, b.add("Gemm", list(node.input), **attrs), node.output[0])


def _fused_matmul(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    if b.attrs.get("transBatchA") or b.attrs.get("transBatchB"):
        return None
    operands = []
    for name, key in zip(node.input, ("transA", "transB"), strict=True):
        rank = graph.rank(name)
        if b.attrs.get(key) and rank is None:
            return None
        operands.append(_last_two_swapped(b, name, rank) if b.attrs.get(key) else name)
    alpha = b.number(b.attrs.get("alpha", 1.0), like=node.input[0])
    b.add("Mul", [b.add("MatMul", operands), alpha], node.output[0])
    return b.nodes


def _last_two_swapped(b: Builder, name: str, rank: Any) -> str:
    return b.add("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])


def _quick_gelu(graph: Graph, node: onnx.NodeProto) -> Nodes:
    b = Builder(graph, node)
    alpha = b.number(b.attrs.get("alpha", 1.702), like=node.input[0])
    gate = b.add("Sigmoid", [b.add("Mul", [node.input[0], alpha])])
    b.add("Mul", [node.input[0], gate], node.output[0])
    return b.nodes


def _skip_norm(norm: str, parameters: int) -> Any:
    """A residual sum, perhaps with a bias, then a norm; the sum may be an output too."""

    def rule(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
        if any(o and graph.is_read(o) for o in node.output[1:3]):
            return None  # the statistics
        b = Builder(graph, node)
        x, skip, *rest = b.inputs
        params, bias = [p for p in rest[:parameters] if p], rest[parameters]
        total = b.add("Add", [x, skip])
        total = b.add("Add", [total, bias]) if bias else total
        if len(node.output) > 3 and node.output[3]:
            b.add("Identity", [total], node.output[3])
        b.add(norm, [total, *params], node.output[0], axis=-1, epsilon=b.attrs.get("epsilon", 1e-12))
        return b.nodes

    return rule


def _simplified_norm(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    if any(o and graph.is_read(o) for o in node.output[1:]):
        return None
    b = Builder(graph, node)
    kept = {k: b.attrs[k] for k in ("axis", "epsilon") if k in b.attrs}
    b.add("RMSNormalization", node.input[:2], node.output[0], **kept)
    return b.nodes


RULES = {
    (_MS, "FusedConv"): _fused_conv,
    (_MS, "FusedGemm"): _fused_gemm,
    (_MS, "FusedMatMul"): _fused_matmul,
    (_MS, "QuickGelu"): _quick_gelu,
    (_MS, "SkipLayerNormalization"): _skip_norm("LayerNormalization", 2),
    (_MS, "SkipSimplifiedLayerNormalization"): _skip_norm("RMSNormalization", 1),
    ("", "SimplifiedLayerNormalization"): _simplified_norm,
}
