"""Convolutions, each straight into Relax's operator with its bias behind it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm import relax, te, tirx

from ..dim import Dim, product
from ..emit import Emit, common
from ..table import operator
from ..value import Node, Value
from .computed import computed, wide_dtype
from .moving import padded
from .pools import Windows, halves

#: by the number of spatial axes
_LAYOUTS = {1: "W", 2: "HW", 3: "DHW"}


def _called(
    e: Emit, kind: str, data: Value, weight: Value, strides: Any, pads: Any, dilations: Any, groups: int, **more: Any
) -> Value:
    """A call of Relax's convolution, or of its ``kind``."""
    spatial = _LAYOUTS[len(strides)]
    return e.call(
        getattr(relax.op.nn, f"conv{len(spatial)}d{kind}"),
        data,
        weight,
        strides=strides,
        padding=pads,
        dilation=dilations,
        groups=groups,
        data_layout=f"NC{spatial}",
        kernel_layout=f"{'IO' if kind else 'OI'}{spatial}",
        **more,
    )


def _windowed(e: Emit, node: Node, weight: Value) -> tuple[Value, list[int]]:
    """The weights, and the sizes of their windows, which must be known: by the weights, or by `kernel_shape`."""
    if weight.dims is None or len(weight.sizes) - 2 not in _LAYOUTS:
        raise node.refused(f"has weights of {weight}; expected 1, 2 or 3 spatial axes")
    weight = e.agree(weight, [*weight.sizes[:2], *(node.attr("kernel_shape") or weight.sizes[2:])])
    kernel = [k for k in weight.sizes[2:] if isinstance(k, int)]
    if len(kernel) < len(weight.sizes) - 2:
        raise node.refused(f"has weights of {weight} with windows of open sizes; fix them, or add `kernel_shape`")
    return weight, kernel


def _biased(e: Emit, made: Value, bias: Value | None, rank: int) -> Value:
    return made if bias is None else made + e.call(relax.op.reshape, bias, shape=[1, -1, *[1] * rank])


