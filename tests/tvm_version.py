"""Tests that need a newer TVM than the oldest one that is supported."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from packaging.version import Version

from tvm_byoc_dnnl.ir.tvm_compat import QUANTISES_NUMBERS

__all__ = ["computed_range", "is_skipped", "open_cache", "open_cast", "quantised_number"]

open_cache = pytest.mark.skipif(
    Version(tvm.__version__) < Version("0.27"),
    reason="TVM 0.26 cannot compile what stays with it of a decoder whose cache has an open length",
)
_is_old = Version(tvm.__version__) < Version("0.27")
open_cast = pytest.mark.skipif(_is_old, reason="TVM 0.26 cannot compile such a comparison of open sizes")
computed_range = pytest.mark.skipif(_is_old, reason="TVM 0.26 cannot import a Range whose end is computed")
quantised_number = pytest.mark.skipif(
    not QUANTISES_NUMBERS, reason="TVM 0.26 has no quantize and dequantize of a tensor without axes"
)


def is_skipped(row: Any) -> bool:
    """Whether a row of a table (`pytest.param`) is left out because of TVM's version."""
    return any(mark.name == "skipif" and mark.args[0] for mark in row.marks)
