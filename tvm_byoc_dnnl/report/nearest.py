"""The pattern that nearly matched: how far it got, and the constraint that failed.

TVM's matcher answers yes or no. `near_misses` walks the same patterns by itself over the dataflow, counts the calls
that fit, and remembers the first thing that did not: another operator, an operand that is not constant, an attribute,
the pattern's own check, or an intermediate result that somebody else reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..annotate.passes import ask_pattern
from ..registry import Namespace, Pattern
from .dfpattern import Part, compile_pattern, size
from .flow import Flow, Item, Leaf, Node, Source
from .model import NearMiss

__all__ = ["near_misses"]

_COMMUTATIVE = frozenset({"relax.add", "relax.multiply"})  # as in TVM's matcher
_MIN_SHARE = 0.5  # of a pattern's calls: below it, the likeness is an accident
_MAX_PER_CALL = 3


@dataclass
class _Attempt:
    """How much of a pattern fits: the calls found, those missing, and the first thing that is wrong."""

    found: dict[Node, None] = field(default_factory=dict)
    bound: dict[Any, Source] = field(default_factory=dict)
    missing: int = 0
    failure: str = ""

    def fail(self, why: str, missing: int = 0) -> _Attempt:
        self.failure = self.failure or why
        self.missing += missing
        return self

    def copy(self) -> _Attempt:
        return _Attempt(dict(self.found), dict(self.bound), self.missing, self.failure)

    @property
    def merit(self) -> tuple[int, int, bool]:
        return len(self.found), -self.missing, not self.failure


def near_misses(flow: Flow, namespaces: Sequence[Namespace]) -> dict[Node, list[NearMiss]]:
    """For each call that no pattern took, the patterns that came nearest, best first.

    Host calls get every pattern that fits by half or more; calls that are offloaded one by one only those that fit
    as a whole and were refused.
    """
    best: dict[Node, dict[str, NearMiss]] = {}
    for ns, pattern, attempt in _attempts(flow, namespaces):
        name = f"{ns.name}.{pattern.name}"
        miss = _judge(ns, pattern, name, attempt)
        if miss is None or miss.matched < _MIN_SHARE * miss.of:
            continue
        for node in attempt.found:
            is_fused = node.composite.partition(".")[2] in ns.patterns
            if is_fused or (node.compiler and attempt.missing):
                continue
            old = best.setdefault(node, {}).get(name)
            if old is None or miss.matched > old.matched:
                best[node][name] = miss
    return {
        node: sorted(misses.values(), key=lambda m: (m.of - m.matched, -m.matched))[:_MAX_PER_CALL]
        for node, misses in best.items()
    }


def _attempts(flow: Flow, namespaces: Sequence[Namespace]) -> Iterator[tuple[Namespace, Pattern, _Attempt]]:
    index: dict[str, list[tuple[Namespace, Pattern, Part, Part, Part | None]]] = {}
    for ns in namespaces:
        for pattern in ns.patterns.values():
            root = compile_pattern(pattern.pattern)
            for part, reader in _op_parts(root):
                for op in part.ops:
                    index.setdefault(op, []).append((ns, pattern, root, part, reader))
    for node in flow.nodes:
        for ns, pattern, root, part, reader in index.get(node.op, ()):
            if reader is None:
                yield ns, pattern, _fit(root, node, "its root", _Attempt())
            elif not any(user.op in reader.ops for user in node.users):
                # The pattern goes on where the graph does not: only the part up to here can fit.
                attempt = _fit(part, node, "", _Attempt())
                attempt.missing += size(root) - size(part)
                wrong = [attempt.failure] if attempt.failure else []
                attempt.failure = "; ".join([*wrong, _wrong_reader(node, reader)])
                yield ns, pattern, attempt


def _op_parts(part: Part, reader: Part | None = None) -> Iterator[tuple[Part, Part | None]]:
    """Each call of a pattern, and the call that reads it (``None`` for the root)."""
    if part.kind == "op":
        yield part, reader
        reader = part
    for child in part.parts:
        yield from _op_parts(child, reader)


def _wrong_reader(node: Node, reader: Part) -> str:
    wanted = _one_of(reader.ops)
    if not node.users:
        return f"{_call(node)} must be read by {wanted}, but it is a result of the function"
    return f"{_call(node)} must be read by {wanted}, but {_list(node.users)} reads it"


# ---------------------------------------------------------------- fitting
def _fit(part: Part, source: Source, where: str, attempt: _Attempt) -> _Attempt:
    """Extend an attempt by ``part`` standing at ``source``."""
    if part.key in attempt.bound:
        if _same(attempt.bound[part.key], source):
            return attempt
        return attempt.fail(f"{where} must be the same value as in the pattern's other use of it")
    attempt.bound[part.key] = source
    attempt = _FITTERS[part.kind](part, source, where, attempt)
    if part.constraint is not None and not attempt.failure:
        wrong = part.constraint(_expr(source))
        if wrong:
            attempt.fail(f"{_describe(source)}: {wrong}")
    return attempt


def _fit_op(part: Part, source: Source, where: str, attempt: _Attempt) -> _Attempt:
    if not isinstance(source, Node) or source.op not in part.ops:
        return attempt.fail(f"{where} must be {_one_of(part.ops)}, found {_describe(source)}", size(part))
    attempt.found[source] = None
    if not part.parts:
        return attempt  # any operands
    if len(part.parts) > len(source.args):
        wanted, got = len(part.parts), len(source.args)
        return attempt.fail(f"{_call(source)} has {got} operands, the pattern asks for {wanted}")
    orders = [list(source.args)]
    if source.op in _COMMUTATIVE and len(source.args) == 2:
        orders.append(orders[0][::-1])
    tries = [_fit_all(part.parts, order, f"of {_call(source)}", attempt.copy()) for order in orders]
    return max(tries, key=lambda t: t.merit)


def _fit_all(parts: Sequence[Part], sources: Sequence[Source], whose: str, attempt: _Attempt) -> _Attempt:
    for i, (part, source) in enumerate(zip(parts, sources, strict=False)):
        attempt = _fit(part, source, f"operand {i} {whose}", attempt)
    return attempt


def _fit_or(part: Part, source: Source, where: str, attempt: _Attempt) -> _Attempt:
    return max((_fit(p, source, where, attempt.copy()) for p in part.parts), key=lambda t: t.merit)


def _fit_and(part: Part, source: Source, where: str, attempt: _Attempt) -> _Attempt:
    for condition in part.parts:
        attempt = _fit(condition, source, where, attempt)
    return attempt


def _fit_constant(part: Part, source: Source, where: str, attempt: _Attempt) -> _Attempt:
    if isinstance(source, Leaf) and source.is_constant:
        return attempt
    return attempt.fail(f"{where} must be a constant, found {_describe(source)}")


def _fit_item(part: Part, source: Source, where: str, attempt: _Attempt) -> _Attempt:
    if isinstance(source, Item) and source.index == part.index:
        return _fit(part.parts[0], source.of, f"the tuple of {where}", attempt)
    return attempt.fail(f"{where} must be field {part.index} of a tuple, found {_describe(source)}", size(part))


def _fit_tuple(part: Part, source: Source, where: str, attempt: _Attempt) -> _Attempt:
    if isinstance(source, tuple) and len(source) == len(part.parts):
        return _fit_all(part.parts, source, f"of {where}", attempt)
    return attempt.fail(f"{where} must be a tuple of {len(part.parts)}, found {_describe(source)}", size(part))


_FITTERS = {
    "any": lambda part, source, where, attempt: attempt,
    "op": _fit_op,
    "or": _fit_or,
    "and": _fit_and,
    "constant": _fit_constant,
    "item": _fit_item,
    "tuple": _fit_tuple,
}


# ---------------------------------------------------------------- judging
def _judge(ns: Namespace, pattern: Pattern, name: str, attempt: _Attempt) -> NearMiss | None:
    """What is wrong with an attempt; ``None`` where nothing is, or where the pattern did match."""
    found = list(attempt.found)
    reason = attempt.failure
    if not reason:
        if all(n.composite == name for n in found):
            return None
        reason = _leak(found) or _refusal(ns, pattern, attempt)
    if not reason:
        return None
    return NearMiss(name, len(found), len(found) + attempt.missing, reason, sorted(n.id for n in found))


def _leak(found: list[Node]) -> str:
    """An intermediate result that is read outside of the match; the first one found is the match's root."""
    for node in found[1:]:
        outside = [u for u in node.users if u not in found]
        if outside:
            return f"{_call(node)} would be an intermediate result, but {_list(outside)} reads it too"
        if node.is_output:
            return f"{_call(node)} would be an intermediate result, but it is a result of the function too"
    return ""


