"""The calls into the native library: make a module of a graph, ask whether oneDNN can run it, and how."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ...lower.graph import PortableGraph, evaluate
from ...namespace import Description
from ...verdict import Reject
from . import library

__all__ = ["create_module", "describe", "measure_candidates", "probe", "probe_fused", "run"]

#: stand, in turn, for every symbolic dim when a graph of unknown sizes is probed: 8 becomes 0 after a few strides
_SAMPLE_DIMS = (64, 8)


def create_module(graph: PortableGraph) -> tvm.runtime.Module:
    """The runtime module that runs ``graph``."""
    return library.call("ModuleCreate", graph.name, graph.to_json(), [c.name for c in graph.constants])


def run(graph: PortableGraph, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a graph without constants and symbols, computed now."""
    module = create_module(graph)
    module[f"__init_{graph.name}"]([])
    shapes = [[evaluate(d, {}) for d in graph.tensors[t].shape] for t in graph.outputs]
    outputs = [np.empty(shape, graph.tensors[t].dtype) for shape, t in zip(shapes, graph.outputs, strict=True)]
    module[graph.name](*map(tvm_ffi.from_dlpack, [*arguments, *outputs]))
    return outputs


def probe(graph: PortableGraph) -> Reject | None:
    """Whether oneDNN has a real implementation of every node on this machine.

    Without oneDNN nothing can be asked and every graph passes: the lowering alone decides, which is
    enough to partition and to explain, not to run.
    """
    if not library.available():
        return None
    symbols = graph.symbols
    samples = [graph.specialize(dict.fromkeys(symbols, size)) for size in _SAMPLE_DIMS] if symbols else [graph]
    for sample in samples:
        reason, _ = _probe(sample.to_json(anonymous=True))
        if not reason:
            return None
    return Reject(reason)


def probe_fused(graph: PortableGraph) -> Reject | None:
    """Whether oneDNN has an implementation of the graph's only node together with all of its post-ops."""
    if not library.available():
        return None
    reason, fused = _probe(graph.to_json(anonymous=True))
    node = graph.nodes[-1]
    if reason:
        return Reject(reason)
    if fused >= len(node.post_ops):
        return None
    op = node.post_ops[fused]
    operand = "" if op.input is None else f" of {list(graph.tensors[node.inputs[op.input]].shape)}"
    return Reject(f"{node.kind} without an implementation that has the post-op {op.alg}{operand}")


def describe(graph: PortableGraph) -> Description | None:
    """oneDNN's implementation for each node, and the number of reorders between them; symbols get samples."""
    if not library.available():
        return None
    answer = _ask("Probe", graph.to_json())
    nodes = answer.get("nodes", [])
    return Description([node["impl"] for node in nodes], answer["reorders"]) if nodes else None


def measure_candidates(graph: PortableGraph, rounds: int) -> dict[str, Any]:
    """The times of the implementations and layouts among which oneDNN's engine chooses for a static graph."""
    return json.loads(library.call("MeasureCandidates", graph.to_json(anonymous=True), rounds))


@functools.lru_cache(maxsize=8192)
def _probe(document: str) -> tuple[str, int]:
    """Why a graph cannot run, and the number of post-ops that its last node has in one primitive."""
    answer = _ask("ProbeNodes", document)
    return (
        ("", int(answer["nodes"][-1]["post_ops"]) if answer["nodes"] else 0) if answer["ok"] else (answer["reason"], 0)
    )


def _ask(function: str, document: str) -> dict[str, Any]:
    return json.loads(library.call(function, document))
