"""Attributes that later became inputs, or the other way round, where the importer reads the wrong one."""

from __future__ import annotations

import numpy as np
import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes
from .integers import dtype_of


def _slice(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    """Before opset 10 the bounds are attributes; the importer only reads inputs. TVM takes none that cross."""
    b = Builder(graph, node)
    if "starts" not in b.attrs:
        return _crossed(b)
    starts, ends = b.attrs["starts"], b.attrs["ends"]
    axes = b.attrs.get("axes", list(range(len(starts))))
    b.add("Slice", [node.input[0], *(b.ints(list(v)) for v in (starts, ends, axes))], node.output[0])
    return b.nodes


def _crossed(b: Builder) -> Nodes | None:
    """Nothing, where a slice ends in front of its start."""
    starts, ends, steps = (b.graph.constant(name) if name else None for name in (*b.inputs[1:3], b.inputs[4]))
    if starts is None or ends is None or (steps is None and b.inputs[4]):
        return None
    forward = np.ones_like(starts) if steps is None else np.sign(steps)
    if not (((starts < 0) == (ends < 0)) & ((ends - starts) * forward < 0)).any():
        return None
    shape, dtype = b.graph.static_shape(b.old.output[0]), dtype_of(b.graph, b.old.input[0])
    if shape is None or dtype is None or 0 not in shape:
        return None
    b.add("Identity", [b.graph.add_constant(f"{b.old.output[0]}_nothing", np.zeros(shape, dtype))], b.old.output[0])
    return b.nodes


RULES = {("", "Slice"): _slice}
