"""Arithmetic read as polynomials, so that every spelling of a formula is the same formula.

``x * 0.5 * (1 + f)``, ``(f + 1) * (x / 2)`` and ``0.5 * x + 0.5 * x * f`` are all {x: 0.5, x·f: 0.5}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from .rewrite import Scope

Formula = dict[tuple[int, ...], float]  # degree in each atom -> coefficient

# The largest relative error of a constant: exporters round to float32 or print a few digits; halves hold no more.
_TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}
_MAX_TERMS = 16
_MAX_DEGREE = 4
_ARITHMETIC = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.negative", "relax.power")


def tolerance(scope: Scope, expr: Any) -> float:
    """The relative error that a constant of a formula on tensors like ``expr`` may have."""
    return _TOLERANCE.get(scope.dtype(expr), 1e-5)


def matches(formula: Mapping[tuple[int, ...], float] | None, wanted: Mapping[tuple[int, ...], float]) -> bool:
    """Whether two formulas have the same terms, and nearly the same coefficients."""
    return same_terms(formula, wanted) and formula is not None and not off(formula, wanted, 1e-5)


def same_terms(formula: Mapping[tuple[int, ...], float] | None, wanted: Mapping[tuple[int, ...], float]) -> bool:
    """Whether two formulas have the same terms, whatever their coefficients."""
    return formula is not None and formula.keys() == wanted.keys()


def off(formula: Mapping[tuple[int, ...], float], wanted: Mapping[tuple[int, ...], float], within: float = 1e-5) -> str:
    """The first coefficient that is another, ``""`` for none; the terms are the same."""
    for term, value in wanted.items():
        if not math.isclose(formula[term], value, rel_tol=within):
            return f"{formula[term]:.6g} instead of {value:.6g}"
    return ""


def _product(a: Formula, b: Formula) -> Formula:
    result: Formula = {}
    for da, ca in a.items():
        for db, cb in b.items():
            degree = tuple(x + y for x, y in zip(da, db, strict=True))
            result[degree] = result.get(degree, 0.0) + ca * cb
    return result


def _sum(a: Formula, b: Formula, sign: float) -> Formula:
    return {k: a.get(k, 0.0) + sign * b.get(k, 0.0) for k in {*a, *b}}


class _Reader:
    """Reads an expression as a polynomial in the given atoms; `seen` are the intermediates on the way."""

    def __init__(self, scope: Scope, atoms: Sequence[Any], like: Any) -> None:
        self.scope, self.atoms, self.like = scope, atoms, like
        self.seen: set[Any] = set()
        self.zero = (0,) * len(atoms)

    def read(self, expr: Any) -> Formula | None:
        for i, atom in enumerate(self.atoms):
            if expr.same_as(atom):
                return {tuple(int(i == j) for j in range(len(self.atoms))): 1.0}
        number = self.scope.scalar(expr)
        if number is not None:
            return {self.zero: float(number)}
        call = self.scope.call(expr, *_ARITHMETIC)
        if call is None or not self.scope.same_shape(call, self.like):
            return None
        if isinstance(expr, relax.Var):
            self.seen.add(expr)
        formula = self._arithmetic(call)
        if formula is None or len(formula) > _MAX_TERMS or any(sum(d) > _MAX_DEGREE for d in formula):
            return None
        return {k: v for k, v in formula.items() if v != 0.0}

    def _arithmetic(self, call: Any) -> Formula | None:
        operands = [self.read(arg) for arg in call.args]
        if any(o is None for o in operands):
            return None
        a: Any = operands[0]
        b: Any = operands[-1]
        name = call.op.name.removeprefix("relax.")
        if name == "multiply":
            return _product(a, b)
        if name == "negative":
            return {k: -v for k, v in a.items()}
        if name in ("add", "subtract"):
            return _sum(a, b, 1.0 if name == "add" else -1.0)
        if set(b) != {self.zero}:  # divided by, or to the power of, something that is no number
            return None
        number = b[self.zero]
        if name == "divide":
            return {k: v / number for k, v in a.items()}
        power = {self.zero: 1.0}
        if number not in range(1, _MAX_DEGREE + 1):
            return None
        for _ in range(int(number)):
            power = _product(power, a)
        return power


def polynomial(scope: Scope, expr: Any, atoms: Sequence[Any]) -> tuple[Formula | None, set[Any]]:
    """``expr`` as a polynomial in ``atoms``, and the variables in between; ``None`` when it is not one.

    Every step must have the shape of ``expr``: constants may be broadcast, atoms may not.
    """
    reader = _Reader(scope, atoms, expr)
    return reader.read(expr), reader.seen


def find_calls(scope: Scope, expr: Any, ops: Sequence[str], depth: int) -> list[Any]:
    """Variables bound to calls of ``ops``, reached from ``expr`` through at most ``depth`` steps of arithmetic."""
    if scope.call(expr, *ops) is not None:
        return [expr]
    call = scope.call(expr, *_ARITHMETIC)
    if call is None or depth == 0:
        return []
    return [found for arg in call.args for found in find_calls(scope, arg, ops, depth - 1)]


def atoms_of(scope: Scope, expr: Any, depth: int = 6) -> list[Any]:
    """Variables that ``expr`` could be a polynomial of, the nearest first."""
    found: list[Any] = []
    level = [expr]
    for _ in range(depth):
        following = []
        for each in level:
            if isinstance(each, relax.Var) and not any(each.same_as(f) for f in found):
                found.append(each)
            call = scope.call(each, *_ARITHMETIC)
            following += [] if call is None else [a for a in call.args if isinstance(a, relax.Var)]
        level = following[:8]
    return found
