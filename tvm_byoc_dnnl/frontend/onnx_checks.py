"""Models that the ONNX standard forbids, but TVM's importer would accept, are refused, as ONNX Runtime refuses them.

Neither ONNX's checker nor its strict shape inference is used, since both refuse models that ONNX Runtime runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import onnx

from ..errors import InputError
from .onnx_graph import Graph
from .onnx_nodes import attributes, is_standard
from .onnx_rewrites.fold import take_constants

__all__ = ["check_model"]

_CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose", "QLinearConv")
_POOLS = ("AveragePool", "LpPool", "MaxPool", "MaxUnpool")
_WINDOWS = frozenset({*_CONVOLUTIONS, *_POOLS})
#: types of an attribute that is a graph; old models do not say
_MAYBE_GRAPH = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.UNDEFINED)
#: where the weights are among the inputs
_WEIGHTS = {"QLinearConv": 3}
#: operators whose result has as many dims as the input with the most
_OF_INPUTS_RANK = frozenset(
    {
        *_CONVOLUTIONS,
        *_POOLS,
        *("Add", "BatchNormalization", "Cast", "Clip", "Concat", "Div", "Dropout", "Elu", "GlobalAveragePool"),
        *("GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LRN", "LeakyRelu", "Mul"),
        *("PRelu", "Pad", "Relu", "Resize", "Sigmoid", "Softmax", "Softplus", "Sub", "Sum", "Tanh", "Transpose"),
    }
)
#: attribute → its least value, numbers per spatial axis
_WINDOW = {"kernel_shape": (1, 1), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 2)}


def check_model(graph: Graph) -> None:
    """Raise an `InputError` for a model that the standard forbids."""
    take_constants(graph)
    graph.infer_shapes()
    ranks = _Ranks(graph)
    for node in _with_branches(graph.nodes):
        if node.op_type in _WINDOWS and is_standard(node):
            rank = _rank_of_weights(graph, node)
            for problem in _problems(graph, node, ranks.of(node.input[0]) if rank is None else rank):
                raise InputError(f"{node.op_type} (node `{node.name or node.output[0]}`) {problem}")


def _with_branches(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type in _MAYBE_GRAPH:
                yield from _with_branches(attribute.g.node)


def _rank_of_weights(graph: Graph, node: onnx.NodeProto) -> int | None:
    """The rank of a convolution's constant weights, which is that of its input and of its result, too."""
    if node.op_type not in _CONVOLUTIONS:
        return None
    position = _WEIGHTS.get(node.op_type, 1)
    weights = node.input[position] if position < len(node.input) else ""
    return graph.rank(weights) if graph.is_constant(weights) else None


class _Ranks:
    """Numbers of dims: of what operators compute that keep it, without ONNX's inference, which takes its time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @cached_property
    def _known(self) -> dict[str, int]:
        inputs = [(i.name, i.type.tensor_type) for i in self._graph.inputs]
        known = {name: len(tensor.shape.dim) for name, tensor in inputs if tensor.HasField("shape")}
        for node in self._graph.nodes:
            rank = self._of_result(node, known) if is_standard(node) else None
            if rank is not None:
                known[node.output[0]] = rank
        return known

    def _of_result(self, node: onnx.NodeProto, known: dict[str, int]) -> int | None:
        rank = _rank_of_weights(self._graph, node)
        if rank is not None:
            return rank
        if node.op_type in _OF_INPUTS_RANK:
            ranks = [self._easily(name, known) for name in node.input if name]
            return max((rank for rank in ranks if rank is not None), default=None) if None not in ranks else None
        return self._of_view(node, known) if node.op_type in ("Reshape", "Unsqueeze") else None

    def _of_view(self, node: onnx.NodeProto, known: dict[str, int]) -> int | None:
        """The rank of a Reshape, or an Unsqueeze, whose shape or axes are constant."""
        if len(node.input) > 1:
            dims = self._graph.static_shape(node.input[1]) if self._graph.is_constant(node.input[1]) else None
            count = dims[0] if dims is not None and len(dims) == 1 else None
        else:
            count = next((len(a.ints) for a in node.attribute if a.name in ("axes", "shape")), None)
        if node.op_type == "Reshape" or count is None:
            return count
        rank = self._easily(node.input[0], known)
        return None if rank is None else rank + count

    def _easily(self, name: str, known: dict[str, int]) -> int | None:
        return self._graph.rank(name) if self._graph.is_constant(name) else known.get(name)

    def of(self, name: str) -> int | None:
        """The rank of a value, ``None`` when unknown."""
        rank = self._easily(name, self._known)
        return self._graph.rank(name) if rank is None else rank


def _problems(graph: Graph, node: onnx.NodeProto, rank: int | None) -> Iterator[str]:
    attrs = attributes(node)
    kernel = attrs.get("kernel_shape")
    if kernel is None and node.op_type in _POOLS:
        yield "has no attribute kernel_shape"
        return
    spatial = rank - 2 if rank is not None else None if kernel is None else len(kernel)
    for name, (least, per_axis) in _WINDOW.items():
        values = attrs.get(name)
        if values is None:
            continue
        if min(values, default=least) < least:
            yield f"has {name} {values}; expected numbers from {least} on"
        if spatial is not None and len(values) != per_axis * spatial:
            yield f"has {name} {values}; expected {per_axis * spatial} numbers for {spatial} spatial axes"
    if kernel is not None and node.op_type in _POOLS:
        yield from _empty_windows(attrs, kernel)
    elif kernel is not None:
        weights = graph.dims(node.input[_WEIGHTS.get(node.op_type, 1)])
        wanted = None if weights is None else weights[2:]
        if wanted is not None and any(isinstance(w, int) and w != k for w, k in zip(wanted, kernel, strict=False)):
            yield f"has kernel_shape {kernel}; its weights have {list(wanted)}"


def _empty_windows(attrs: dict[str, Any], kernel: list[int]) -> Iterator[str]:
    if attrs.get("auto_pad", "NOTSET") != "NOTSET":
        return  # pads are not looked at
    pads, dilations = attrs.get("pads", []), attrs.get("dilations", [1] * len(kernel))
    for pad, size, step in zip(pads, 2 * kernel, 2 * dilations, strict=False):
        if pad >= (size - 1) * step + 1:
            yield f"has pads {pads} for windows of {kernel}; expected less, or a window would see padding alone"
