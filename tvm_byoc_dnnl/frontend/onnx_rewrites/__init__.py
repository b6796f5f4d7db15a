"""Rewrites of an ONNX graph before TVM's importer reads it, one concept per file.

A rule is ``rule(graph, node) -> list of nodes | None`` for one operator: the nodes that do the same with what
the importer knows, or ``None`` to leave the node alone. The last node made must produce the outputs of the old.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx

from ..onnx_graph import Graph
from . import (
    casts,
    detection,
    indexing,
    integers,
    mistaken,
    ordering,
    spectral,
)
from .builder import SETTLED

__all__ = ["has_rule", "rewritten"]

Rule = Callable[[Graph, onnx.NodeProto], "list[onnx.NodeProto] | None"]

# (domain, operator) -> rule
RULES: dict[tuple[str, str], Rule] = {
    **casts.RULES,
    **detection.RULES,
    **indexing.RULES,
    **integers.RULES,
    **mistaken.RULES,
    **ordering.RULES,
    **spectral.RULES,
}


def has_rule(domain: str, op: str) -> bool:
    """Whether there is a rule for an operator."""
    return (domain, op) in RULES


def rewritten(graph: Graph) -> list[onnx.NodeProto] | None:
    """The nodes that take the place of the one node of a graph; ``None`` to leave it alone."""
    (node,) = graph.nodes
    domain = "" if node.domain == "ai.onnx" else node.domain
    rule = None if node.doc_string == SETTLED else RULES.get((domain, node.op_type))
    made = None if rule is None else rule(graph, node)
    for part in made or ():
        if part is not node and not part.name:
            part.name = node.name or node.output[0]
    return made
