"""Arithmetic on open dims; and sizes in the place of a graph's symbols, so that it can be tried.

Any number would do for a symbol, if not for dims that are different expressions and have to be equal in every call,
such as the number of boxes, ``h//8*(w//8)``, and the rows ``n`` of a table that the model reads beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import Dim, PortableGraph, evaluate, symbols_in

#: the sizes of all symbols that nothing else decides, in turn: 8 becomes 0 after a few strides, 64 behind large windows
_SIZES = (64, 8, 224, 1)

_Pair = tuple[Dim, Dim]


def trial_sizes(graph: PortableGraph) -> Iterator[dict[str, int]]:
    """The sizes of all symbols, in several ways, with which the dims that must be equal are so and none is negative.

    Nothing where no such sizes are found.
    """
    symbols = sorted(graph.symbols | symbols_in(dim for pair in graph.equal for dim in pair))
    for size in _SIZES:
        sizes = _agreeing(symbols, graph.equal, size)
        if sizes is not None and all((_value(d, sizes) or 0) >= 0 for t in graph.tensors for d in t.shape):
            yield sizes


def _agreeing(symbols: Iterable[str], pairs: Iterable[_Pair], size: int) -> dict[str, int] | None:
    """``size`` for each symbol, but for those by which pairs are made equal, one after the other."""
    sizes, settled = dict.fromkeys(symbols, size), set[str]()
    for pair in pairs:
        if not _is_equal(pair, sizes):
            found = _settled(pair, sizes, settled)
            if found is None:
                return None
            sizes = found
        settled |= symbols_in(pair)
    return sizes


def _settled(pair: _Pair, sizes: Mapping[str, int], settled: set[str]) -> dict[str, int] | None:
    """Sizes with which the two are equal; first one side keeps its value, and those in ``settled`` always do."""
    a, b = (symbols_in([dim]) for dim in pair)
    for free in (b - a - settled, a - b - settled, (a | b) - settled):
        for symbol in sorted(free):
            base = sizes[symbol]
            while base:  # a sum of products is soon too large for the other side
                tried = {**sizes, **dict.fromkeys(free, base)}
                root = _root(pair, symbol, tried)
                if root is not None:
                    return {**tried, symbol: root}
                base //= 2
    return None


def _root(pair: _Pair, symbol: str, sizes: Mapping[str, int]) -> int | None:
    """The value above 0 of a symbol with which the two are equal, those of the others being given."""

    def difference(value: int) -> int | None:
        a, b = (_value(dim, {**sizes, symbol: value}) for dim in pair)
        return None if a is None or b is None else a - b

    first, second = difference(1), difference(2)
    if first is not None and second is not None and first != second:  # a straight line, as a rule
        root, rest = divmod(first, first - second)
        if rest == 0 and root >= 0 and difference(1 + root) == 0:
            return 1 + root
    near = sorted(range(1, 2 * sizes[symbol] + 1), key=lambda value: abs(value - sizes[symbol]))
    return next((value for value in near if difference(value) == 0), None)


def _is_equal(pair: _Pair, sizes: Mapping[str, int]) -> bool:
    a, b = (_value(dim, sizes) for dim in pair)
    return a is not None and a == b


def _value(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    try:
        return evaluate(dim, sizes)
    except ZeroDivisionError:
        return None


def whole_factor(dim: Dim, of: Dim) -> int | None:
    """The number above 0 that makes ``dim`` of ``of``, whatever the sizes; ``None`` if there is none."""
    product, operand = _terms(dim), _terms(of)
    if product.keys() != operand.keys() or not operand:
        return None
    quotients = {divmod(product[term], operand[term]) for term in operand}
    quotient, rest = quotients.pop()
    return quotient if not quotients and rest == 0 and quotient > 0 else None


def _terms(dim: Dim) -> dict[Any, int]:
    """A sum as its terms without those that are 0, each with its factor; the term of plain numbers is 1.

    Whole numbers are taken out of a quotient, so that ``(h + 31) // 32`` and ``(h - 1) // 32 + 1`` are one sum.
    """
    found: Counter[Any] = Counter()
    if isinstance(dim, int):
        found[1] = dim
    elif isinstance(dim, tuple) and dim[0] in ("+", "-"):
        found.update(_terms(dim[1]))
        (found.update if dim[0] == "+" else found.subtract)(_terms(dim[2]))
    elif isinstance(dim, tuple) and dim[0] == "*" and any(isinstance(side, int) for side in dim[1:]):
        factor, other = dim[1:] if isinstance(dim[1], int) else dim[:0:-1]
        found.update({term: factor * number for term, number in _terms(other).items()})
    elif isinstance(dim, tuple) and dim[0] == "//" and isinstance(dim[2], int) and dim[2] > 0:
        parts = {term: divmod(number, dim[2]) for term, number in _terms(dim[1]).items()}
        found.update({term: whole for term, (whole, _) in parts.items()})
        rest = frozenset((term, left) for term, (_, left) in parts.items() if left)
        if any(term != 1 for term, _ in rest):
            found[(rest, dim[2])] += 1
    else:
        found[dim] = 1
    return {term: number for term, number in found.items() if number}
