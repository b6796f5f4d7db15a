"""Helpers that the checks of the fusion patterns share: numbers out of constants, and how exact they must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm.relax.dpl import DFPattern, is_const, is_op

from ...vendor import Reject, constant_numpy, dtype_of, is_constant, shape_dims

Match = Mapping[str, Any]
#: the relative error of a constant: the precision of the short types, and of a float32 that exporters print
_TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}


def constant() -> DFPattern:
    """A pattern for a constant."""
    return is_const()


def times(x: DFPattern, by: DFPattern, over: DFPattern) -> DFPattern:
    """A pattern for ``x · by`` or ``x / over``."""
    return is_op("relax.multiply")(x, by) | is_op("relax.divide")(x, over)


def number(match: Match, name: str, default: float | None = None) -> float:
    """The number that a matched constant holds in every element; ``default`` where that part was not matched.

    Raises
    ------
    Reject
        If it is no constant, or its elements differ.
    """
    expr = match.get(name)
    if expr is None and default is not None:
        return default
    value = getattr(expr, "value", expr)
    if isinstance(value, (int, float)):
        return float(value)
    if not is_constant(expr):
        raise Reject(f"{name} is not a constant")
    values = constant_numpy(expr).reshape(-1)
    if values.size != 1 and (not values.size or (values != values[0]).any()):
        raise Reject(f"{name} is not one number, but {values.size} different ones")
    return float(values[0])


def close(value: float, wanted: float, like: Any) -> bool:
    """Whether a constant of a formula on tensors like ``like`` has the expected value."""
    within = _TOLERANCE.get(dtype_of(like.ty), 2e-6)
    return math.isclose(value, wanted, rel_tol=within, abs_tol=1e-12)


def require_shape(match: Match) -> None:
    """Refuse a match whose result is broadcast by one of its constants."""
    before, after = (shape_dims(match[key].ty) for key in ("x", "root"))
    if before is None or after is None or [str(d) for d in before] != [str(d) for d in after]:
        raise Reject(f"a constant broadcasts {before} to {after}")
