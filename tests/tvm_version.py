"""Tests that need a newer TVM than the oldest one that is supported."""

from __future__ import annotations

import pytest
import tvm
from packaging.version import Version

__all__ = ["open_cache"]

open_cache = pytest.mark.skipif(
    Version(tvm.__version__) < Version("0.27"),
    reason="TVM 0.26 cannot compile what stays with it of a decoder whose cache has an open length",
)
