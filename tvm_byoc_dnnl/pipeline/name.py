"""The name of our pipeline among TVM's, without what stands behind it."""

from __future__ import annotations

__all__ = ["PIPELINE"]

PIPELINE = "byoc"
