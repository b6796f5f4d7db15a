"""Blocks of pixels in channels, and channels in blocks of pixels."""

from __future__ import annotations

from typing import Any

from ..emit import Emit
from ..table import operator
from ..value import Node, Value


def _parts(node: Node) -> tuple[int, bool, list[Any]]:
    data, size, mode = node.needed(0), node.attr("blocksize"), node.attr("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise node.wrong(f"has the mode {mode}; expected DCR or CRD")
    if data.dims is None or len(data.sizes) != 4:
        raise node.refused(f"has data of {data}; expected 4 axes")
    return size, mode == "CRD", list(data.dims)


@operator("DepthToSpace")
def _depth_to_space(e: Emit, node: Node, x: Value) -> Any:
    size, channels_first, (n, c, h, w) = _parts(node)
    inner = c // (size * size)
    if channels_first:
        split, order = [n, inner, size, size, h, w], [0, 1, 4, 2, 5, 3]
    else:
        split, order = [n, size, size, inner, h, w], [0, 3, 4, 1, 5, 2]
    return e.reshape(e.transpose(e.reshape(x, split), order), [n, inner, h * size, w * size])


@operator("SpaceToDepth")
def _space_to_depth(e: Emit, node: Node, x: Value) -> Any:
    size, channels_first, (n, c, h, w) = _parts(node)
    rows, columns = h // size, w // size
    split = e.reshape(x, [n, c, rows, size, columns, size])
    order = [0, 1, 3, 5, 2, 4] if channels_first else [0, 3, 5, 1, 2, 4]
    return e.reshape(e.transpose(split, order), [n, c * size * size, rows, columns])
