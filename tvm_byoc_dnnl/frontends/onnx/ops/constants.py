"""Constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..emit import Emit
from ..table import operator
from ..value import Node

_DTYPES = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}


def _constant_value(node: Node) -> Any:
    (name,) = node.attrs
    if name == "value":
        return node.attr(name)
    if name not in _DTYPES:
        raise node.refused(f"has the attribute {name}")
    return np.array(node.attr(name), _DTYPES[name])


@operator("Constant", value=_constant_value)
def _constant(e: Emit, node: Node) -> Any:
    raise node.refused("has no value")
