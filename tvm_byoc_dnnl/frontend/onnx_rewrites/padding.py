"""``auto_pad`` and ``output_shape`` made explicit, and pooling results without readers dropped.

The importer pads the data of a convolution in a function of its own, rounds SAME_LOWER pooling down and does not
look at ``output_shape``; with known sizes all of them are just ``pads``.
"""

from __future__ import annotations

import math
from typing import Any

import onnx
from onnx import helper

from ..onnx_graph import Graph
from ..onnx_nodes import attributes

_SAME = ("SAME_UPPER", "SAME_LOWER")


def _with(node: onnx.NodeProto, drop: tuple[str, ...], **attrs: Any) -> onnx.NodeProto:
    """A copy of a node with some attributes dropped and others set."""
    new = helper.make_node(node.op_type, node.input, node.output, name=node.name, domain=node.domain, **attrs)
    new.attribute.extend(a for a in node.attribute if a.name not in attrs and a.name not in drop)
    return new


def _kernel(graph: Graph, node: onnx.NodeProto, attrs: dict[str, Any]) -> list[int] | None:
    """Sizes of the kernel, when they are known."""
    kernel = attrs.get("kernel_shape")
    if kernel is None and len(node.input) > 1:
        weight = graph.dims(node.input[1])
        kernel = None if weight is None else weight[2:]
    return None if kernel is None or not all(isinstance(d, int) for d in kernel) else list(kernel)


def _spatial(graph: Graph, node: onnx.NodeProto, attrs: dict[str, Any]) -> tuple[tuple[int, ...], list[int]] | None:
    """Sizes of the data's spatial axes and of the kernel, when both are known."""
    dims, kernel = graph.dims(node.input[0]), _kernel(graph, node, attrs)
    if dims is None or kernel is None or not all(isinstance(d, int) for d in dims[2:]):
        return None
    return dims[2:], kernel


def _halves(total: list[int], upper: bool) -> list[int]:
    """Pads as begin... end...; for SAME_UPPER the odd one is added at the end."""
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return small + large if upper else large + small


def _auto_pad(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    attrs = attributes(node)
    kernel = _kernel(graph, node, attrs) if attrs.get("auto_pad") in _SAME else None
    if kernel is None:
        return None
    ones = [1] * len(kernel)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    known = _spatial(graph, node, attrs)
    if known is None and any(s != 1 for s in strides):
        return _rounded_up(node, attrs, kernel)
    sizes = ones if known is None else known[0]  # with a stride of 1 every size gives the same pads
    total = [
        max((math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    return [_with(node, ("auto_pad",), pads=_halves(total, attrs["auto_pad"] == "SAME_UPPER"))]


def _rounded_up(node: onnx.NodeProto, attrs: dict[str, Any], kernel: list[int]) -> list[onnx.NodeProto] | None:
    """A pooling of open sizes whose windows of two do not overlap: where a size is odd, the last one is cut."""
    counts_pads = node.op_type == "AveragePool" and attrs.get("count_include_pad", 0)
    upper = attrs["auto_pad"] == "SAME_UPPER"  # SAME_LOWER would cut the first window
    if node.op_type == "Conv" or counts_pads or not upper or any(k != 2 for k in kernel):
        return None
    if attrs.get("strides") != kernel or any(d != 1 for d in attrs.get("dilations", ())):
        return None
    return [_with(node, ("auto_pad",), pads=[0] * 2 * len(kernel), ceil_mode=1)]


def _pool(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    padded = _auto_pad(graph, node)
    if len(node.output) > 1 and not graph.is_read(node.output[1]):
        slim = onnx.NodeProto()
        slim.CopyFrom(node if padded is None else padded[0])
        del slim.output[1:]
        return [slim]
    return padded


def _output_shape(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    attrs = attributes(node)
    known = _spatial(graph, node, attrs) if "output_shape" in attrs else None
    if known is None:
        return None
    sizes, kernel = known
    ones = [1] * len(sizes)
    strides, dilations = attrs.get("strides", ones), attrs.get("dilations", ones)
    extra = list(attrs.get("output_padding", [0] * len(sizes)))
    wanted = list(attrs["output_shape"])[-len(sizes) :]
    total = []
    for i, (size, k, s, d) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        surplus = s * (size - 1) + extra[i] + (k - 1) * d + 1 - wanted[i]
        extra[i] -= min(surplus, 0)  # longer than the full result: more output padding
        total.append(max(surplus, 0))
    pads = _halves(total, attrs.get("auto_pad") == "SAME_UPPER")
    return [_with(node, ("auto_pad", "output_shape"), pads=pads, output_padding=extra)]


RULES = {
    ("", "Conv"): _auto_pad,
    ("", "MaxPool"): _pool,
    ("", "AveragePool"): _auto_pad,
    ("", "ConvTranspose"): _output_shape,
}