@operator("Conv")
def convolution(e: Emit, node: Node, data: Value, weight: Value, bias: Value | None = None) -> Value:
    weight, kernel = _windowed(e, node, weight)
    declared, groups, rank = Windows.of(node, data, kernel), node.attr("group", 1), len(kernel)
    channels = common([weight.sizes[1] * groups, data.sizes[1]])
    data = e.agree(data, [data.sizes[0], channels, *data.sizes[2:]])
    weight = e.agree(weight, [weight.sizes[0], channels // groups, *kernel])
    windows = declared
    if not windows.is_fixed:  # SAME of open sizes: Relax's operators have pads that are numbers
        data = padded(e, data, [0, 0, *windows.before], [0, 0, *windows.after])
        windows = replace(windows, before=[0] * rank, after=[0] * rank)
    made = _called(e, "", data, weight, windows.strides, windows.pads, windows.dilations, groups)
    if not declared.is_fixed and made.dims is not None:
        made = e.agree(made, [*made.sizes[:2], *declared.counts])
    return _biased(e, made, bias, rank)


@operator("ConvTranspose")
def _conv_transpose(e: Emit, node: Node, data: Value, weight: Value, bias: Value | None = None) -> Any:
    """Pads cut the full result; what ``output_padding`` has beyond them is zeros."""
    weight, kernel = _windowed(e, node, weight)
    rank = len(kernel)
    ones, zeros = [1] * rank, [0] * rank
    usual = (("strides", ones), ("dilations", ones), ("output_padding", zeros), ("pads", zeros * 2))
    strides, dilations, extra, pads = (list(node.attr(name) or default) for name, default in usual)
    kind, wanted = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if wanted is None and kind in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(data.sizes[2:], strides, strict=True)]
    elif wanted is None and kind == "VALID":
        pads = [0] * 2 * rank
    if wanted is not None:
        every = zip(data.sizes[2:], strides, spans, extra, list(wanted)[-rank:], strict=True)
        surplus: list[Any] = [s * (n - 1) + x + k - w for n, s, k, x, w in every]
        if any(isinstance(t, Dim) for t in surplus):
            raise node.refused("has output_shape, and its pads depend on the open sizes of its data")
        extra = [x - min(t, 0) for x, t in zip(extra, surplus, strict=True)]
        total = [max(t, 0) for t in surplus]
        pads = halves(total, kind == "SAME_UPPER", total)
    beyond = [0] * rank
    for axis, (size, stride) in enumerate(zip(extra, strides, strict=True)):
        if size >= stride:  # as much as Relax's operator takes; fewer pads behind, and zeros
            cut = min(size, pads[rank + axis])
            pads[rank + axis] -= cut
            extra[axis], beyond[axis] = 0, size - cut
    groups = node.attr("group", 1)
    made = _called(e, "_transpose", data, weight, strides, pads, dilations, groups, output_padding=extra)
    if any(beyond):
        made = padded(e, made, [0] * (2 + rank), [0, 0, *beyond])
    return _biased(e, made, bias, rank)


@operator("DeformConv", since=19)
def _deform_conv(
    e: Emit, node: Node, data: Value, weight: Value, offset: Value, bias: Any = None, mask: Any = None
) -> Any:
    """The sampled windows as columns, and their product with the weights."""
    if weight.shape is None or len(weight.shape) != 4:
        raise node.refused(f"has weights of {weight}; expected two spatial axes, and known sizes")
    node.unused("kernel_shape")
    windows = Windows.of(node, data, weight.shape[2:])
    groups, parts = node.attr("group", 1), node.attr("offset_group", 1)
    out, inner, *kernel = weight.shape
    sizes = zip((data.sizes[0], *windows.counts), (offset.sizes[0], *offset.sizes[2:]), strict=True)
    batch, *counts = (common(pair) for pair in sizes)
    data = e.agree(data, [batch, *data.sizes[1:]])
    taps, count = math.prod(kernel), product(counts)
    sampled = [e.agree(offset, [batch, 2 * parts * taps, *counts])]
    if mask is not None:
        sampled.append(e.agree(mask, [batch, parts * taps, *counts]))
    compute = _columns(windows, kernel, parts, data.dtype)
    columns = computed(e, "deformed", compute, data, windows.before, counts, *sampled)
    wide = e.reshape(columns, [batch, groups, inner * taps, count])
    rows = e.reshape(weight, [groups, out // groups, inner * taps])
    made = e.reshape(e.matmul(rows, wide), [batch, out, *counts])
    return _biased(e, made, bias, 2)


def _columns(windows: Windows, kernel: list[int], parts: int, dtype: str) -> Any:
    """[batch, channel, tap, height, width]: the data between its pixels, where the offsets say."""
    wide = wide_dtype(dtype)

    def compute(x: Any, before: Any, counts: Any, offset: Any, *masks: Any) -> Any:
        height, width = x.shape[2:]
        of_part = x.shape[1] // parts

        def element(n: Any, c: Any, tap: Any, i: Any, j: Any) -> Any:
            place = (c // of_part) * math.prod(kernel) + tap
            taps, starts = (tap // kernel[1], tap % kernel[1]), (i, j)
            y, z = (
                (starts[a] * windows.strides[a] - before[a] + taps[a] * windows.dilations[a]).astype(wide)
                + offset(n, 2 * place + a, i, j).astype(wide)
                for a in range(2)
            )
            top, left = tirx.floor(y), tirx.floor(z)

            def corner(dy: int, dz: int) -> Any:
                row, column = top.astype("int64") + dy, left.astype("int64") + dz
                inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
                part = (y - top if dy else 1.0 - (y - top)) * (z - left if dz else 1.0 - (z - left))
                return tirx.if_then_else(inside, x(n, c, row, column).astype(wide) * part, tirx.const(0.0, wide))

            value = corner(0, 0) + corner(0, 1) + corner(1, 0) + corner(1, 1)
            for mask in masks:
                value = value * mask(n, place, i, j).astype(wide)
            return value.astype(dtype)

        return te.compute((*x.shape[:2], math.prod(kernel), *counts), element, name="deformed")

    return compute


@operator("Col2Im", since=18)
def _col2im(e: Emit, node: Node, data: Value) -> Any:
    """The sum of all columns' elements that a pixel was copied to."""
    image, kernel = node.ints(1, "image_shape"), node.ints(2, "block_shape")
    if data.dims is None or image is None or kernel is None or any(isinstance(k, Dim) for k in kernel):
        raise node.refused("has data of unknown rank, or blocks of open sizes")
    rank, taps = len(image), math.prod(kernel)
    strides, dilations = (list(node.attr(name) or [1] * rank) for name in ("strides", "dilations"))
    pads = list(node.attr("pads") or [0] * 2 * rank)
    windows = Windows(list(image), kernel, strides, dilations, pads[:rank], pads[rank:])
    channels = data.sizes[1] // taps
    full = e.reshape(data, [data.sizes[0], channels, *kernel, *windows.counts])

    def compute(x: Any, sizes: Any) -> Any:
        axes = [te.reduce_axis((0, k), f"tap{i}") for i, k in enumerate(kernel)]
        counts = x.shape[2 + rank :]

        def element(n: Any, c: Any, *pixel: Any) -> Any:
            places = [p + pads[i] - axes[i] * dilations[i] for i, p in enumerate(pixel)]
            windows = [tirx.floordiv(p, s) for p, s in zip(places, strides, strict=True)]
            fits = [
                test
                for p, s, w, count in zip(places, strides, windows, counts, strict=True)
                for test in (tirx.floormod(p, s) == 0, w >= 0, w < count)
            ]
            value = tirx.if_then_else(tirx.all(*fits), x(n, c, *axes, *windows), tirx.const(0, x.dtype))
            return te.sum(value, axis=axes)

        return te.compute((*x.shape[:2], *sizes), element, name="col2im")

    return computed(e, "col2im", compute, full, list(image))
