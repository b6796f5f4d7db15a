"""Types of convolutions and pools, for which TVM takes long: it proves the arithmetic of layouts.

Where all sizes are numbers and the layout is the usual one, a division gives the same type. Everything else, and every
call that is wrong, is left to TVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ._compat import dtype_of, is_a, static_shape
from .handles import items

__all__ = ["TypingBuilder", "give_type"]

_CONVOLUTIONS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
}
_POOLS = {
    f"relax.nn.{kind}_pool{rank}d": layout
    for kind in ("avg", "max")
    for rank, layout in ((1, "NCW"), (2, "NCHW"), (3, "NCDHW"))
}


class TypingBuilder(relax.BlockBuilder):
    """A builder that infers the types of convolutions and pools itself."""

    def normalize(self, expr: Any) -> Any:
        """``expr`` with its type, its operands bound to variables."""
        give_type(expr)
        return super().normalize(expr)


def give_type(expr: Any) -> None:
    """Give a convolution or a pool of known sizes its type; does nothing to anything else."""
    if not is_a(expr, relax.Call) or not is_a(expr.op, tvm.ir.Op) or is_a(expr.ty, relax.TensorType):
        return
    name = expr.op.name
    if name not in _CONVOLUTIONS and name not in _POOLS:
        return
    args = items(expr.args)
    if name in _CONVOLUTIONS:
        shape = _convolved(expr.attrs, _CONVOLUTIONS[name], *(_shape(arg) for arg in args))
    else:
        shape = _pooled(expr.attrs, _POOLS[name], _shape(args[0]))
    dtype = dtype_of(args[0].ty) if shape is not None else ""
    own = getattr(expr.attrs, "out_dtype", None)  # of convolutions
    if shape is None or not dtype or dtype_of(args[-1].ty) != dtype or (own and str(own) not in ("void", dtype)):
        return
    relax.expr._update_type(expr, relax.TensorType(shape, dtype))


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a tensor, if every size is a number; `None` for one that is on a device by name."""
    ty: Any = getattr(value, "ty", None)
    if not is_a(ty, relax.TensorType) or ty.vdevice is not None:
        return None
    return static_shape(ty)


def _convolved(
    attrs: Any, layouts: tuple[str, str], data: tuple[int, ...] | None, weight: tuple[int, ...] | None
) -> list[int] | None:
    layout, kernel = layouts
    if data is None or weight is None:
        return None
    if (attrs.data_layout, attrs.out_layout, attrs.kernel_layout) != (layout, layout, kernel):
        return None
    groups = int(attrs.groups)
    if len(data) != len(layout) or len(weight) != len(kernel) or groups < 1:
        return None
    if data[1] != weight[1] * groups or weight[0] % groups:
        return None
    spatial = _windows(data[2:], weight[2:], attrs)
    return None if spatial is None else [data[0], weight[0], *spatial]


def _pooled(attrs: Any, layout: str, data: tuple[int, ...] | None) -> list[int] | None:
    if data is None or len(data) != len(layout) or (attrs.layout, attrs.out_layout) != (layout, layout):
        return None
    if attrs.ceil_mode:
        return None
    spatial = _windows(data[2:], _ints(attrs.pool_size), attrs)
    return None if spatial is None else [*data[:2], *spatial]


def _ints(values: Any) -> list[int]:
    return [int(v) for v in items(values)]


def _windows(sizes: Sequence[int], kernel: Sequence[int], attrs: Any) -> list[int] | None:
    """The number of windows along each axis; ``None`` if an axis has none."""
    rank = len(sizes)
    strides, dilation, padding = _ints(attrs.strides), _ints(attrs.dilation), _ints(attrs.padding)
    if not len(strides) == len(dilation) == len(kernel) == rank or len(padding) != 2 * rank:
        return None
    spans = [size + padding[i] + padding[rank + i] - dilation[i] * (kernel[i] - 1) - 1 for i, size in enumerate(sizes)]
    if min(spans) < 0 or min(strides) < 1:
        return None
    return [span // stride + 1 for span, stride in zip(spans, strides, strict=True)]
