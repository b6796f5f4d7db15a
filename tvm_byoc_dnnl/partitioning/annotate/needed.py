"""The operators of a pattern: those without which it cannot match, and those that a match may have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm
from tvm.relax import dpl

from ...core.tvm_fast import items
from ...ir.tvm_compat import is_a

__all__ = ["ops_in_pattern", "ops_of_pattern"]

_PARTS = ("op", "args", "fields", "tuple", "pattern", "left", "right")


@cache
def ops_of_pattern(pattern: Any) -> frozenset[str]:
    """Names of the operators that are in every match of ``pattern``."""
    return frozenset(_ops(pattern, set.intersection))


@cache
def ops_in_pattern(pattern: Any) -> frozenset[str]:
    """Names of the operators that are in some match of ``pattern``."""
    return frozenset(_ops(pattern, set.union))


def _ops(pattern: Any, either: Callable[[set[str], set[str]], set[str]]) -> set[str]:
    if is_a(pattern, dpl.ExprPattern):
        return {pattern.expr.name} if is_a(pattern.expr, tvm.ir.Op) else set()
    if is_a(pattern, dpl.NotPattern):
        return set()
    if is_a(pattern, dpl.OrPattern):
        return either(_ops(pattern.left, either), _ops(pattern.right, either))
    parts = [part for name in _PARTS if (part := getattr(pattern, name, None)) is not None]
    flat = [item for part in parts for item in ([part] if isinstance(part, dpl.DFPattern) else items(part))]
    return set().union(*(_ops(part, either) for part in flat))
