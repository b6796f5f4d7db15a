"""Operators of the table that stay whole, made known to Relax; their conversions are their definitions."""

from __future__ import annotations

import onnx
from tvm import relax

from .table import entries
from .walk import Shared, Walk
from .whole import declare_whole

__all__ = ["walk_into"]


def walk_into(bb: relax.BlockBuilder) -> Walk:
    """A walk that emits into a builder outside of the import of a model."""
    return Walk(Shared(onnx.ModelProto()), bb)


for _entry in entries():
    if _entry.whole:
        declare_whole(_entry, lambda bb: walk_into(bb).emit)
