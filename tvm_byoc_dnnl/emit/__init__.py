"""A partitioned model as C source that needs oneDNN alone: neither Python nor TVM."""

from __future__ import annotations

from .program import emit

__all__ = ["emit"]
