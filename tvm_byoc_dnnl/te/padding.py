"""What a padding by elements of the tensor itself reads: TVM's computes do not look whether they are there."""

from __future__ import annotations

from typing import Any

#: mode → elements that an axis must have to be padded by so many
_NEEDED = {"reflect": lambda pads: pads + 1, "replicate": lambda pads: 1, "circular": lambda pads: pads}


def least_sizes(attrs: Any) -> list[int]:
    """How many elements each axis must have, by the attributes of ``relax.nn.pad``; empty where it pads by a number."""
    needed = _NEEDED.get(str(attrs.pad_mode))
    if needed is None:
        return []
    widths = [int(width) for width in attrs.pad_width]
    return [needed(max(pair)) if max(pair) > 0 else 0 for pair in zip(widths[::2], widths[1::2], strict=True)]
