"""A dataflow pattern as plain Python, so that it can be matched in part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm.relax import dpl

from .._compat import dtype_of, shape_dims

__all__ = ["Part", "compile_pattern", "size"]


@dataclass(eq=False)
class Part:
    """One node of a pattern.

    Attributes
    ----------
    kind : str
        ``op``, ``any``, ``constant``, ``tuple``, ``item``, ``or``, ``and``.
    key : DFPattern
        What it was made of; annotations refer to it.
    ops : frozenset of str
        Of an ``op``: the operators that fit.
    parts : list of Part
        Operands, fields, alternatives, or conditions that must all hold.
    index : int
        Of an ``item``: which field.
    constraint : callable, optional
        ``constraint(expr) -> str``: what is wrong with a matched expression, ``""`` for nothing.
    """

    kind: str
    key: Any
    ops: frozenset[str] = frozenset()
    parts: list[Part] = field(default_factory=list)
    index: int = -1
    constraint: Callable[[Any], str] | None = None


def compile_pattern(pattern: Any) -> Part:
    """Read a DFPattern. What has no meaning here (type and function patterns) fits anything."""
    for kind, read in _READERS.items():
        if isinstance(pattern, kind):
            return read(pattern)
    return Part("any", pattern)


def _operators(pattern: Any) -> frozenset[str]:
    """Names of the operators that the callee of a call pattern may be."""
    if isinstance(pattern, dpl.OrPattern):
        return _operators(pattern.left) | _operators(pattern.right)
    if isinstance(pattern, dpl.ExprPattern):
        return frozenset({str(getattr(pattern.expr, "name", ""))})
    return frozenset()


def size(part: Part) -> int:
    """Calls that a part needs; of alternatives, those of the smallest."""
    return len(_needed(part))


def _needed(part: Part) -> set[Any]:
    below = [_needed(p) for p in part.parts]
    if part.kind == "or":
        return min(below, key=len)
    return set().union(*below) | ({part.key} if part.kind == "op" else set())


def _call(pattern: Any) -> Part:
    return Part("op", pattern, _operators(pattern.op), [compile_pattern(a) for a in pattern.args or ()])


def _pair(kind: str) -> Callable[[Any], Part]:
    return lambda p: Part(kind, p, parts=[compile_pattern(p.left), compile_pattern(p.right)])


def _constrained(make: Callable[[Any], Callable[[Any], str]]) -> Callable[[Any], Part]:
    return lambda p: Part("and", p, parts=[compile_pattern(p.pattern)], constraint=make(p))


def _plain(value: Any) -> Any:
    """An attribute's value in a form that compares and prints alike from both sides."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if hasattr(value, "__len__") and not hasattr(value, "keys"):
        return [_plain(v) for v in value]
    return _plain(value.value) if hasattr(value, "value") else str(value)


def _attributes(pattern: Any) -> Callable[[Any], str]:
    wanted = {str(k): _plain(v) for k, v in pattern.attrs.items()}

    def check(expr: Any) -> str:
        attrs = getattr(expr, "attrs", None)
        for key, want in wanted.items():
            got = _plain(getattr(attrs, key, None))
            if got != want:
                return f"attribute {key} is {got}, the pattern asks for {want}"
        return ""

    return check


def _dtype(pattern: Any) -> Callable[[Any], str]:
    want = str(pattern.dtype)

    def check(expr: Any) -> str:
        got = dtype_of(expr.ty) if hasattr(expr.ty, "dtype") else str(expr.ty)
        return "" if got == want else f"dtype is {got}, the pattern asks for {want}"

    return check


def _shape(pattern: Any) -> Callable[[Any], str]:
    want = [str(d) for d in pattern.shape]

    def check(expr: Any) -> str:
        dims = shape_dims(expr.ty) if hasattr(expr.ty, "shape") else None
        got = None if dims is None else [str(d) for d in dims]
        return "" if got == want else f"shape is {got or 'unknown'}, the pattern asks for {want}"

    return check


_READERS: dict[Any, Callable[[Any], Part]] = {
    dpl.CallPattern: _call,
    dpl.ConstantPattern: lambda p: Part("constant", p),
    dpl.OrPattern: _pair("or"),
    dpl.AndPattern: _pair("and"),
    dpl.TuplePattern: lambda p: Part("tuple", p, parts=[compile_pattern(f) for f in p.fields]),
    dpl.TupleGetItemPattern: lambda p: Part("item", p, parts=[compile_pattern(p.tuple)], index=int(p.index)),
    dpl.AttrPattern: _constrained(_attributes),
    dpl.DataTypePattern: _constrained(_dtype),
    dpl.ShapePattern: _constrained(_shape),
}
