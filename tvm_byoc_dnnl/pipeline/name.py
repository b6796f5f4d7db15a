"""The name ``byoc`` among TVM's pipelines, without what stands behind it."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

__all__ = ["PIPELINE"]

PIPELINE = "byoc"


@relax.register_pipeline(PIPELINE)
def _pipeline(**options: Any) -> tvm.transform.Pass:
    from .byoc import byoc_pipeline

    return byoc_pipeline(**options)
