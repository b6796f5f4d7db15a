"""Every spelling of Resize and Upsample in the one form that the importer reads: [data, "", scales or sizes]."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from ..onnx_nodes import attributes
from ..onnx_resize import Axis, Way, axes_of
from .builder import Builder
from .integers import dtype_of
from .resize_matrix import by_matrices

_BEFORE_11 = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_OF_AXES = ("axes", "keep_aspect_ratio_policy")


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
    way = Way.of(attrs)
    roi, scales, sizes = (name if name and graph.dims(name) != (0,) else "" for name in (*node.input[1:], "", "")[:3])
    roi = roi if way.crops else ""  # nobody else reads it
    if not way.crops and not _is_simple(graph, scales, attrs, way):
        shape, dtype = graph.static_shape(node.input[0]), dtype_of(graph, node.input[0])
        axes = None if shape is None else _axes(graph, node, shape, scales, sizes)
        if axes is not None and dtype is not None and 0 not in (*(shape or ()), *(a.out for a in axes)):
            assert shape is not None
            if not way.fits_tvm(shape, axes):
                return by_matrices(Builder(graph, node), len(shape), dtype, axes, way)
            if scales or any(name in attrs for name in _OF_AXES):
                full = list(shape)
                for a in axes:
                    full[a.axis] = a.out
                sizes = graph.add_constant(f"{node.output[0]}_sizes", np.array(full, "int64"))
                attrs, scales = {k: v for k, v in attrs.items() if k not in _OF_AXES}, ""
    new = _new(node, attrs, roi, scales, sizes)
    return None if list(new.input) == list(node.input) and len(new.attribute) == len(node.attribute) else [new]


def _is_simple(graph: Graph, scales: str, attrs: dict[str, Any], way: Way) -> bool:
    """Whether TVM resizes right whatever the shape is, which takes long to infer: height and width of whole times."""
    factors = graph.constant(scales) if scales and "axes" not in attrs else None
    if factors is None or not bool(((factors >= 1) & (factors == np.floor(factors))).all()):
        return False
    open_axes = [Axis(i, None, None, float(f)) for i, f in enumerate(factors) if f != 1]
    return way.fits_tvm([None] * len(factors), open_axes)


def _axes(graph: Graph, node: onnx.NodeProto, shape: tuple[int, ...], scales: str, sizes: str) -> list[Axis] | None:
    """The axes that are resized; ``None`` where the new sizes are not known."""
    factors, wanted = (graph.constant(name) if name else None for name in (scales, sizes))
    if factors is None and wanted is None:
        return None
    given = None if wanted is None else [int(n) for n in wanted]
    try:
        return axes_of(attributes(node), shape, None, factors, given)
    except ValueError as err:  # zip: more or fewer numbers than axes
        raise UnsupportedError(f"Resize (node `{node.name}`) has not one size or scale for each axis") from err


def _new(node: onnx.NodeProto, attrs: dict[str, Any], roi: str, scales: str, sizes: str) -> onnx.NodeProto:
    inputs = [node.input[0], roi, scales, *([sizes] if sizes else [])]
    return helper.make_node("Resize", inputs, node.output, name=node.name, **attrs)


RULES = {("", "Upsample"): _upsample, ("", "Resize"): _resize}
