"""Numbers that an ONNX graph computes from open dims: vectors of integers and symbolic expressions, evaluated here.

Exporters write ``Shape`` → ``Gather`` → ``Mul`` → ``Concat`` in front of a ``Reshape``. The evaluation gives the shape
as expressions of the inputs' dims, so that nothing about it is left to be computed at run time.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from .._compat import analyzer

__all__ = ["Sizes", "is_open"]

#: numbers and expressions, or Python's truth values; of any rank
Numbers = np.ndarray
_MOST = 64  # numbers in a vector; shapes are shorter
_LONGEST = 1 << 40  # no dim is longer


class Sizes:
    """Arithmetic on sizes: numbers, and symbolic expressions of which all symbols are at least 0."""

    def __init__(self) -> None:
        self._analyzer = analyzer()
        self._bound: set[Any] = set()

    def simplify(self, size: Any) -> Any:
        """An integer where the expression has one value, else a short expression."""
        if isinstance(size, (int, np.integer)):
            return int(size)
        self._know_symbols(size)
        short = self._analyzer.simplify(size)
        return int(short) if isinstance(short, tirx.IntImm) else short

    def equal(self, a: Any, b: Any) -> bool:
        """Whether two sizes are equal whatever the symbols are."""
        return self._compared(operator.eq, a, b) is True

    def at_least(self, a: Any, b: Any) -> bool:
        """Whether one size is never below the other."""
        return self._compared(operator.ge, a, b) is True

    def product(self, sizes: Sequence[Any]) -> Any:
        """All multiplied."""
        return self.simplify(functools.reduce(operator.mul, sizes, 1))

    def quotient(self, sizes: Sequence[Any], parts: Sequence[Any]) -> Any:
        """Product of ``sizes`` by the product of ``parts``, which divides it; ``None`` if it cannot be said."""
        over, under = self._factors(sizes), self._factors(parts)
        number = 1
        for part in under:
            if isinstance(part, int):
                number *= part
                continue
            same = next((f for f in over if not isinstance(f, int) and self.equal(f, part)), None)
            if same is None:
                return None
            over = [f for f in over if f is not same]
        return self.simplify(tirx.floordiv(_expr(self.product(over)), number)) if number > 0 else None

    def _factors(self, sizes: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for size in sizes:
            if isinstance(size, tirx.Mul):
                found += self._factors([size.a, size.b])
            else:
                found.append(int(size) if isinstance(size, (int, tirx.IntImm)) else size)
        return found

    def _know_symbols(self, size: Any) -> None:
        for symbol in symbols_in(size):
            if symbol not in self._bound:
                self._bound.add(symbol)
                self._analyzer.bind(symbol, tvm.ir.Range(0, _LONGEST))

    def _compared(self, compare: Callable[[Any, Any], Any], a: Any, b: Any) -> bool | None:
        if isinstance(a, int) and isinstance(b, int):
            return bool(compare(a, b))
        self._know_symbols(a)
        self._know_symbols(b)
        difference = self._analyzer.simplify(_expr(a) - _expr(b))
        zero = tirx.IntImm("int64", 0)
        holds, fails = _TIR[compare]
        if self._analyzer.can_prove(holds(difference, zero)):
            return True
        return False if self._analyzer.can_prove(fails(difference, zero)) else None

    # ---- operators of ONNX --------------------------------------------------------------------------

    def evaluate(self, op: str, inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers | None:
        """The result of a node whose inputs are known numbers; ``None`` where it cannot be said."""
        if op in _ELEMENTWISE:
            if any(i is None for i in inputs):
                return None
            return self._elementwise(_ELEMENTWISE[op], [i for i in inputs if i is not None])
        if op in _ARRANGING and inputs and inputs[0] is not None:
            try:
                made = _ARRANGING[op](inputs, attrs)
            except (ValueError, IndexError, TypeError):
                return None  # the importer reports the fault
            return made if made is None or made.size <= _MOST else None
        if op in ("ReduceProd", "ReduceSum") and inputs[0] is not None and inputs[0].ndim == 1:
            total = self.product(list(inputs[0])) if op == "ReduceProd" else self.simplify(sum(inputs[0]))
            return _array([total], (1,) if attrs.get("keepdims", 1) else ())
        return None

    def _elementwise(self, function: Callable[..., Any], inputs: Sequence[Numbers]) -> Numbers | None:
        try:
            operands = np.broadcast_arrays(*inputs)
        except ValueError:
            return None
        results = [function(self, *numbers) for numbers in zip(*(o.reshape(-1) for o in operands), strict=True)]
        if any(r is None for r in results):
            return None
        return _array(results, operands[0].shape)


def is_open(numbers: Numbers | None) -> bool:
    """Whether a vector has an expression in it."""
    return numbers is not None and any(not isinstance(n, (int, bool)) for n in numbers.reshape(-1))


def symbols_in(size: Any) -> list[Any]:
    """The symbols of an expression."""
    if isinstance(size, tirx.Var):
        return [size]
    return [s for part in ("a", "b") if hasattr(size, part) for s in symbols_in(getattr(size, part))]


def _array(numbers: Sequence[Any], shape: Sequence[int]) -> Numbers:
    array = np.empty(len(numbers), object)
    array[:] = numbers
    return array.reshape(shape)


def _expr(size: Any) -> Any:
    return tirx.IntImm("int64", size) if isinstance(size, (int, np.integer)) else size


#: comparison → TIR's, and that of the opposite
_TIR = {
    operator.eq: (tirx.EQ, tirx.NE),
    operator.ge: (tirx.GE, tirx.LT),
    operator.gt: (tirx.GT, tirx.LE),
}


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda sizes, a, b: sizes.simplify(function(_number(a), _number(b)))


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _divide(sizes: Sizes, a: Any, b: Any) -> Any:
    """ONNX rounds towards zero, as ``//`` does for what is not negative."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else int(a / b) if abs(a) < 2**50 else None
    return sizes.simplify(tirx.floordiv(_expr(a), _expr(b))) if sizes.at_least(a, 0) and sizes.at_least(b, 1) else None


