"""The choice of a compiler: of all compilers that would take a call, one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import tvm

from ..core.errors import InputError, did_you_mean
from ..vendors.namespaces import HOST, compilers, find_namespace, namespace


@dataclass(frozen=True)
class Match:
    #: the pattern, or the single operator, as ``<namespace>.<name>``
    composite: str
    #: variable that holds the result of the last call
    result: str
    #: variable that holds the result → call
    calls: Mapping[str, Any]
    #: the compilers that would take all of them, in order of priority; the first has found the match
    candidates: Sequence[str]


#: ``choice(match) -> one of the candidates``, or another name for "none of these"
Choice = Callable[[Match], str]


def first_in_order(match: Match) -> str:
    return match.candidates[0]


class PlacedBy:
    """The choice that a user wrote down, ``placement`` of `compile`; other calls go to the first candidate.

    A call is named by the variable that holds its result, its operator (``"relax.nn.relu"``), or what a compiler has
    registered: a pattern (all calls that it matches) or an operator (``"vendor.relu"``: all calls of it that would go
    to this compiler). For one run of `AnnotateExternalCompiler`: it remembers what a pattern has matched. ``others``
    has argument → names of calls in it, which `check` looks at, too. `InputError` if a compiler is not registered.
    """

    def __init__(self, placement: Mapping[str, str], others: Mapping[str, Sequence[str]] | None = None) -> None:
        for name, compiler in placement.items():
            if compiler != HOST and find_namespace(compiler) is None:
                raise InputError(
                    f"placement[{name!r}] is {compiler!r}; expected {HOST!r} or a registered compiler: "
                    f"{', '.join(compilers())}{did_you_mean(compiler, compilers())}"
                )
        self._placement = placement
        self._others = others or {}
        self._matched: dict[str, str] = {}  # variable -> compiler, by entries that name a pattern

    def __call__(self, match: Match) -> str:
        wishes = {name: self._wanted(match.composite, name, call) for name, call in match.calls.items()}
        self._matched.update({name: wish for name, wish in wishes.items() if wish is not None})
        compiler = match.candidates[0]
        against = [wish for wish in wishes.values() if wish not in (None, compiler)]
        return str(against[0]) if against else compiler

    def _wanted(self, composite: str, name: str, call: Any) -> str | None:
        if name in self._placement:
            return self._placement[name]
        names = (name, str(call.op.name), *_spellings(composite))
        by_entry = next((c for key, c in self._placement.items() if any(fnmatchcase(n, key) for n in names)), None)
        return by_entry or self._matched.get(name)

    def check(self, calls: Iterable[str]) -> None:
        """Raise `InputError` for an entry that names none of these calls, no operator and nothing registered."""
        known = {*calls, *map(str, tvm.ir.Op.list_op_names())}
        for ns in map(namespace, compilers()):
            known.update(name for entry in (*ns.patterns, *ns.ops()) for name in _spellings(f"{ns.name}.{entry}"))
        entries = [(f"placement[{entry!r}]", entry) for entry in self._placement]
        entries += [(f"{entry!r} in {name}", entry) for name, given in self._others.items() for entry in given]
        for where, entry in entries:
            if entry not in known and not any(sign in entry for sign in "*?["):
                raise InputError(
                    f"{where}: the model has no such call; expected the variable of a call (explain shows them), an "
                    f"operator, or a compiler's pattern or operator{did_you_mean(entry, known)}"
                )


def _spellings(composite: str) -> tuple[str, str]:
    """``acme.relax.nn.relu`` may be written ``acme.relu``."""
    compiler, _, name = composite.partition(".")
    return composite, f"{compiler}.{name.rpartition('.')[2]}"
