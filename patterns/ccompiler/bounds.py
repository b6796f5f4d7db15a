"""Calls that may read beyond a tensor's end: TVM's own functions look at the sizes and indices, C code does not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...vendor import constant_numpy, is_constant, least_sizes, require, shape_dims


def check_bounds(call: Any) -> None:
    """Refuse a call of which it is not known that it reads only what is there."""
    name = call.op.name.removeprefix("relax.")
    if name == "nn.pad":
        _check_padding(call)
    elif name == "take" and str(call.attrs.mode) == "fast":
        dims, axis = shape_dims(call.args[0].ty) or [], call.attrs.axis
        _check_indices(call, dims if axis is None else [dims[int(axis)]], as_one=True)
    elif name == "gather_elements":
        _check_indices(call, [(shape_dims(call.args[0].ty) or [])[int(call.attrs.axis)]], as_one=True)
    elif name == "gather_nd":
        batched = int(call.attrs.batch_dims)
        count = (shape_dims(call.args[1].ty) or [0])[-1]
        _check_indices(call, (shape_dims(call.args[0].ty) or [])[batched:][:count], as_one=False)


def _check_padding(call: Any) -> None:
    dims = shape_dims(call.args[0].ty) or []
    for size, needed in zip(dims, least_sizes(call.attrs), strict=False):
        require(
            not needed or (isinstance(size, int) and size >= needed),
            f"a padding of mode {call.attrs.pad_mode} by {[int(w) for w in call.attrs.pad_width]} of an axis of {size} "
            f"elements: it reads {needed}, and C code does not compare",
        )


def _check_indices(call: Any, extents: list[Any], *, as_one: bool) -> None:
    """Indices into axes of these sizes: of all axes as one, or one for each along the indices' last axis."""
    indices = call.args[1]
    require(is_constant(indices), "indices that are known only at run time: C code does not compare them with the size")
    require(
        all(isinstance(e, int) for e in extents), f"indices into an axis of {extents} elements: C code does not compare"
    )
    found, sizes = constant_numpy(indices), np.asarray([math.prod(extents)] if as_one else extents)
    require(bool(((found >= 0) & (found < sizes)).all()), f"an index is out of range of {sizes.tolist()} elements")
