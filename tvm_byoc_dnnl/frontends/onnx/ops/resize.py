"""Every spelling of Resize and Upsample: Relax's operators, or a function of our own.

TVM takes the ratio of the sizes for the scale. That is another one where the scaled size is not whole: 4 by 0.6 is 2,
and ONNX keeps on stepping by 1/0.6. It also has no antialiasing and not every transformation of coordinates, and
resizes no other axes than the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..dim import Dim, Size
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, numbers
from .computed import asked
from .resize_axis import Axis, Way, axes_of, resized, scaled

_POLICIES = {"not_larger": min, "not_smaller": max}


@operator("Upsample")
def _upsample(e: Emit, node: Node) -> Any:
    """Scales are attributes before opset 9, and of height and width in opset 1."""
    data = node.needed(0)
    given = node.attr("scales")
    if given is None and node.opset < 7:
        given = [1.0, 1.0, node.attr("height_scale"), node.attr("width_scale")]
    scales = node.needed(1) if given is None else e.const(np.array(given, "float32"))
    how = Way(node.attr("mode", "nearest").replace("bilinear", "linear"), "asymmetric", "floor")
    return _resized(e, node, data, how, None, scales, None)


@operator("Resize", since=10)
def _resize(e: Emit, node: Node, data: Value) -> Any:
    way = Way.of(node)
    if node.opset < 11:
        return _resized(e, node, data, way, None, node.needed(1), None)
    roi, scales, sizes = (None if v is None or v.dims == (0,) else v for v in map(node.input, (1, 2, 3)))
    if (scales is None) == (sizes is None):
        raise node.wrong("has both scales and sizes, or none of them; expected one")
    return _resized(e, node, data, way, roi, scales, sizes)


def _resized(
    e: Emit, node: Node, data: Value, way: Way, roi: Value | None, scales: Value | None, sizes: Value | None
) -> Value:
    dims = data.sizes
    if dims is None:
        raise node.refused("has data of unknown rank")
    named = [int(a) % len(dims) for a in node.attr("axes") or range(len(dims))]
    if way.antialias and any(v is not None and v.known is None for v in (scales, sizes)):
        raise node.refused("has antialias=1, and scales or sizes that only a call knows")
    policy, roi = node.attr("keep_aspect_ratio_policy", "stretch"), roi if way.crops else None
    outs, factors, asked_scales = _sizes(e, node, [dims[a] for a in named], scales, sizes)
    if policy in _POLICIES and sizes is not None:
        outs, factors = _of_one_scale(node, policy, [dims[a] for a in named], outs)
    region: Any = None if roi is None else roi.known
    asked_region = roi if region is None else None
    if asked_region is not None:
        region = list(range(2 * len(named)))  # places in it
    axes = axes_of(way, named, dims, outs, factors, None if region is None else [*region])
    if asked_scales is not None or asked_region is not None:
        return resized(e, data, axes, way, asked_scales, asked_region)
    return _known(e, data, dims, axes, way) if axes else data


def _sizes(
    e: Emit, node: Node, lengths: Sequence[Size], scales: Value | None, sizes: Value | None
) -> tuple[list[Size], list[Any], Value | None]:
    """The new sizes, the scale of each axis or ``None`` for the ratio, and the scales that only a call knows."""
    names = [f"size{i}" for i in range(len(lengths))]
    if sizes is not None:
        outs: list[Any] = asked(e, sizes, names) if sizes.known is None else sizes.known.reshape(-1).tolist()
        if len(outs) != len(lengths):
            raise node.wrong(f"has {len(outs)} sizes for {len(lengths)} axes")
        return outs, [None] * len(outs), None
    assert scales is not None
    if scales.known is None:
        own = e.cast(Value(known=numbers(list(lengths)), dtype="int64"), "float32")
        asked_for = asked(e, e.floor(own * scales), names)
        return asked_for, list(range(len(names))), scales
    factors = scales.known.reshape(-1).astype("float32")
    if len(factors) != len(lengths):
        raise node.wrong(f"has {len(factors)} scales for {len(lengths)} axes")
    return [scaled(n, f) for n, f in zip(lengths, factors, strict=True)], [float(f) for f in factors], None


def _of_one_scale(
    node: Node, policy: str, lengths: Sequence[Size], outs: Sequence[Size]
) -> tuple[list[Size], list[Any]]:
    """Sizes that keep the ratio of the lengths."""
    if any(isinstance(n, Dim) for n in (*lengths, *outs)):
        raise node.refused("has keep_aspect_ratio_policy of open sizes")
    factor = _POLICIES[policy](out / max(1, n) for out, n in zip(outs, lengths, strict=True))  # type: ignore[operator]
    return [math.floor(n * factor + 0.5) for n in lengths], [factor] * len(outs)  # type: ignore[operator]


def _known(e: Emit, data: Value, dims: Sequence[Size], axes: Sequence[Axis], way: Way) -> Value:
    if any(a.out == 0 for a in axes):
        outs = {a.axis: a.out for a in axes}
        return e.value(relax.op.zeros(e.shape([outs.get(axis, n) for axis, n in enumerate(dims)]), data.dtype))
    if any(a.size == 0 for a in axes) and 0 not in [
        n for axis, n in enumerate(dims) if axis not in [a.axis for a in axes]
    ]:
        raise e.refused(f"resizes an axis without elements, of {data}; expected sizes of 1 or more")
    made = None
    if way.fits_tvm(dims, axes) and (way.mode == "nearest" or "float" in data.dtype):
        made = _by_relax(e, data, dims, axes, way)
    return made or resized(e, data, axes, way, None, None)


def _by_relax(e: Emit, data: Value, dims: Sequence[Size], axes: Sequence[Axis], way: Way) -> Value | None:
    function = {4: "resize2d", 5: "resize3d"}.get(len(dims), "")
    operator = getattr(relax.op.image, function, None)
    if operator is None:
        return None
    size = list(dims)
    for a in axes:
        size[a.axis] = a.out
    if len(dims) == 5 and any(isinstance(n, Dim) for n in (*dims[2:], *size[2:])):
        return None
    return e.call(
        operator,
        data,
        size=e.shape(size[2:]),
        roi=[0.0] * 2 * (len(dims) - 2),
        layout="NCHW" if len(dims) == 4 else "NCDHW",
        method="nearest_neighbor" if way.mode == "nearest" else way.mode,
        coordinate_transformation_mode=way.transform,
        rounding_method=way.rounding,
        cubic_alpha=way.cubic,
        cubic_exclude=int(way.exclude_outside),
        extrapolation_value=way.extrapolation,
    )
