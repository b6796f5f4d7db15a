"""Casts."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from ..emit import Emit
from ..table import operator
from ..value import Node, Value
from .float8 import from_float8, is_float8, to_float8

_SIZES = ("int64", "int32", "float32", "float64")  # what open sizes may be cast to: they are whole numbers in all
_REAL = ("float32", "float16", "bfloat16")


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
    x, dtype, saturates = node.needed(0), _target(node), bool(node.attr("saturate", 1))
    node.attr("round_mode")
    if is_float8(x.dtype) and dtype in _REAL:
        return e.cast(from_float8(e, x), dtype)
    if is_float8(dtype) and x.dtype in _REAL:
        return to_float8(e, e.cast(x, "float32"), dtype, saturates)
    return NotImplemented
