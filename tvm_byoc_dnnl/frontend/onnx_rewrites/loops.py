"""`Scan`, and `Loop` with a constant number of rounds, written out: TVM's importer has no loops."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from ..onnx_graph import Graph
from .branches import written_out
from .builder import Builder, Nodes

_MOST_NODES = 4096  # that one loop may become


def _scan(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    body, scanned = b.attrs["body"], b.attrs.get("num_scan_inputs", 0)
    if graph.opset < 9 or not scanned:  # Scan-8 has a batch axis
        return None
    states, inputs = list(node.input[:-scanned]), list(node.input[-scanned:])
    ranks, axes = [graph.rank(x) for x in inputs], b.attrs.get("scan_input_axes", [0] * scanned)
    dims = [graph.dims(x) for x in inputs]
    lengths = {d[a] if d is not None else None for d, a in zip(dims, axes, strict=True)}
    (length,) = lengths if len(lengths) == 1 else (None,)
    if None in ranks or not _fits(length, body):
        return None
    assert isinstance(length, int)
    backward = b.attrs.get("scan_input_directions", [0] * scanned)
    steps: list[list[str]] = []
    for step in range(length):
        elements = []
        for x, axis, turned in zip(inputs, axes, backward, strict=True):
            index = graph.add_constant(f"{x}_index", np.array(length - 1 - step if turned else step))
            elements.append(b.add("Gather", [x, index], axis=axis))
        results = written_out(b, body, [*states, *elements])
        states, rest = results[: len(states)], results[len(states) :]
        steps.append(rest)
    outputs = len(body.output) - len(states)
    turned = b.attrs.get("scan_output_directions", [0] * outputs)
    return _finish(b, states, steps, b.attrs.get("scan_output_axes", [0] * outputs), turned)


def _loop(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    body = b.attrs["body"]
    count, condition = (graph.constant(n) if n else None for n in b.inputs[:2])
    runs_on = not node.input[1] or (condition is not None and condition.all())
    length = None if count is None else int(count.reshape(()))
    if not runs_on or not _always_goes_on(body) or not _fits(length, body):
        return None
    assert length is not None
    true = graph.add_constant(f"{node.output[0]}_goes_on", np.array(True))
    states, steps = list(node.input[2:]), []
    for step in range(length):
        number = graph.add_constant(f"{node.output[0]}_round", np.array(step))
        results = written_out(b, body, [number, true, *states])
        states, rest = results[1 : 1 + len(states)], results[1 + len(states) :]
        steps.append(rest)
    outputs = len(body.output) - 1 - len(states)
    return _finish(b, states, steps, [0] * outputs, [0] * outputs)


def _fits(length: object, body: onnx.GraphProto) -> bool:
    return isinstance(length, int) and length > 0 and length * len(body.node) <= _MOST_NODES


def _always_goes_on(body: onnx.GraphProto) -> bool:
    """Whether the condition that a round returns is the one that it got, or simply true."""
    name, given = body.output[0].name, body.input[1].name
    if name == given:
        return True
    maker = next((n for n in body.node if name in n.output), None)
    if maker is not None and maker.op_type == "Constant":
        return bool(numpy_helper.to_array(maker.attribute[0].t).all())
    return maker is not None and maker.op_type == "Identity" and maker.input[0] == given


def _finish(b: Builder, states: list[str], steps: list[list[str]], axes: list[int], turned: list[int]) -> Nodes:
    """The last states, and the results of the rounds, stacked."""
    for state, output in zip(states, b.old.output, strict=False):
        if output:
            b.add("Identity", [state], output)
    for i, output in enumerate(b.old.output[len(states) :]):
        parts = [step[i] for step in steps][:: -1 if turned[i] else 1]
        if not output:
            continue
        if b.graph.opset >= 13:
            parts = [b.add("Unsqueeze", [part, b.ints([axes[i]])]) for part in parts]
        else:
            parts = [b.add("Unsqueeze", [part], axes=[axes[i]]) for part in parts]
        b.add("Concat", parts, output, axis=axes[i])
    return b.nodes


RULES = {("", "Loop"): _loop, ("", "Scan"): _scan}
