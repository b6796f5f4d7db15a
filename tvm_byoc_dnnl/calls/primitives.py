"""The primitives of a region: it is lowered once more, with every node marked by the calls that it is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..codegen.region import lower_region
from ..lower.graph import Node as GraphNode
from ..lower.graph import PortableGraph
from ..namespace import Description, Namespace, Pattern
from .flow import Node

__all__ = ["Primitive", "RegionPrimitives", "primitives_of"]

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
    """

    step: int | None
    label: str
    implementation: str = ""
    is_view: bool = False
    apart: str = ""


@dataclass
class RegionPrimitives:
    """The primitives of a region, by the position of the call (in one use of the region) that they come from."""

    of_call: dict[int, list[Primitive]] = field(default_factory=dict)
    reorders: int | None = None


def primitives_of(ns: Namespace, func: Any, name: str, nodes: Sequence[Node]) -> RegionPrimitives:
    """Lower ``func`` and ask the namespace how it runs the result.

    Parameters
    ----------
    ns : Namespace
        Owner of the region. One with a codegen of its own and no lowerings gives an empty answer.
    func : relax.Function
        The region.
    name : str
        Its symbol.
    nodes : sequence of Node
        The calls of one use of it, in order.
    """
    try:
        graph = lower_region(_marking(ns, nodes), func, name)
    except Exception:  # no lowering, or a vendor's bug: there is nothing to tell, and the rest is still worth telling
        return RegionPrimitives()
    description = _described(ns, graph)
    found = RegionPrimitives(reorders=description.reorders if description else None)
    for index, graph_node in enumerate(graph.nodes):
        primitive = _primitive(graph_node, description, index)
        for mark in dict.fromkeys(graph_node.source):
            found.of_call.setdefault(int(mark), []).append(primitive)
    for position in range(len(nodes)):
        found.of_call.setdefault(position, [Primitive(None, _VANISHED, is_view=True)])
    return found


def _described(ns: Namespace, graph: PortableGraph) -> Description | None:
    try:
        return ns.describe(graph) if ns.describe is not None else None
    except Exception:
        return None


def _primitive(node: GraphNode, description: Description | None, index: int) -> Primitive:
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
    return Primitive(index, label, implementation, node.kind in _VIEWS, node.apart)


def _marking(ns: Namespace, nodes: Sequence[Node]) -> Namespace:
    """``ns`` with lowerings that leave the position of their call as the source of the nodes that they emit.

    Equal composites share one function, so a call's identity says nothing; but lowering goes through a region in the
    order in which its calls were read.
    """
    waiting = list(enumerate(nodes))[::-1]

    def take(count: int) -> list[str]:
        return [str(waiting.pop()[0]) for _ in range(count)]

    def mark_call(lowering: Callable[..., Any]) -> Callable[..., Any]:
        def lower(g: Any, call: Any) -> Any:
            g.source = take(1)
            return lowering(g, call)

        return lower

    def mark_pattern(pattern: Pattern) -> Pattern:
        lowering = pattern.lower
        if lowering is None:
            return pattern

        def lower(g: Any, match: Mapping[str, Any]) -> Any:
            composite = waiting[-1][1].composite_id
            g.source = take(sum(n.composite_id == composite for _, n in waiting))
            return lowering(g, match)

        return replace(pattern, lower=lower)

    return replace(
        ns,
        lowerings={op: mark_call(f) for op, f in ns.lowerings.items()},
        patterns={name: mark_pattern(p) for name, p in ns.patterns.items()},
    )
