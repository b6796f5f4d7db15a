"""Open sizes: integer polynomials over symbols, quotients, minima and maxima, in one form for all that are equal.

TVM's analyser does not see that ``n*h*w`` is ``w*n*h``, and takes ten times as long for what it sees. It is asked only
where two sizes must be compared that have quotients or extremes in them.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import tvm
from tvm import tirx

from ...core.tvm_fast import is_a
from ...ir.tvm_compat import analyzer, substitute

_LONGEST = 1 << 40  # no dim is longer
_ONE = tirx.IntImm("int64", 1)
_orders = itertools.count()


class Undecided(Exception):
    """Two open sizes were compared, and which is larger depends on the call."""


class _Atom:
    """A symbol, a quotient, an extreme, or an expression that is not looked into.

    Two atoms that are the same are one object.
    """

    __slots__ = ("__weakref__", "args", "expr", "is_natural", "kind", "order")

    def __init__(self, kind: str, args: tuple[Any, ...]) -> None:
        self.kind, self.args, self.order = kind, args, next(_orders)
        self.expr: Any = args[0] if kind in ("symbol", "opaque") else None
        naturals = () if self.expr is not None else map(_is_natural, args)
        #: whether it is surely at least 0
        self.is_natural = kind == "symbol" or (kind != "opaque" and (any if kind == "max" else all)(naturals))


_atoms: WeakValueDictionary[tuple[Any, ...], _Atom] = WeakValueDictionary()


def _atom(kind: str, *args: Any) -> _Atom:
    # The address of an expression is its own while the atom keeps it alive.
    key = (kind, *(hash(a) for a in args)) if kind in ("symbol", "opaque") else (kind, *args)
    found = _atoms.get(key)
    if found is None:
        found = _atoms[key] = _Atom(kind, args)
    return found


_Terms: TypeAlias = dict[tuple[_Atom, ...], int]


class Dim:
    """A size that is no number: ``n``, ``2*n + 1``, ``n*h // 4``. Integers and dims are added, multiplied and divided.

    Equality is that for every call; ``<`` and its like raise `Undecided` where it depends on the call.
    """

    __slots__ = ("_expr", "_hash", "terms")

    def __init__(self, terms: _Terms) -> None:
        self.terms = terms
        self._hash: int | None = None
        self._expr: Any = None

    @staticmethod
    def symbol(name: str) -> Dim:
        return _of(_atom("symbol", tirx.Var(name, "int64")))

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for product, factor in _terms(other).items():
            terms[product] = terms.get(product, 0) + factor
        return _made(terms)

    def __neg__(self) -> Size:
        return self * -1

    def __abs__(self) -> Size:
        return self if self >= 0 else -self

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return self * -1 + other

    def __mul__(self, other: Size) -> Size:
        terms: _Terms = {}
        for (a, x), (b, y) in itertools.product(self.terms.items(), _terms(other).items()):
            key = tuple(sorted((*a, *b), key=_order)) if a and b else a or b
            terms[key] = terms.get(key, 0) + x * y
        return _made(terms)

    def __floordiv__(self, other: Size) -> Size:
        return _floordiv(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return _floordiv(other, self)

    def __mod__(self, other: Size) -> Size:
        return self - _floordiv(self, other) * other

    def __rmod__(self, other: Size) -> Size:
        return other - _floordiv(other, self) * self

    __radd__, __rmul__ = __add__, __mul__

    def __ge__(self, other: Size) -> bool:
        return _decided(at_least(self, other), lambda: at_least(other, self + 1))

    def __le__(self, other: Size) -> bool:
        return _decided(at_least(other, self), lambda: at_least(self, other + 1))

    def __gt__(self, other: Size) -> bool:
        return not self <= other

    def __lt__(self, other: Size) -> bool:
        return not self >= other

    def __bool__(self) -> bool:
        return differ(self, 0) or _decided(False, lambda: equal(self, 0))

    def __str__(self) -> str:
        return " ".join(str(expr_of(self)).split())

    __repr__ = __str__


#: a number, or an open size
Size: TypeAlias = "int | Dim"


def _decided(holds: bool, fails: Callable[[], bool]) -> bool:
    if not holds and not fails():
        raise Undecided
    return holds


def _order(atom: _Atom) -> int:
    return atom.order


def _terms(size: Size) -> _Terms:
    if isinstance(size, Dim):
        return size.terms
    if not isinstance(size, (int, np.integer)):
        raise TypeError(f"{size!r} is no size")
    return {(): int(size)} if size else {}


def _made(terms: _Terms) -> Size:
    terms = {product: factor for product, factor in terms.items() if factor}
    return terms.get((), 0) if not terms.keys() - {()} else Dim(terms)


def _of(atom: _Atom) -> Dim:
    return Dim({(atom,): 1})


# ---- quotients and extremes -------------------------------------------------------------------------------


def _floordiv(a: Size, b: Size) -> Size:
    if not isinstance(b, Dim):
        return _by_number(a, int(b))
    whole = quotient(a, b)
    return _of(_atom("floordiv", a, b)) if whole is None else whole


def _by_number(a: Size, b: int) -> Size:
    if not isinstance(a, Dim):
        return a // b
    if b < 0:
        return _by_number(-a, -b)
    if b == 0:
        raise ZeroDivisionError("an open size divided by 0")
    whole = _made({product: factor // b for product, factor in a.terms.items()})
    rest = _made({product: factor % b for product, factor in a.terms.items()})
    if not isinstance(rest, Dim):
        return whole
    inner = [p for p in rest.terms if p]
    if len(inner) == 1 and rest.terms[inner[0]] == 1 and len(inner[0]) == 1 and inner[0][0].kind == "floordiv":
        over, under = inner[0][0].args
        if isinstance(under, int):  # (x // c + k) // b is (x + k*c) // (c*b)
            return whole + _by_number(over + rest.terms.get((), 0) * under, under * b)
    return whole + _of(_atom("floordiv", rest, b))


def quotient(a: Size, b: Size) -> Size | None:
    """``a / b`` where ``b`` divides ``a`` whatever the symbols are; ``None`` if it does not."""
    if b == 0:
        return None
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a // b if a % b == 0 else None
    rest, found, divisor = dict(_terms(a)), dict[tuple[_Atom, ...], int](), _terms(b)
    first = _leading(divisor)
    while rest:
        term = _leading(rest)
        factors = _without(term, first)
        if factors is None or rest[term] % divisor[first]:
            return None
        factor = rest[term] // divisor[first]
        found[factors] = found.get(factors, 0) + factor
        for product, other in divisor.items():
            key = tuple(sorted((*factors, *product), key=_order))
            rest[key] = rest.get(key, 0) - factor * other
            if not rest[key]:
                del rest[key]
    return _made(found)


def _leading(terms: _Terms) -> tuple[_Atom, ...]:
    """The first product in an order that products keep when they are multiplied."""
    atoms = sorted({a for product in terms for a in product}, key=_order)
    return max(terms, key=lambda product: (len(product), [product.count(a) for a in atoms]))


def _without(product: tuple[_Atom, ...], part: tuple[_Atom, ...]) -> tuple[_Atom, ...] | None:
    rest = list(product)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def max_of(*sizes: Size) -> Size:
    return functools.reduce(functools.partial(_extreme, "max"), sizes)


def min_of(*sizes: Size) -> Size:
    return functools.reduce(functools.partial(_extreme, "min"), sizes)


def _extreme(kind: str, a: Size, b: Size) -> Size:
    if at_least(a, b):
        return a if kind == "max" else b
    if at_least(b, a):
        return b if kind == "max" else a
    return _of(_atom(kind, *sorted((a, b), key=_place)))


def _place(size: Size) -> tuple[bool, list[tuple[list[int], int]]]:
    """Where a size stands among the parts of an extreme: the same in every process, as names of variables are."""
    terms = [([a.order for a in factors], number) for factors, number in _terms(size).items()]
    return isinstance(size, Dim), sorted(terms)


def product(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


# ---- comparisons ------------------------------------------------------------------------------------------


def _is_natural(size: Size) -> bool:
    return all(factor >= 0 and all(a.is_natural for a in product) for product, factor in _terms(size).items())


def at_least(a: Size, b: Size) -> bool:
    """Whether ``a`` is surely not below ``b``; every symbol may be 0."""
    rest = a - b
    if not isinstance(rest, Dim):
        return rest >= 0
    if _is_natural(rest):
        return True
    if all(factor <= 0 for factor in rest.terms.values()) and all(a.kind == "symbol" for p in rest.terms for a in p):
        return False
    return _proved(tirx.GE, rest)


def equal(a: Size, b: Size) -> bool:
    rest = a - b
    if not isinstance(rest, Dim):
        return rest == 0
    return any(atom.kind != "symbol" for p in rest.terms for atom in p) and _proved(tirx.EQ, rest)


def differ(a: Size, b: Size) -> bool:
    rest = a - b
    return at_least(rest, 1) or at_least(-rest, 1)


def _proved(compare: Any, size: Dim) -> bool:
    """What TVM's analyser says about a size and 0."""
    prover = analyzer()
    for symbol in symbols_of(size):
        prover.bind(symbol, tvm.ir.Range(0, _LONGEST))
    return bool(prover.can_prove(compare(prover.simplify(expr_of(size)), tirx.IntImm("int64", 0))))


