"""Zero padding moved into the convolution or the average pooling that follows.

    x                                 x
    |                                 |
    pad(before, after, 0)             |
    |                       ──>       |
    conv(padding p)                   conv(padding p + before, p + after)
    avg_pool(padding p)               avg_pool(the same, counting the padding)

Left alone when the padding is not of zeros or not of the spatial axes alone, when another call reads the padded tensor,
and for an average that rounds its shape up or that has padding of its own which it does not count. A max_pool takes
padding that never wins: that is a pattern of the backend that says so.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from .rewrite import Rules, Scope

_CONVS = {f"relax.nn.conv{d}d": getattr(relax.op.nn, f"conv{d}d") for d in (1, 2, 3)}
_POOLS = {f"relax.nn.avg_pool{d}d": getattr(relax.op.nn, f"avg_pool{d}d") for d in (1, 2, 3)}


def _zeros_around(scope: Scope, data: Any, layout: str) -> tuple[Any, list[int], list[int]] | None:
    """The tensor and its padding before and after each spatial axis, if it is padded by zeros and only there."""
    pad = scope.call(data, "relax.nn.pad")
    if pad is None:
        return None
    if scope.uses(data) != 1:
        return scope.miss("padding", "what is padded is read elsewhere, too", at=data)
    if pad.attrs.pad_mode != "constant" or float(pad.attrs.pad_value):
        how = pad.attrs.pad_mode if pad.attrs.pad_mode != "constant" else f"the number {float(pad.attrs.pad_value):g}"
        return scope.miss("padding", f"it pads with {how}, not with zeros", at=data)
    widths = [int(w) for w in pad.attrs.pad_width]
    if len(widths) != 2 * len(layout) or any(w < 0 for w in widths):
        return scope.miss("padding", f"its widths are {widths}", at=data)
    pairs = dict(zip(layout, zip(widths[::2], widths[1::2], strict=True), strict=True))
    if any(sum(pairs[axis]) for axis in layout if axis in "NC"):
        return scope.miss("padding", f"it pads batch or channels: {widths} in {layout}", at=data)
    spatial = [pairs[axis] for axis in layout if axis not in "NC"]
    return pad.args[0], [w[0] for w in spatial], [w[1] for w in spatial]


def _both_sides(padding: Any, rank: int) -> list[int]:
    """Padding as before... after..., from any of the forms that Relax allows."""
    widths = [int(p) for p in padding]
    return widths * (2 * rank // len(widths)) if len(widths) in (1, rank) else widths


def _added(padding: Any, before: list[int], after: list[int]) -> list[int]:
    rank = len(before)
    return [a + b for a, b in zip(_both_sides(padding, rank), before + after, strict=True)]


def _conv(scope: Scope, call: Any) -> Any:
    attrs, layout = call.attrs, str(call.attrs.data_layout)
    around = _zeros_around(scope, call.args[0], layout) if layout.isalpha() else None
    if around is None:
        return None
    data, before, after = around
    return _CONVS[call.op.name](
        data,
        call.args[1],
        strides=list(attrs.strides),
        padding=_added(attrs.padding, before, after),
        dilation=list(attrs.dilation),
        groups=int(attrs.groups),
        data_layout=layout,
        kernel_layout=attrs.kernel_layout,
        out_layout=attrs.out_layout,
        out_dtype=attrs.out_dtype,
    )


def _avg_pool(scope: Scope, call: Any) -> Any:
    attrs, layout = call.attrs, str(call.attrs.layout)
    own = any(int(p) for p in attrs.padding)
    around = _zeros_around(scope, call.args[0], layout) if layout.isalpha() else None
    if around is None:
        return None
    if attrs.ceil_mode or (own and not attrs.count_include_pad):
        why = "rounds its shape up" if attrs.ceil_mode else "has padding of its own that it does not count"
        return scope.miss("padding", f"the average {why}", at=call.args[0])
    data, before, after = around
    return _POOLS[call.op.name](
        data,
        pool_size=list(attrs.pool_size),
        strides=list(attrs.strides),
        padding=_added(attrs.padding, before, after),
        dilation=list(attrs.dilation),
        ceil_mode=False,
        count_include_pad=True,
        layout=layout,
        out_layout=attrs.out_layout,
    )


RULES: Rules = {**{op: [_conv] for op in _CONVS}, **{op: [_avg_pool] for op in _POOLS}}
