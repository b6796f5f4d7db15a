"""The name of our pipeline among TVM's, without an import of the pipeline."""

from __future__ import annotations

PIPELINE = "byoc"