# ---- TVM's expressions ------------------------------------------------------------------------------------


def symbols_of(size: Size) -> list[tirx.Var]:
    found: dict[int, tirx.Var] = {}
    for atom in _all_atoms(size):
        if atom.kind == "symbol":
            found[atom.order] = atom.expr
        elif atom.kind == "opaque":
            found.update({hash(symbol): symbol for symbol in tirx.analysis.undefined_vars(atom.expr)})
    return list(found.values())


def _all_atoms(size: Size) -> Iterator[_Atom]:
    for atom in (atom for product in _terms(size) for atom in product):
        yield atom
        if atom.kind not in ("symbol", "opaque"):
            for part in atom.args:
                yield from _all_atoms(part)


def expr_of(size: Size) -> Any:
    """TIR's expression of a size, of type int64."""
    if not isinstance(size, Dim):
        return tirx.IntImm("int64", int(size))
    if size._expr is None:
        total: Any = None
        for factors, number in sorted(size.terms.items(), key=lambda term: (not term[0], term[1] < 0)):
            part = functools.reduce(operator.mul, map(_atom_expr, factors)) if factors else _ONE
            if abs(number) != 1:
                part = part * abs(number) if factors else tirx.IntImm("int64", abs(number))
            if total is None:
                total = part if number > 0 else part * -1
            else:
                total = total + part if number > 0 else total - part
        size._expr = total
    return size._expr


