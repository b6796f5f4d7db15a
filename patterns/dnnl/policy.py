"""What oneDNN is not asked for, and why: regions that are not worth a call of it (measured by ``python -m
bench.regions``, one thread against one), and operators for which oneDNN 3.2 has no primitive and no exact combination
of primitives. And the arithmetic of its primitives, out of the layouts in a profile.

TVM fuses its calls, so a cheap call between them is not faster in oneDNN at any size. And two operations are slower in
oneDNN than in TVM's own loops at any size: a reduction over a few neighbouring elements, which has a fixed cost for
each result, and a small window over rows of a channels-first image, which is copied before it is pooled. In a region
with products both are worth it: they read data that is in the cache, in the layout of a convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...vendor import (
    RegionPolicy,
    Work,
    is_cheap,
    register_unsupported,
    static_shape,
)
from .common import ints

_REDUCTIONS = tuple(f"relax.{name}" for name in ("sum", "mean", "max", "min", "prod"))
_POOLS = tuple(f"relax.nn.{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3))
#: results; with fewer of them either takes a microsecond
_MANY = 1024
#: elements from which on a reduction gains
_LONG = 32
#: elements of the windows that lose
_SMALL_WINDOW = 4


class DnnlPolicy(RegionPolicy):
    """Leave a region to TVM if it has only cheap calls beside calls of TVM, or if its only real work is slow here."""

    def why_not(self, work: Work) -> str:
        """The reason why a region is not worth a call, ``""`` when it is."""
        slow = [(call, why) for call in work.calls if (why := _why_slow(call))]
        lone = all(is_cheap(call) or any(call is s for s, _ in slow) for call in work.calls)
        if slow and lone:
            return f"{', '.join(work.ops)}: {slow[0][1]}"
        return super().why_not(work)


def _why_slow(call: Any) -> str:
    """The reason why a call is slower than TVM's own code for it, ``""`` where it is not."""
    name = call.op.name
    if name not in _REDUCTIONS + _POOLS:
        return ""
    shape, out = (static_shape(ty) for ty in (call.args[0].ty, call.ty))
    if shape is None or out is None or math.prod(out) < _MANY:
        return ""
    if name in _REDUCTIONS:
        axes = sorted(range(len(shape)) if call.attrs.axis is None else (a % len(shape) for a in ints(call.attrs.axis)))
        is_pooling = name == "relax.mean" and 3 <= len(shape) <= 5 and axes == list(range(2, len(shape)))
        width = math.prod(shape[a] for a in axes)
        if axes == list(range(len(shape) - len(axes), len(shape))) and width < _LONG and not is_pooling:
            return (
                f"oneDNN takes longer than TVM to reduce {width} elements at a time, and nothing here makes up for it"
            )
    if name in _POOLS:
        window = math.prod(ints(call.attrs.pool_size))
        if window <= _SMALL_WINDOW and str(call.attrs.layout).startswith("NC"):
            return f"oneDNN takes longer than TVM for windows of {window} in {call.attrs.layout}"
    return ""


def primitive_flops(kind: str, layouts: Sequence[str]) -> int:
    """Multiplications and additions of a primitive, from its arguments' dims (sources first, destination last)."""
    dims = [[int(d) for d in text.rpartition(":")[2].split("x") if d] for text in layouts]
    if len(dims) < 2:
        return 0
    result = math.prod(dims[-1])
    if kind == "convolution":
        weights = next((i for i, text in enumerate(layouts) if ":packed:" in text), 1)  # behind what a norm reads
        return 2 * result * math.prod(dims[weights]) // max(dims[-1][1], 1)
    if kind == "deconvolution":
        return 2 * math.prod(dims[0]) * math.prod(dims[1]) // max(dims[0][1], 1)
    if kind == "attention" and len(dims) == 2:  # of its three primitives, the softmax
        return result
    # The other two are products; the first number of rows of a kernel's second operand is that of the keys.
    is_product = kind == "attention" and dims[1][-2] == dims[0][-1] and dims[-1][-1] == dims[1][-1]
    if is_product or kind in ("matmul", "compressed_matmul"):
        return 2 * result * dims[0][-1]
    if kind == "attention":
        return 2 * math.prod(dims[0][:-1]) * dims[1][-2] * (dims[0][-1] + dims[-1][-1])
    if kind == "recurrent":  # of its packed weights, in float32, each one in each step of each sequence
        return 2 * math.prod(dims[0][:2]) * (dims[1][0] // 4)
    return 0 if kind in ("reorder", "concat", "fill", "shuffle", "gather") else max(math.prod(d) for d in dims)


_NO_UNARY = "oneDNN has no such function of one tensor"
_NO_BINARY = "oneDNN has no such function of two tensors"
_INTEGERS = "oneDNN computes in floating point"
_BY_INDEX = "oneDNN has no gather of single elements, and no scatter"
_BY_VALUE = "oneDNN has no search and no sort"
_SCAN = "oneDNN has no scan"
_SAMPLING = "oneDNN samples only at points that are evenly apart"

#: reason → operators, without ``relax.``, several to a string
_UNSUPPORTED = {
    _NO_UNARY: "acos acosh asin asinh atan atanh cos cosh sign sin sinh tan trunc isfinite isinf isnan",
    "oneDNN has no erf; what importers make of gelu is taken as a whole": "erf",
    _NO_BINARY: "atan2 floor_divide floor_mod log_add_exp mod",
    _INTEGERS: "bitwise_and bitwise_not bitwise_or bitwise_xor left_shift right_shift",
    _BY_INDEX: "gather_elements gather_nd index_put scatter_elements scatter_nd slice_scatter one_hot",
    _BY_VALUE: "argmax argmin argsort sort topk median unique nonzero bucketize",
    _SCAN: "cumprod cumsum",
    _SAMPLING: "image.affine_grid image.grid_sample vision.roi_align vision.roi_pool",
    "oneDNN's attention would be one primitive per sequence": "nn.attention_var_len",
}

for _why, _ops in _UNSUPPORTED.items():
    register_unsupported("dnnl", {f"relax.{op}": _why for op in _ops.split()})
