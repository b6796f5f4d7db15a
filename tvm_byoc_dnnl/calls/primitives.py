"""The primitives of a region: it is lowered once more, and every node knows the calls that it is made from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..graph.graph import Node as GraphNode
from ..graph.graph import PortableGraph
from ..regions.failure import describe
from ..vendors.codegen.extern import PortableCodegen, lower_region
from ..vendors.namespace import Description, Namespace, told

__all__ = ["Primitive", "RegionPrimitives", "primitives_of"]

_logger = logging.getLogger("tvm_byoc_dnnl")

_VIEWS = frozenset({"reshape", "permute", "slice", "expand"})
_TAKE_BIAS = frozenset({"convolution", "deconvolution", "matmul"})
_VANISHED = "nothing: fused away"


@dataclass(frozen=True)
class Primitive:
    """One node of a lowered region.

    Attributes
    ----------
    step : int or None
        Position among the region's primitives: calls with the same one are fused.
    label : str
        Kind and post-ops: ``"convolution + relu + add"``.
    implementation : str
        The library's name for the implementation, ``""`` where it does not tell.
    apart : str
        Why it is not fused into the primitive before it, where that was tried.
    precision : str
        Why it computes in float32, where the model or the user asked for a lower precision.
    """

    step: int | None
    label: str
    implementation: str = ""
    is_view: bool = False
    apart: str = ""
    precision: str = ""


@dataclass
class RegionPrimitives:
    """The primitives of a region, by the position of the call (in one use of the region) that they come from."""

    of_call: dict[int, list[Primitive]] = field(default_factory=dict)
    reorders: int | None = None
    #: of calls that no primitive comes from
    others: list[Primitive] = field(default_factory=list)

    def of(self, position: int) -> list[Primitive]:
        """The primitives of one call; without a lowering there are none."""
        return self.of_call.get(position, self.others)


def primitives_of(ns: Namespace, func: Any, name: str, options: Mapping[str, Any] | None = None) -> RegionPrimitives:
    """Lower ``func`` and ask the namespace how it runs the result.

    Parameters
    ----------
    ns : Namespace
        Owner of the region. One with a codegen of its own and no lowerings gives an empty answer.
    func : relax.Function
        The region.
    name : str
        Its symbol.
    options : mapping, optional
        Of the namespace, for this module.
    """
    try:
        graph = lower_region(ns, func, name, options=options)
    except Exception:  # no lowering, or a vendor's bug: the rest of the report is still useful
        return RegionPrimitives()
    if isinstance(ns.codegen, PortableCodegen):
        graph = ns.codegen.with_times(graph)
    description = _described(ns, graph)
    found = RegionPrimitives(
        reorders=description.reorders if description else None, others=[Primitive(None, _VANISHED, is_view=True)]
    )
    for index, graph_node in enumerate(graph.nodes):
        primitive = _primitive(graph, graph_node, description, index)
        for position in dict.fromkeys(graph_node.calls):
            found.of_call.setdefault(position, []).append(primitive)
    return found


def _described(ns: Namespace, graph: PortableGraph) -> Description | None:
    if ns.describe is None:
        return None
    try:
        return told(ns, "describe", graph)
    except Exception as error:  # the rest of the report is still useful
        _logger.warning("%s", describe(error))
        return None


def _primitive(graph: PortableGraph, node: GraphNode, description: Description | None, index: int) -> Primitive:
    implementation = ""
    if description is not None and index < len(description.implementations):
        implementation = description.implementations[index]
    kind = node.kind
    if kind in ("eltwise", "binary"):
        kind = str(node.attrs.get("alg", kind))
    elif kind == "pooling":
        kind = f"{node.attrs.get('alg', '')} pooling".strip()
    operands = len(node.inputs) - sum(op.kind == "binary" for op in node.post_ops)
    bias = ["bias"] if node.kind in _TAKE_BIAS and operands == 3 else []
    label = " + ".join([kind, *bias, *(op.alg for op in node.post_ops)])
    dtype = graph.tensors[node.inputs[0]].dtype
    if dtype in ("bfloat16", "float16") and not node.precision:
        label += f" in {dtype}"
    return Primitive(index, label, implementation, node.kind in _VIEWS, node.apart, node.precision)