def _atom_expr(atom: _Atom) -> Any:
    if atom.expr is None:
        make = {"floordiv": tirx.floordiv, "min": tirx.min, "max": tirx.max}[atom.kind]
        atom.expr = make(*map(expr_of, atom.args))
        if atom.kind == "floordiv" and isinstance(atom.args[1], Dim):  # a division by 0 would end the process
            atom.expr = tirx.floordiv(expr_of(atom.args[0]), tirx.max(expr_of(atom.args[1]), _ONE))
    return atom.expr


def size_of(expr: Any) -> Size:
    """The size that an expression of TIR says."""
    if isinstance(expr, (int, Dim)):
        return expr
    if is_a(expr, tirx.IntImm):
        return int(expr.value)
    if is_a(expr, tirx.Var):
        return _of(_atom("symbol", expr))
    kind = type(expr)
    if kind is tirx.FloorDiv and is_a(expr.b, tirx.Max) and is_a(expr.b.b, tirx.IntImm) and expr.b.b.value == 1:
        return size_of(expr.a) // size_of(expr.b.a)  # see `_atom_expr`
    if kind in _READ:
        return _READ[kind](size_of(expr.a), size_of(expr.b))
    return _of(_atom("opaque", expr))


_READ: dict[Any, Callable[[Any, Any], Size]] = {
    tirx.Add: operator.add,
    tirx.Sub: operator.sub,
    tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv,
    tirx.FloorMod: operator.mod,
    tirx.Min: min_of,
    tirx.Max: max_of,
}


def substituted(size: Size, replace: Mapping[tirx.Var, Size]) -> Size:
    """A size with others in the place of symbols."""
    if not isinstance(size, Dim):
        return size
    total: Size = 0
    for factors, number in size.terms.items():
        total = total + product(_replaced(atom, replace) for atom in factors) * number
    return total


def _replaced(atom: _Atom, replace: Mapping[tirx.Var, Size]) -> Size:
    if atom.kind == "symbol":
        return replace.get(atom.expr, _of(atom))
    if atom.kind == "opaque":
        return size_of(substitute(atom.expr, {symbol: expr_of(size) for symbol, size in replace.items()}))
    make: Any = {"floordiv": operator.floordiv, "min": min_of, "max": max_of}[atom.kind]
    return make(*(substituted(part, replace) for part in atom.args))
