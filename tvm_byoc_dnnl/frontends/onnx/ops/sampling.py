"""Grids of points, and pictures between their pixels."""

from __future__ import annotations

from typing import Any

from ..dim import Dim
from ..emit import Emit
from ..table import operator
from ..value import Node, Value

_METHODS = {"linear": "bilinear", "cubic": "bicubic"}


@operator("AffineGrid", since=20)
def _affine_grid(e: Emit, node: Node, x: Value, *, align_corners: int = 0) -> Any:
    size = node.ints(1, "the size")
    assert size is not None
    if any(isinstance(s, Dim) for s in size[2:]):
        raise node.refused("has open sizes")
    align = bool(align_corners)
    grid = e.affine_grid(x, size=tuple(size[2:]), align_corners=align)
    return e.transpose(grid, [0, *range(2, len(size)), 1])


@operator("GridSample", since=16)
def _grid_sample(e: Emit, node: Node) -> Any:
    data, grid, mode = node.needed(0), node.needed(1), node.attr("mode", "bilinear")
    method, rank = _METHODS.get(mode, mode), data.rank
    if rank not in (4, 5) or (rank == 5 and method == "bicubic"):
        raise node.refused(f"has data of {data} and the mode {mode}; expected 4 axes, or 5 and another mode than cubic")
    return e.grid_sample(
        data,
        e.transpose(grid, [0, rank - 1, *range(1, rank - 1)]),
        method=method,
        layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=node.attr("padding_mode", "zeros"),
        align_corners=bool(node.attr("align_corners", 0)),
    )
