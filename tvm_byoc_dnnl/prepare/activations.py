"""Activations written as arithmetic, replaced by the operators that Relax has for them; and bounds: one ``clip``,
``nn.relu``, ``maximum`` or ``minimum`` for any chain of them.

    gelu       0.5 x (1 + erf(x / √2))
    gelu_tanh  0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))  =  x sigmoid(2 √(2/π) (x + 0.044715 x³))
    silu       x sigmoid(x)                                 =  x / (1 + exp(-x))
    sigmoid    1 / (1 + exp(-x))
    softplus   log(1 + exp(x))                              =  max(x, 0) + log(1 + exp(-|x|))
               where(x > 20, x, log(1 + exp(x)))            as PyTorch has it

Any order and grouping of the terms counts; constants must be right to 1e-5 (to the precision of halves). One is
left alone when a part of it is read elsewhere too, since both would be computed then.

NaN: all of these bounds pass a NaN on (`tvm_byoc_dnnl.te.legalize`, docs/numerics.md), and so does what replaces them.

Arithmetic read as polynomials, so that every spelling of a formula is the same formula.

``x * 0.5 * (1 + f)``, ``(f + 1) * (x / 2)`` and ``0.5 * x + 0.5 * x * f`` are all {x: 0.5, x·f: 0.5}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm import relax

from ..core.tvm_fast import items
from .rewrite import Rules, Scope

Formula = dict[tuple[int, ...], float]  # degree in each atom -> coefficient

# The largest relative error of a constant: exporters round to float32 or print a few digits; halves hold no more.
_TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}
_MAX_TERMS = 16
_MAX_DEGREE = 4
_ARITHMETIC = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide", "relax.negative", "relax.power")


def tolerance(scope: Scope, expr: Any) -> float:
    return _TOLERANCE.get(scope.dtype(expr), 1e-5)


def matches(formula: Mapping[tuple[int, ...], float] | None, wanted: Mapping[tuple[int, ...], float]) -> bool:
    return same_terms(formula, wanted) and formula is not None and not off(formula, wanted, 1e-5)


def same_terms(formula: Mapping[tuple[int, ...], float] | None, wanted: Mapping[tuple[int, ...], float]) -> bool:
    return formula is not None and formula.keys() == wanted.keys()


def off(formula: Mapping[tuple[int, ...], float], wanted: Mapping[tuple[int, ...], float], within: float = 1e-5) -> str:
    """The first coefficient that is another, ``""`` for none."""
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
    """``expr`` as a polynomial in ``atoms``, which may not be broadcast, and the variables in between."""
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


_C1 = math.sqrt(2 / math.pi)
_C3 = 0.044715 * _C1


@dataclass(frozen=True)
class _Gated:
    """``outer(x, gate(inner(x)))``, both polynomials."""

    gate: str
    inner: Formula
    outer: Formula
    make: Callable[[Any], Any]


_GELU_LIKE: Formula = {(1, 0): 0.5, (1, 1): 0.5}
_FORMS = (
    _Gated("relax.erf", {(1,): math.sqrt(0.5)}, _GELU_LIKE, relax.op.nn.gelu),
    _Gated("relax.tanh", {(1,): _C1, (3,): _C3}, _GELU_LIKE, relax.op.nn.gelu_tanh),
    _Gated("relax.sigmoid", {(1,): 1.0}, {(1, 1): 1.0}, relax.op.nn.silu),
    _Gated("relax.sigmoid", {(1,): 2 * _C1, (3,): 2 * _C3}, {(1, 1): 1.0}, relax.op.nn.gelu_tanh),
)
_GATES = tuple({form.gate for form in _FORMS})
_SOFTPLUS_IS_X = 15.0  # from here on, to 3e-7
_TO_THE_LAST_BIT = 40.0  # also of float64
_DEPTH = 4  # steps from the last operation to the gate: 0.5 x + 0.5 x gate needs three


def _gated(scope: Scope, root: Any) -> Any:
    within = tolerance(scope, root)
    for gate in find_calls(scope, root, _GATES, _DEPTH):
        call = scope.call(gate, *_GATES)
        for form in _FORMS:
            if form.gate != call.op.name:
                continue
            for x in atoms_of(scope, call.args[0]):
                inner, between = polynomial(scope, call.args[0], [x])
                if inner is None or not same_terms(inner, form.inner):
                    continue
                outer, outside = polynomial(scope, root, [x, gate])
                if outer is None or not same_terms(outer, form.outer):
                    continue
                interior = (between | outside | {gate}) - {x}
                why = _why_not(scope, root, [(inner, form.inner), (outer, form.outer)], interior, within)
                if not why:
                    return form.make(x)
                scope.miss(form.make.__name__, why, at=gate)
    return None


def _why_not(
    scope: Scope, root: Any, formulas: Sequence[tuple[Formula, Formula]], interior: set[Any], within: float
) -> str:
    factor = next(filter(None, (off(got, wanted, within) for got, wanted in formulas)), "")
    if factor:
        return f"a factor is {factor}"
    return "" if scope.only_inside(interior, root) else "a part of it is read elsewhere, too"


def _one_plus_exp(scope: Scope, expr: Any) -> tuple[Any, list[Any]] | None:
    """x of ``1 + exp(x)``, and the variables in between."""
    for exp in find_calls(scope, expr, ("relax.exp",), 1):
        formula, between = polynomial(scope, expr, [exp])
        if matches(formula, {(0,): 1.0, (1,): 1.0}):
            return scope.value(exp).args[0], [exp, *between]
    return None


def _softplus(scope: Scope, log: Any) -> Any:
    found = _one_plus_exp(scope, log.args[0])
    if found is None or not scope.only_inside(found[1], log):
        return None
    return relax.op.nn.softplus(found[0], threshold=_TO_THE_LAST_BIT)


def _stable_softplus(scope: Scope, add: Any) -> Any:
    """``relu(x) + softplus(-|x|)``."""
    found = scope.match(add, ("add", ("nn.relu", "x"), ("nn.softplus", ("negative", ("abs", "x")))))
    if found is None or not scope.only_inside(found.inside, add):
        return None
    return relax.op.nn.softplus(found["x"], threshold=_TO_THE_LAST_BIT)


def _bounded_softplus(scope: Scope, where: Any) -> Any:
    """``where(x > threshold, x, softplus(x))``, the threshold so large that both are the same there."""
    found = scope.match(where, ("where", ("greater", "x", "threshold"), "x", ("softplus:nn.softplus", "x")))
    threshold = None if found is None else scope.scalar(found["threshold"])
    if found is None or threshold is None or threshold < _SOFTPLUS_IS_X or not scope.only_inside(found.inside, where):
        return None
    return found["softplus"] if float(scope.value(found["softplus"]).attrs.beta) == 1.0 else None


def _logistic(scope: Scope, divide: Any) -> Any:
    """``1 / (1 + exp(-x))``, and ``x`` over the same."""
    numerator, denominator = items(divide.args)
    found = _one_plus_exp(scope, denominator)
    if found is None or not scope.same_shape(denominator, divide):
        return None
    exponent, between = found
    for x in atoms_of(scope, exponent, depth=2):
        formula, more = polynomial(scope, exponent, [x])
        interior = [v for v in (*between, *more) if not v.same_as(x)]
        if matches(formula, {(1,): -1.0}) and scope.only_inside(interior, divide):
            if scope.scalar(numerator) == 1.0:
                return relax.op.sigmoid(x)
            return relax.op.nn.silu(x) if numerator.same_as(x) else None
    return None


RULES: Rules = {
    "relax.log": [_softplus],
    "relax.where": [_bounded_softplus],
    "relax.divide": [_logistic, _gated],
    "relax.multiply": [_gated],
    "relax.add": [_stable_softplus, _gated],
}

_OPS = ("relax.maximum", "relax.minimum", "relax.nn.relu", "relax.clip")


class _Bounded(NamedTuple):
    """``min(max(data, low), high)``, low not above high."""

    data: Any
    low: float
    high: float

    @property
    def op(self) -> str:
        if math.isinf(self.high):
            return {-math.inf: "", 0: "relax.nn.relu"}.get(self.low, "relax.maximum")
        return "relax.minimum" if math.isinf(self.low) else "relax.clip"


def _read(scope: Scope, call: Any) -> _Bounded | None:
    name = call.op.name
    args = items(call.args)
    if name == "relax.nn.relu":
        return _Bounded(args[0], 0.0, math.inf)
    if name == "relax.clip":
        low, high = (getattr(arg, "value", math.nan) for arg in args[1:])
        return _Bounded(args[0], low, high) if low <= high else None
    a, b = args
    for data, constant in ((a, b), (b, a)):
        number = scope.scalar(constant)
        if number is None or math.isnan(number) or not scope.same_shape(data, call):
            continue
        return _Bounded(data, number, math.inf) if name == "relax.maximum" else _Bounded(data, -math.inf, number)
    return None


def _written(scope: Scope, bounds: _Bounded) -> Any:
    data, low, high = bounds
    if bounds.op == "":
        return data
    if bounds.op == "relax.nn.relu":
        return relax.op.nn.relu(data)
    if bounds.op == "relax.clip":
        return relax.op.clip(data, low, high)
    op, number = (relax.op.maximum, low) if bounds.op == "relax.maximum" else (relax.op.minimum, high)
    return op(data, scope.constant(number, scope.dtype(data)))


def _bounds(scope: Scope, call: Any) -> Any:
    outer = _read(scope, call)
    if outer is None:
        return None
    inner_call = scope.call(outer.data, *_OPS)
    inner = None if inner_call is None or scope.uses(outer.data) != 1 else _read(scope, inner_call)
    if inner is None:
        return None if outer.op == call.op.name else _written(scope, outer)
    low, high = (min(max(bound, outer.low), outer.high) for bound in (inner.low, inner.high))
    return _written(scope, _Bounded(inner.data, low, high))


BOUNDS: Rules = {op: [_bounds] for op in _OPS}
