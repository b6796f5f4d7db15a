"""Casts."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from ..emit import Emit
from ..table import operator
from ..value import Node, Value

_SIZES = ("int64", "int32", "float32", "float64")  # what open sizes may be cast to: they are whole numbers in all


def _target(node: Node) -> str:
    if node.op == "CastLike":
        return node.needed(1).dtype
    return str(helper.tensor_dtype_to_np_dtype(node.attr("to")))


def _cast_value(node: Node) -> Any:
    x, dtype = node.needed(0), _target(node)
    if x.dtype == dtype:
        return x
    if x.known is None or x.is_constant or dtype not in _SIZES:
        return None  # a constant is computed by ONNX's own reference
    return Value(known=np.asarray(x.known), dtype=dtype)


@operator("Cast", "CastLike", since=6, value=_cast_value)
def _cast(e: Emit, node: Node) -> Any:
    return NotImplemented
