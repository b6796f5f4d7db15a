"""Clip with constant bounds as Relax operators; TVM's importer would generate two TIR functions for each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from .._compat import constant_numpy, dtype_of, is_constant

__all__ = ["clip"]


def clip(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int) -> Any:
    """The result of a node; ``None`` leaves it to TVM's importer."""
    data = inputs[0]
    dtype = dtype_of(data.ty) if isinstance(getattr(data, "ty", None), relax.TensorType) else ""
    if not dtype:
        return None
    if opset < 11:
        numbers = [attrs.get("min"), attrs.get("max")]
        bounds = [None if number is None else relax.const(number, dtype) for number in numbers]
    else:
        bounds = [*inputs[1:], None, None][:2]
    given = [bound for bound in bounds if bound is not None]
    if not given or not all(_is_number(bound, dtype) for bound in given):
        return None
    for op, bound in zip((relax.op.maximum, relax.op.minimum), bounds, strict=True):
        if bound is not None:
            data = bb.emit(op(data, bound))
    return data


def _is_number(bound: Any, dtype: str) -> bool:
    if not is_constant(bound) or dtype_of(bound.ty) != dtype:
        return False
    value = constant_numpy(bound)
    return value.shape == () and not np.isnan(value)
