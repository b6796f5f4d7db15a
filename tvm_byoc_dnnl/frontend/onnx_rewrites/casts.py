"""Casts: those that TVM compiles and gets wrong, or fails on at run time, are refused by name."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes


def _types(*names: str) -> frozenset[int]:
    """Those of the element types that this version of onnx has."""
    return frozenset(TensorProto.DataType.Value(n) for n in names if n in TensorProto.DataType.keys())  # noqa: SIM118


# TVM converts them through integers of the same width: 0.47 becomes 0.23, and what overflows becomes anything.
_FLOAT8 = _types("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
# The suite's only one of them that TVM reads right; it rounds to the nearest power, not up.
_READ_ONLY = _types("FLOAT8E8M0")
# Several elements to a byte, in another order than TVM's tensors.
_PACKED = _types("INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1")


def _cast(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Also: a cast to the type of another value is one to a type, and then constants can be folded through it."""
    b = Builder(graph, node)
    source, like = graph.elem_type(node.input[0]), node.op_type == "CastLike"
    target = graph.elem_type(node.input[1]) if like else b.attrs["to"]
    if source == target or not (source in _FLOAT8 | _PACKED or target in _FLOAT8 | _PACKED | _READ_ONLY):
        if not like or not target:
            return None
        b.add("Cast", [node.input[0]], node.output[0], to=target)
        return b.nodes
    kinds = " to ".join(TensorProto.DataType.Name(k) for k in (source, target))
    raise UnsupportedError(
        f"no Relax equivalent for {node.op_type} from {kinds} (node `{node.name or node.output[0]}`): TVM would "
        "compile it and get it wrong; cast where the tensor is made, outside of the model"
    )


RULES = {("", "Cast"): _cast, ("", "CastLike"): _cast}
