"""Graphs around one call that a backend accepts: what partitioning, and a backend's own code, must get right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.relax import op as R

from ...ir.tvm_compat import dtype_of, shape_dims
from ...partitioning.annotate.trial import ask
from ...vendors.namespace import Namespace
from .case import Case

#: calls that keep shape and dtype, of which the backend leaves some with TVM
_OTHERS: list[Callable[[Any], Any]] = [R.sin, R.erf, R.tan, lambda x: R.flip(x, 0), lambda x: R.cumsum(x, 0), R.sort]


def structural_cases(ns: Namespace, base: Case) -> list[Case]:
    """The structures that fit ``base``, an accepted call."""
    plain = replace(base, by=None, must_match=False)
    cases = [replace(plain, what=what, function=function) for what, function in _structures(base)]
    if _keeps_type(base):
        cases += [replace(plain, what=what, function=f, is_chain=True) for what, f in _chains(ns, base)]
    return [case for case in cases if case.main is not None]


def _structures(base: Case) -> Iterator[tuple[str, Any]]:
    emitted = _emitting(base.function)

    def alias(builder: Any, *operands: Any) -> Any:
        result = emitted(builder, *operands)
        return result, result

    def beside_parameter(builder: Any, *operands: Any) -> Any:
        return operands[0], emitted(builder, *operands)

    def used_twice(builder: Any, *operands: Any) -> Any:
        result = emitted(builder, *operands)
        return emitted(builder, *operands), result, result

    def unused(builder: Any, *operands: Any) -> Any:
        emitted(builder, *operands)
        return emitted(builder, *operands)

    def same_operand(builder: Any, first: Any, *rest: Any) -> Any:
        alike = [first if _looks(r) == _looks(first) else r for r in rest]
        return emitted(builder, first, *alike)

    yield "its result returned twice", alias
    yield "a parameter returned beside it", beside_parameter
    yield "the same call twice, results used twice", used_twice
    yield "an unused copy of it", unused
    if len(base.arrays) > 1:
        yield "one operand in every place where it fits", same_operand


def _emitting(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda builder, *operands: builder.emit(call(builder, *operands))


def _chains(ns: Namespace, base: Case) -> Iterator[tuple[str, Any]]:
    """Structures of several calls, each on the result of another."""
    call = _emitting(base.function)

    def chain(builder: Any, first: Any, *rest: Any) -> Any:
        return call(builder, call(builder, call(builder, first, *rest), *rest), *rest)

    def leak(builder: Any, first: Any, *rest: Any) -> Any:
        inner = call(builder, first, *rest)
        return call(builder, inner, *rest), inner

    def fork(builder: Any, first: Any, *rest: Any) -> Any:
        inner = call(builder, first, *rest)
        left, right = call(builder, inner, *rest), call(builder, inner, *rest)
        return left, call(builder, right, *rest), right

    yield "a chain of three", chain
    yield "a chain whose middle leaks out", leak
    yield "a fork: several results", fork
    other = _left_with_tvm(ns, base)
    if other is None:
        return

    def around(builder: Any, first: Any, *rest: Any) -> Any:
        inner = call(builder, first, *rest)
        outside = builder.emit(other(inner))
        return call(builder, outside, *rest), call(builder, inner, *rest)

    def between(builder: Any, first: Any, *rest: Any) -> Any:
        inner = call(builder, first, *rest)
        return call(builder, builder.emit(R.add(builder.emit(other(inner)), inner)), *rest)

    yield "beside a call that stays with TVM", around
    yield "a region that must not close over a call of TVM", between


def _looks(expr: Any) -> str:
    return str(expr.ty)


def _keeps_type(base: Case) -> bool:
    assert base.main is not None
    result, first = base.main.ret_ty, base.main.params[0].ty if base.main.params else None
    if not isinstance(result, relax.TensorType) or not isinstance(first, relax.TensorType):
        return False
    return dtype_of(result) == dtype_of(first) and shape_dims(result) == shape_dims(first)


def _left_with_tvm(ns: Namespace, base: Case) -> Callable[[Any], Any] | None:
    """A call on a tensor like the first operand that ``ns`` rejects."""
    assert base.main is not None
    x = relax.Var("x", base.main.params[0].ty)
    for make in _OTHERS:
        try:
            call = relax.BlockBuilder().normalize(make(x))
        except Exception:  # Relax has none for this dtype or rank
            continue
        if ask(ns, call) is not None:
            return make
    return None
