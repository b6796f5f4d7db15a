"""Rewrites of an ONNX graph before TVM's importer reads it, one concept per file.

A rule is ``rule(graph, node) -> list of nodes | None`` for one operator: the nodes that do the same with what
the importer knows, or ``None`` to leave the node alone. The last node made must produce the outputs of the old.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import onnx

from ...errors import ByocError, InputError, UnsupportedError
from ..onnx_graph import Graph
from . import (
    arrangement,
    attributes,
    block_quantised,
    branches,
    casts,
    contrib,
    detection,
    einsum,
    indexing,
    integers,
    loops,
    mistaken,
    ordering,
    padding,
    products,
    quantised,
    ranges,
    reductions,
    resize,
    sequences,
    spectral,
)
from .builder import SETTLED
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
    **branches.RULES,
    **casts.RULES,
    **contrib.RULES,
    **detection.RULES,
    **einsum.RULES,
    **indexing.RULES,
    **integers.RULES,
    **loops.RULES,
    **mistaken.RULES,
    **ordering.RULES,
    **padding.RULES,
    **products.RULES,
    **quantised.RULES,
    **ranges.RULES,
    **reductions.RULES,
    **resize.RULES,
    **sequences.RULES,
    **spectral.RULES,
}
# Rules that apply when no other does.
_LAST: dict[tuple[str, str], Rule] = {("", "If"): branches.separated}
_MAX_ROUNDS = 64  # a rule may make shapes known that another waits for; subgraphs are nested less deeply


def rewrite(graph: Graph) -> None:
    """Bring a graph into a form that the importer takes; constants folded, nodes in order."""
    modernise(graph)
    graph.sort()
    for _ in range(_MAX_ROUNDS):
        expand_functions(graph)
        fold(graph)
        if not (_apply(graph, RULES) or _apply(graph, _LAST)):
            break
    else:
        raise UnsupportedError(
            f"the model's nodes still change after {_MAX_ROUNDS} rounds of rewriting: its subgraphs are nested too "
            "deeply; write them as nodes of the graph around them"
        )
    graph.sort()


def _apply(graph: Graph, rules: dict[tuple[str, str], Rule]) -> bool:
    """Put what the rules make in the places of nodes; whether they made anything."""
    new = [_rewritten(graph, node, rules) for node in graph.nodes]
    if all(made is None for made in new):
        return False
    graph.settle_types()
    old = graph.nodes
    graph.nodes = list(chain.from_iterable([n] if made is None else made for n, made in zip(old, new, strict=True)))
    return True


def _ruled(rule: Rule, graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    try:
        return rule(graph, node)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ByocError):
            raise
        raise InputError(
            f"{node.op_type} (node `{node.name or node.output[0]}`) is not as ONNX defines it: "
            f"{type(error).__name__}: {error}"
        ) from error


def _rewritten(graph: Graph, node: onnx.NodeProto, rules: dict[tuple[str, str], Rule]) -> list[onnx.NodeProto] | None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    rule = None if node.doc_string == SETTLED else rules.get((domain, node.op_type))
    made = None if rule is None else _ruled(rule, graph, node)
    for part in made or ():
        if part is not node and not part.name:
            part.name = node.name or node.output[0]
    return made
