"""The operators without which a pattern cannot match."""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm.relax import dpl

from .._compat import is_a
from ..handles import items

__all__ = ["ops_of_pattern"]

_PARTS = ("op", "args", "fields", "tuple", "pattern", "left", "right")


@cache
def ops_of_pattern(pattern: Any) -> frozenset[str]:
    """Names of the operators that are in every match of ``pattern``."""
    return frozenset(_ops(pattern))


def _ops(pattern: Any) -> set[str]:
    if is_a(pattern, dpl.ExprPattern):
        return {pattern.expr.name} if is_a(pattern.expr, tvm.ir.Op) else set()
    if is_a(pattern, dpl.NotPattern):
        return set()
    if is_a(pattern, dpl.OrPattern):
        return _ops(pattern.left) & _ops(pattern.right)
    parts = [part for name in _PARTS if (part := getattr(pattern, name, None)) is not None]
    flat = [item for part in parts for item in ([part] if isinstance(part, dpl.DFPattern) else items(part))]
    return set().union(*map(_ops, flat))