def _refusal(ns: Namespace, pattern: Pattern, attempt: _Attempt) -> str:
    match = {name: _expr(attempt.bound[key]) for name, key in pattern.annotations.items() if key in attempt.bound}
    root = next(iter(attempt.found))
    refusal = ask_pattern(ns, pattern, {**match, "root": root.call})
    return refusal.reason if refusal is not None else ""


# ---------------------------------------------------------------- values and words
def _expr(source: Source) -> Any:
    if isinstance(source, Node):
        return source.call
    if isinstance(source, (Leaf, Item)):
        return source.expr
    return tuple(_expr(s) for s in source)


def _same(a: Source, b: Source) -> bool:
    return a is b or (isinstance(a, Leaf) and isinstance(b, Leaf) and a.expr.same_as(b.expr))


def _call(node: Node) -> str:
    return f"{node.op} ({node.name})" if node.name else node.op


def _describe(source: Source) -> str:
    if isinstance(source, Node):
        return _call(source)
    if isinstance(source, Leaf):
        return source.kind
    if isinstance(source, Item):
        return f"field {source.index} of {_describe(source.of)}"
    return f"a tuple of {len(source)}"


def _list(nodes: Sequence[Node]) -> str:
    names = [_call(n) for n in dict.fromkeys(nodes)]
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _one_of(ops: frozenset[str]) -> str:
    return " or ".join(sorted(ops)) or "a call"
