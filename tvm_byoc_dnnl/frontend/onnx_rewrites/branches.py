"""Subgraphs whose nodes become nodes of the graph around them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import numpy_helper

from ..onnx_nodes import captured
from .builder import Builder
from .instantiate import renamed

__all__ = ["written_out"]


def written_out(b: Builder, body: onnx.GraphProto, values: Sequence[str]) -> list[str]:
    """Add the nodes of a subgraph whose inputs are ``values``; the names of its results."""
    prefix = b.graph.fresh(f"{b.old.output[0]}_step")
    read = {n for node in body.node for n in (*node.input, *captured(node))} | {o.name for o in body.output}
    made = dict.fromkeys(n for node in body.node for n in node.output)
    names = {n: n for n in read - made.keys()}  # of the graph around
    names.update(
        {t.name: b.graph.add_constant(f"{prefix}_{t.name}", numpy_helper.to_array(t)) for t in body.initializer}
    )
    names.update({name: b.graph.fresh(f"{prefix}_{name}") for name in made if name})
    names.update({inner.name: value for inner, value in zip(body.input, values, strict=True)})
    b.nodes += [renamed(node, names, {}, prefix) for node in body.node]
    return [names.get(o.name, f"{prefix}_{o.name}") for o in body.output]