def _modulo(sizes: Sizes, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else None
    return sizes.simplify(tirx.floormod(_expr(a), _expr(b))) if sizes.at_least(a, 0) and sizes.at_least(b, 1) else None


def _extreme(keep: Callable[..., Any], make: Any) -> Callable[..., Any]:
    def choose(sizes: Sizes, *values: Any) -> Any:
        if all(isinstance(v, int) for v in values):
            return keep(values)
        return sizes.simplify(functools.reduce(lambda a, b: make(_expr(a), _expr(b)), values))

    return choose


def _comparison(compare: Any, swap: bool = False) -> Callable[..., Any]:
    return lambda sizes, a, b: sizes._compared(compare, *((b, a) if swap else (a, b)))


def _where(sizes: Sizes, condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


#: operator → a function of `Sizes` and one number of each input; ``None`` means that it cannot be said
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": _arithmetic(operator.add),
    "Sub": _arithmetic(operator.sub),
    "Mul": _arithmetic(operator.mul),
    "Div": _divide,
    "Mod": _modulo,
    "Min": _extreme(min, tirx.min),
    "Max": _extreme(max, tirx.max),
    "Neg": lambda sizes, a: sizes.simplify(0 - a),
    "Equal": _comparison(operator.eq),
    "Greater": _comparison(operator.gt),
    "GreaterOrEqual": _comparison(operator.ge),
    "Less": _comparison(operator.gt, swap=True),
    "LessOrEqual": _comparison(operator.ge, swap=True),
    "And": lambda sizes, a, b: bool(a and b),
    "Or": lambda sizes, a, b: bool(a or b),
    "Not": lambda sizes, a: not a,
    "Where": _where,
}


def _integers(numbers: Numbers | None) -> list[int]:
    if numbers is None or is_open(numbers):
        raise ValueError("not known")
    return [int(n) for n in numbers.reshape(-1)]


def _axes(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> list[int] | None:
    if len(inputs) > 1 and inputs[1] is not None:
        return _integers(inputs[1])
    return [int(a) for a in attrs["axes"]] if "axes" in attrs else None


def _gather(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    assert inputs[0] is not None
    if inputs[1] is None:
        raise ValueError("not known")
    indices = np.array(_integers(inputs[1]), "int64").reshape(inputs[1].shape)
    return np.asarray(np.take(inputs[0], indices, axis=attrs.get("axis", 0)), object)


def _slice(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    data, starts, ends, axes, steps = (*inputs, None, None, None, None)[:5]
    first, last = _integers(starts), _integers(ends)
    along = list(range(len(first))) if axes is None else _integers(axes)
    by = [1] * len(first) if steps is None else _integers(steps)
    assert data is not None
    cut: list[Any] = [slice(None)] * data.ndim
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        # Counted from the end, "before the first" is what Python calls None.
        cut[axis] = slice(start, None if step < 0 and end < -data.shape[axis] else end, step)
    return data[tuple(cut)]


def _unsqueeze(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    return np.expand_dims(inputs[0], tuple(_axes(inputs, attrs) or ()))  # type: ignore[arg-type]


def _squeeze(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    axes = _axes(inputs, attrs)
    return np.squeeze(inputs[0], None if axes is None else tuple(axes))  # type: ignore[arg-type]


def _concat(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers | None:
    if any(i is None for i in inputs):
        return None
    return np.concatenate([i for i in inputs if i is not None], axis=attrs.get("axis", 0))


def _reshape(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    assert inputs[0] is not None
    return inputs[0].reshape(_integers(inputs[1]))


def _filled(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    value = attrs.get("value")
    number = 0 if value is None else _one_number(value)
    return np.full(_integers(inputs[0]), number, object)


def _one_number(tensor: Any) -> int:
    """The one integer of an ONNX tensor."""
    from onnx import numpy_helper

    array = numpy_helper.to_array(tensor)
    if array.dtype.kind not in "ib":
        raise ValueError("not an integer")
    return int(array.reshape(-1)[0])


def _same(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    assert inputs[0] is not None
    return inputs[0]


def _expanded(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    assert inputs[0] is not None
    return np.broadcast_to(inputs[0], np.broadcast_shapes(inputs[0].shape, tuple(_integers(inputs[1]))))


def _range(inputs: Sequence[Numbers | None], attrs: Mapping[str, Any]) -> Numbers:
    numbers = [_integers(i)[0] for i in inputs]
    return np.array(range(*numbers), object)


#: operator → a function that moves numbers, or raises where it needs one that is open
_ARRANGING: dict[str, Callable[[Sequence[Numbers | None], Mapping[str, Any]], Numbers | None]] = {
    "Cast": _same,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Gather": _gather,
    "Identity": _same,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
