"""What is done to an ONNX graph before TVM's importer sees it, one concept per file."""

from __future__ import annotations

from ..onnx_graph import Graph
from .fold import fold

__all__ = ["rewrite"]


def rewrite(graph: Graph) -> None:
    """Apply every rewrite, in order."""
    graph.sort()
    fold(graph)
    graph.sort()
