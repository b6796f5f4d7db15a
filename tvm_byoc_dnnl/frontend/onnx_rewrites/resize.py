"""Every spelling of Resize and Upsample in the one form that the importer reads: [data, "", scales or sizes]."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from ..onnx_nodes import attributes
from .resize_matrix import by_matrices

_BEFORE_11 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_KEPT = (
    *("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "exclude_outside"),
    "extrapolation_value",
)


def _upsample(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    attrs = attributes(node)
    if "scales" in attrs:
        scales = graph.add_constant(f"{node.output[0]}_scales", np.array(attrs["scales"], "float32"))
    else:
        scales = node.input[1]
    kept = {"mode": attrs.get("mode", "nearest"), **_BEFORE_11}
    return [helper.make_node("Resize", [node.input[0], "", scales], node.output, name=node.name, **kept)]


def _resize(graph: Graph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    attrs = attributes(node)
    if len(node.input) == 2 and graph.opset < 11:
        return [_new(node, {**attrs, **_BEFORE_11}, "", node.input[1], "")]
    made = by_matrices(graph, node)
    if made is not None:
        return made
    if attrs.get("antialias"):
        raise UnsupportedError(f"no Relax equivalent for Resize with antialias=1 (node `{node.name}`)")
    roi, scales, sizes = (*node.input[1:], "", "", "")[:3]
    empty = [name for name in (roi, scales, sizes) if name and graph.dims(name) == (0,)]
    crops = attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    unread = bool(roi) and not crops  # the importer would compute with it
    axes, policy = attrs.get("axes"), attrs.get("keep_aspect_ratio_policy", "stretch")
    if not empty and not unread and axes is None and policy == "stretch":
        return None
    if crops and axes is not None:
        raise UnsupportedError(f"no Relax equivalent for Resize that crops by axes (node `{node.name}`)")
    roi, scales, sizes = ("" if name in empty else name for name in (roi if crops else "", scales, sizes))
    if axes is not None or policy != "stretch":
        sizes = _full_sizes(graph, node, scales, sizes, axes, policy)
        scales = ""
    return [_new(node, attrs, roi, scales, sizes)]


def _new(node: onnx.NodeProto, attrs: dict[str, Any], roi: str, scales: str, sizes: str) -> onnx.NodeProto:
    kept = {k: v for k, v in attrs.items() if k in _KEPT}
    inputs = [node.input[0], roi, scales, *([sizes] if sizes else [])]
    return helper.make_node("Resize", inputs, node.output, name=node.name, **kept)


def _full_sizes(graph: Graph, node: onnx.NodeProto, scales: str, sizes: str, axes: Any, policy: str) -> str:
    """Sizes of every axis, from sizes or scales of some."""
    shape = graph.static_shape(node.input[0])
    given = graph.constant(sizes or scales)
    if shape is None or given is None:
        raise UnsupportedError(
            f"Resize by axes or with keep_aspect_ratio_policy `{policy}` needs static sizes (node `{node.name}`); "
            "give `shapes`"
        )
    axes = [int(a) % len(shape) for a in (range(len(shape)) if axes is None else axes)]
    full = list(shape)
    if sizes:
        ratios = [size / shape[axis] for axis, size in zip(axes, given.tolist(), strict=True)]
        choose = {"not_larger": min, "not_smaller": max}.get(policy)
        for axis, size in zip(axes, given.tolist(), strict=True):
            full[axis] = size if choose is None else math.floor(shape[axis] * choose(ratios) + 0.5)
    else:
        for axis, scale in zip(axes, given.tolist(), strict=True):
            full[axis] = math.floor(shape[axis] * scale)
    return graph.add_constant(f"{node.output[0]}_sizes", np.array(full, "int64"))


RULES = {("", "Upsample"): _upsample, ("", "Resize"): _resize}
