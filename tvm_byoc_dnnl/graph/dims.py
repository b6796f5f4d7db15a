"""Arithmetic on open dims."""

from __future__ import annotations

from collections import Counter

from .graph import Dim


def whole_factor(dim: Dim, of: Dim) -> int | None:
    """The number above 0 that makes ``dim`` of ``of``, whatever the sizes; ``None`` if there is none."""
    product, operand = _terms(dim), _terms(of)
    if product.keys() != operand.keys() or not operand:
        return None
    quotients = {divmod(product[term], operand[term]) for term in operand}
    quotient, rest = quotients.pop()
    return quotient if not quotients and rest == 0 and quotient > 0 else None


def _terms(dim: Dim) -> dict[Dim, int]:
    """A sum as its terms without those that are 0, each with its factor; the term of plain numbers is 1."""
    found: Counter[Dim] = Counter()
    if isinstance(dim, int):
        found[1] = dim
    elif isinstance(dim, tuple) and dim[0] in ("+", "-"):
        found.update(_terms(dim[1]))
        (found.update if dim[0] == "+" else found.subtract)(_terms(dim[2]))
    elif isinstance(dim, tuple) and dim[0] == "*" and any(isinstance(side, int) for side in dim[1:]):
        factor, other = dim[1:] if isinstance(dim[1], int) else dim[:0:-1]
        found.update({term: factor * number for term, number in _terms(other).items()})
    else:
        found[dim] = 1
    return {term: number for term, number in found.items() if number}
