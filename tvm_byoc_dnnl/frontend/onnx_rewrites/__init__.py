"""Rewrites of an ONNX graph before TVM's importer reads it, one concept per file.

A rule is ``rule(graph, node) -> list of nodes | None`` for one operator: the nodes that do the same with what
the importer knows, or ``None`` to leave the node alone. The last node made must produce the outputs of the old.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import onnx

from ..onnx_graph import Graph
from . import (
    arrangement,
    attributes,
    block_quantised,
    casts,
    contrib,
    detection,
    einsum,
    integers,
    loops,
    masks,
    mistaken,
    padding,
    products,
    quantised,
    ranges,
    recurrent,
    reductions,
    resize,
    sequences,
    spectral,
)
from .fold import fold
from .functions import expand_functions
from .legacy import modernise

__all__ = ["rewrite"]

Rule = Callable[[Graph, onnx.NodeProto], "list[onnx.NodeProto] | None"]

# (domain, operator) -> rule
RULES: dict[tuple[str, str], Rule] = {
    **arrangement.RULES,
    **attributes.RULES,
    **block_quantised.RULES,
    **casts.RULES,
    **contrib.RULES,
    **detection.RULES,
    **einsum.RULES,
    **integers.RULES,
    **loops.RULES,
    **masks.RULES,
    **mistaken.RULES,
    **padding.RULES,
    **products.RULES,
    **quantised.RULES,
    **ranges.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **resize.RULES,
    **sequences.RULES,
    **spectral.RULES,
}
_MAX_ROUNDS = 4  # a rule may make shapes known that another waits for


def rewrite(graph: Graph) -> None:
    """Bring a graph into a form that the importer takes; constants folded, nodes in order."""
    modernise(graph)
    graph.sort()
    expand_functions(graph)
    fold(graph)
    for _ in range(_MAX_ROUNDS):
        new = [_rewritten(graph, node) for node in graph.nodes]
        changed = any(made is not None for made in new)
        if not changed:
            break
        graph.settle_types()
        old = graph.nodes
        graph.nodes = list(chain.from_iterable([n] if made is None else made for n, made in zip(old, new, strict=True)))
        fold(graph)
    graph.sort()


def _rewritten(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    rule = RULES.get((domain, node.op_type))
    made = None if rule is None else rule(graph, node)
    for part in made or ():
        if part is not node and not part.name:
            part.name = node.name or node.output[0]
    return made
