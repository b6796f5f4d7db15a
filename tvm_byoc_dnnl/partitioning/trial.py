"""Who would take a call, and who gets it.

Trial lowering: the default predicate is "the lowering does not refuse, and the library can do it". `refused_whole` asks
about operators that are kept whole. Of all compilers that would take a call, a choice names one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import tvm
from tvm import relax

from ..core.compilation import MATCH, Compilation, Fact
from ..core.errors import InputError, NativeLibraryError, VendorError, did_you_mean, takes
from ..core.verdict import Crash, Reject, as_reject, describe, verdict_of
from ..graph import PortableGraph
from ..graph.builder import GraphBuilder
from ..ir.relax_utils import op_calls
from ..vendors import Namespace, Predicate, told
from ..vendors.namespaces import check_arguments, compilers, find_namespace, namespace
from ..whole.table import is_whole, whole_ops
from .matches import ops_in_pattern

_logger = logging.getLogger("tvm_byoc_dnnl")

#: namespace, options, and the form of the graph
Question = tuple[str, str, str]


class Trial:
    """The lowering of one call, or of one match, and what the namespace's library says of it.

    ``source`` has the operators of the calls, which ``lower`` writes to a fresh builder. The compilation has the
    options that regions will have, and what the library said before: most calls of a large model are equal to one
    before them.
    """

    def __init__(
        self,
        ns: Namespace,
        name: str,
        source: list[str],
        lower: Callable[[GraphBuilder], Any],
        compilation: Compilation,
    ) -> None:
        self._ns = ns
        self._options = dict(compilation.options.get(ns.name, {}))
        self._answers = compilation.answers
        self._name = name
        self._graph: PortableGraph  # unless the lowering refuses
        self._is_optimised = False
        self._refusal: Reject | None = None
        #: what equal calls have in common
        self.question: Question = (ns.name, "", "")
        self._try(lambda: self._lower(source, lower))

    def graph(self) -> PortableGraph | None:
        if not self._is_optimised:
            self._is_optimised = True
            self._try(self._optimise)
        return None if self._refusal is not None else self._graph

    def verdict(self) -> Reject | None:
        if self._refusal is None and self.question in self._answers:
            return self._answers[self.question]
        if self.graph() is not None:
            self._try(self._probe)
            if not isinstance(self._refusal, Crash):
                self._answers[self.question] = self._refusal
        return self._refusal

    def _try(self, step: Callable[[], Reject | None]) -> None:
        self._refusal = verdict_of(f"the lowering of {self._name} in {self._ns.name!r}", step)

    def _lower(self, source: list[str], lower: Callable[[GraphBuilder], Any]) -> Reject | None:
        g = GraphBuilder("trial")
        g.graph.options = self._options
        g.begin(source)
        out = lower(g)
        if isinstance(out, Reject):
            return out
        self._graph = g.finish(out)
        self.question = (self._ns.name, str(self._options), self._graph.to_json(anonymous=True))
        return None

    def _optimise(self) -> Reject | None:
        if self._refusal is None:  # as the region of just this call will be
            self._graph = told(self._ns, "optimize", self._graph) or self._graph
        return self._refusal

    def _probe(self) -> Reject | None:
        if self._ns.functions.probe is None:
            self._graph.to_json()  # fails where an attribute cannot be said in the document
            return None
        return told(self._ns, "probe", self._graph)


def trial_of(ns: Namespace, call: Any, compilation: Compilation) -> Trial | None:
    op = call.op.name
    if op in ns.predicates or op not in ns.lowerings:
        return None
    return Trial(ns, op, [op], lambda g: ns.lowerings[op](g, call), compilation)


def _trial_predicate(ns: Namespace, op: str) -> Predicate:
    def predicate(attrs: Any, args: Sequence[Any]) -> bool | Reject:
        call = relax.BlockBuilder().normalize(relax.Call(tvm.ir.Op.get(op), list(args), attrs))
        refusal = ask(ns, call)
        return True if refusal is None else refusal  # a Reject is falsy

    return predicate


def ask(ns: Namespace, call: Any, compilation: Compilation | None = None, trial: Trial | None = None) -> Reject | None:
    """The verdict of a namespace on one call, by whichever predicate it has; its ``trial``, if there is one already."""
    op = call.op.name
    predicate = ns.predicates.get(op)
    if predicate is None:
        trial = trial or trial_of(ns, call, compilation or Compilation())
        return ns.no_predicate(op) if trial is None else trial.verdict()
    who = f"the predicate of {ns.name!r} for {op}"
    return verdict_of(who, lambda: as_reject(predicate(call.attrs, list(call.args)), who))


@takes(compiler=str, op=str)
def get_annotate_compiler(compiler: str, op: str) -> Predicate:
    """The predicate of ``compiler`` for ``op``.

    Where none was registered by hand but the namespace can lower ``op``, the predicate is "the lowering does not
    refuse, and the library has an implementation". An unknown compiler or op gives a predicate that rejects with
    the reason.
    """
    ns = find_namespace(compiler)
    if ns is None:
        return lambda attrs, args: Reject(f"no compiler {compiler!r} is registered")
    if op in ns.predicates:
        return ns.predicates[op]
    if op in ns.lowerings:
        return _trial_predicate(ns, op)
    return lambda attrs, args: ns.no_predicate(op)


def may_take(ns: Namespace) -> set[str]:
    return {*ns.ops()}.union(*(ops_in_pattern(p.pattern) for p in ns.patterns.values()))


def unknown_whole(func: relax.Function, compilers: Sequence[str]) -> set[str]:
    """The operators kept whole that a function calls, and about which none of its compilers can be asked."""
    return {op for op in whole_ops(func) if not any(op in may_take(namespace(name)) for name in compilers)}


def refused_whole(
    functions: Mapping[str, relax.Function], compilers: Sequence[str], compilation: Compilation
) -> Iterator[Fact]:
    """Why the compilers that know them have left calls of such operators; each is named by its result."""
    for function, func in functions.items():
        for var, call in op_calls(func):
            for ns in map(namespace, compilers if is_whole(call.op.name) else ()):
                if call.op.name in may_take(ns) and (refusal := ask(ns, call, compilation)) is not None:
                    name = var.name
                    op = f"{ns.name}.{call.op.name}"
                    yield Fact(function, name, op, ns.name, MATCH, refusal.reason, (name,))


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
    """The choice that a user wrote down, ``place`` of `compile`; other calls go to the first candidate.

    A call is named by the variable that holds its result, its operator (``"relax.nn.relu"``), or what a compiler has
    registered: a pattern (all calls that it matches) or an operator (``"vendor.relu"``: all calls of it that would go
    to this compiler). For one run of `AnnotateExternalCompiler`: it remembers what a pattern has matched. ``others``
    has argument → names of calls in it, which `check` looks at, too. `InputError` if a compiler is not registered.
    """

    def __init__(self, placement: Mapping[str, str], others: Mapping[str, Sequence[str]] | None = None) -> None:
        check_arguments(place=placement)
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
        entries = [(f"place[{entry!r}]", entry) for entry in self._placement]
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


def answers_of(ns: Namespace, graphs: Sequence[PortableGraph]) -> Sequence[Reject | None]:
    """What ``probe_many`` of a namespace says of graphs; nothing where it fails, and each is asked about by itself."""
    try:
        answers = told(ns, "probe_many", graphs)
        if len(answers) == len(graphs) and all(isinstance(answer, (Reject, type(None))) for answer in answers):
            return answers
        raise VendorError(f"probe_many of {ns.name!r} returned {answers!r}; expected an answer to {len(graphs)} graphs")
    except NativeLibraryError:
        raise
    except Exception as error:
        _logger.warning("%s; the answers are asked for one by one", describe(error))
        return ()
