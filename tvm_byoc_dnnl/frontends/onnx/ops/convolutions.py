"""Convolutions, each straight into Relax's operator with its bias behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tvm import relax, te, tirx

from ..dim import Dim, Size, max_of, min_of, product
from ..emit import Emit, common
from ..table import operator
from ..value import Node, Value
from .computed import computed, wide_dtype
from .moving import padded
from .pools import Windows, are_inside, halves
from .shapes import ints_of

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


def _windowed(e: Emit, node: Node, weight: Value) -> tuple[Value, list[Size]]:
    """The weights, and the sizes of their windows, which `kernel_shape` may say as well."""
    if weight.dims is None or len(weight.sizes) - 2 not in _LAYOUTS:
        raise node.refused(f"has weights of {weight}; expected 1, 2 or 3 spatial axes")
    weight = e.agree(weight, [*weight.sizes[:2], *(node.attr("kernel_shape") or weight.sizes[2:])])
    return weight, list(weight.sizes[2:])


def _are_open(sizes: Iterable[Size]) -> bool:
    return any(isinstance(size, Dim) for size in sizes)


def _biased(e: Emit, made: Value, bias: Value | None, rank: int) -> Value:
    return made if bias is None else made + e.call(relax.op.reshape, bias, shape=[1, -1, *[1] * rank])


@operator("Conv")
def convolution(e: Emit, node: Node, data: Value, weight: Value, bias: Value | None = None) -> Value:
    weight, kernel = _windowed(e, node, weight)
    declared, groups, rank = Windows.of(node, data, kernel), node.attr("group", 1), len(kernel)
    channels = common([weight.sizes[1] * groups, data.sizes[1]])
    data = e.agree(data, [data.sizes[0], channels, *data.sizes[2:]])
    weight = e.agree(weight, [weight.sizes[0], channels // groups, *kernel])
    if _are_open(kernel):
        of_windows = _products(declared, groups, data.dtype)
        made = computed(e, "conv", of_windows, data, weight, declared.before, declared.counts)
        return _biased(e, made, bias, rank)
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
        extra = [x - min_of(t, 0) for x, t in zip(extra, surplus, strict=True)]
        total = [max_of(t, 0) for t in surplus]
        pads = halves(total, kind == "SAME_UPPER", total)
    if _are_open((*kernel, *pads)):
        cut = [b + a for b, a in zip(pads[:rank], pads[rank:], strict=True)]
        every = zip(data.sizes[2:], strides, spans, extra, cut, strict=True)
        sizes = [s * (n - 1) + x + k - p for n, s, k, x, p in every]
        return _biased(e, _onto_columns(e, node, data, weight, strides, dilations, pads[:rank], sizes), bias, rank)
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


def _products(windows: Windows, groups: int, dtype: str) -> Any:
    """A convolution whose windows only a call knows."""

    def compute(x: Any, w: Any, before: Any, counts: Any) -> Any:
        wide = dtype if "int" in dtype else wide_dtype(dtype)
        inner, *taps = (te.reduce_axis((0, size), "part") for size in w.shape[1:])

        def element(n: Any, o: Any, *index: Any) -> Any:
            every = zip(index, windows.strides, before, taps, windows.dilations, strict=True)
            places = [i * s - b + t * d for i, s, b, t, d in every]
            channel = inner + (o // (w.shape[0] // groups) * w.shape[1] if groups > 1 else 0)
            value = x(n, channel, *places).astype(wide) * w(o, inner, *taps).astype(wide)
            inside = are_inside(places, x.shape[2:])
            return te.sum(tirx.if_then_else(inside, value, tirx.const(0, wide)), axis=[inner, *taps])

        sums = te.compute((x.shape[0], w.shape[0], *counts), element, name="sums")
        return te.compute(sums.shape, lambda *index: sums(*index).astype(dtype), name="conv")

    return compute


def _onto_columns(
    e: Emit, node: Node, data: Value, weight: Value, strides: Any, dilations: Any, before: Any, sizes: list[Size]
) -> Value:
    """A transposed convolution: the product of weights and data as columns, which are added where they belong."""
    groups, (batch, channels, *counts) = node.attr("group", 1), data.sizes
    channels = common([weight.sizes[0], channels])
    inner, (out, *kernel) = channels // groups, weight.sizes[1:]
    rows = e.transpose(e.reshape(weight, [groups, inner, out * product(kernel)]), [0, 2, 1])
    made = e.matmul(rows, e.reshape(data, [batch, groups, inner, product(counts)]))
    columns = e.reshape(made, [batch, groups * out, *kernel, *counts])
    return computed(e, "col2im", _added(strides, dilations), columns, kernel, before, sizes)


@operator("DeformConv", since=19)
def _deform_conv(
    e: Emit, node: Node, data: Value, weight: Value, offset: Value, bias: Any = None, mask: Any = None
) -> Any:
    """The sampled windows as columns, and their product with the weights."""
    weight, kernel = _windowed(e, node, weight)
    if len(kernel) != 2 or _are_open(kernel):  # TVM multiplies the places of open windows out for minutes
        raise node.refused(f"has weights of {weight}; expected two spatial axes, of known sizes; add `kernel_shape`")
    windows, parts = Windows.of(node, data, kernel), node.attr("offset_group", 1)
    sizes = zip((data.sizes[0], *windows.counts), (offset.sizes[0], *offset.sizes[2:]), strict=True)
    batch, *counts = (common(pair) for pair in sizes)
    channels = common([data.sizes[1], weight.sizes[1] * node.attr("group", 1)])
    data = e.agree(data, [batch, channels, *data.sizes[2:]])
    sampled = [e.agree(offset, [batch, 2 * parts * product(kernel), *counts])]
    if mask is not None:
        sampled.append(e.agree(mask, [batch, parts * product(kernel), *counts]))
    columns = computed(
        e, "deformed", _columns(windows, parts, data.dtype), data, kernel, windows.before, counts, *sampled
    )
    groups, (out, inner) = node.attr("group", 1), weight.sizes[:2]
    wide = e.reshape(columns, [batch, groups, inner * product(kernel), product(counts)])
    rows = e.reshape(weight, [groups, out // groups, inner * product(kernel)])
    return _biased(e, e.reshape(e.matmul(rows, wide), [batch, out, *counts]), bias, 2)


def _columns(windows: Windows, parts: int, dtype: str) -> Any:
    """[batch, channel, kernel..., counts...]: the data between its pixels, where the offsets say."""

    def compute(x: Any, kernel: Any, before: Any, counts: Any, offset: Any, *masks: Any) -> Any:
        wide = wide_dtype(dtype)

        def element(n: Any, c: Any, *at: Any) -> Any:
            taps, starts = at[:2], at[2:]
            place = ((c // (x.shape[1] // parts)) * kernel[0] + taps[0]) * kernel[1] + taps[1]
            y, z = (
                (starts[a] * windows.strides[a] - before[a] + taps[a] * windows.dilations[a]).astype(wide)
                + offset(n, 2 * place + a, *starts).astype(wide)
                for a in range(2)
            )
            top, left = tirx.floor(y), tirx.floor(z)

            def corner(dy: int, dz: int) -> Any:
                pixel = [top.astype("int64") + dy, left.astype("int64") + dz]
                part = (y - top if dy else 1.0 - (y - top)) * (z - left if dz else 1.0 - (z - left))
                inside = are_inside(pixel, x.shape[2:])
                return tirx.if_then_else(inside, x(n, c, *pixel).astype(wide) * part, tirx.const(0.0, wide))

            value = corner(0, 0) + corner(0, 1) + corner(1, 0) + corner(1, 1)
            for mask in masks:
                value = value * mask(n, place, *starts).astype(wide)
            return value.astype(dtype)

        return te.compute((*x.shape[:2], *kernel, *counts), element, name="deformed")

    return compute


@operator("Col2Im", since=18)
def _col2im(e: Emit, node: Node, data: Value) -> Any:
    """The sum of all columns' elements that a pixel was copied to."""
    image, kernel = ints_of(e, node, 1, "image_shape"), node.ints(2, "block_shape")
    if data.dims is None or image is None or kernel is None:
        raise node.refused("has data of unknown rank")
    rank = len(image)
    strides, dilations = (list(node.attr(name) or [1] * rank) for name in ("strides", "dilations"))
    pads = list(node.attr("pads") or [0] * 2 * rank)
    windows = Windows(list(image), kernel, strides, dilations, pads[:rank], pads[rank:])
    full = e.reshape(data, [data.sizes[0], data.sizes[1] // product(kernel), *kernel, *windows.counts])
    return computed(e, "col2im", _added(strides, dilations), full, kernel, pads[:rank], list(image))


def _added(strides: list[int], dilations: list[int]) -> Any:
    """Each pixel as the sum of all elements of columns [batch, channel, kernel..., counts...] that it stands for."""

    def compute(x: Any, kernel: Any, before: Any, sizes: Any) -> Any:
        axes = [te.reduce_axis((0, k), f"tap{i}") for i, k in enumerate(kernel)]
        counts = x.shape[2 + len(axes) :]

        def element(n: Any, c: Any, *pixel: Any) -> Any:
            places = [p + before[i] - axes[i] * dilations[i] for i, p in enumerate(pixel)]
            windows = [tirx.floordiv(p, s) for p, s in zip(places, strides, strict=True)]
            fits = [tirx.floormod(p, s) == 0 for p, s in zip(places, strides, strict=True)]
            inside = tirx.all(*fits, are_inside(windows, counts))
            return te.sum(tirx.if_then_else(inside, x(n, c, *axes, *windows), tirx.const(0, x.dtype)), axis=axes)

        return te.compute((*x.shape[:2], *sizes), element, name="col2im")

    return compute
