"""The reasons for each call: what its compilers told the build, else tell the report, and the notes of the build."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tvm

from ..core.compilation import Compilation
from ..core.ledger import FOR_REPORTS, REFUSED, Fact, read_facts
from ..partitioning.annotate.trial import ask
from ..vendors.namespace import Namespace
from .flow import Node
from .model import Candidate

__all__ = ["BuildLog", "verdicts"]

#: stages of the build's notes whose reasons a compiler gives again when it is asked
_OF_ANNOTATION = ("annotate", "pattern")


class BuildLog:
    """The ledger of a build, by call."""

    def __init__(self, mod: tvm.IRModule) -> None:
        try:
            self._facts = read_facts(mod)
        except (TypeError, ValueError):
            self._facts = []  # another version's notes: the compilers are asked again in any case
        self._of_operator: dict[tuple[str, str, str], list[Fact]] = {}
        self._refused: dict[tuple[tuple[str, str, str], str], str] = {}
        for fact in self._facts:
            operator = (fact.compiler, fact.op, fact.function)
            if fact.stage == REFUSED:
                self._refused[operator, fact.name] = fact.reason
            elif fact.stage not in FOR_REPORTS:
                self._of_operator.setdefault(operator, []).append(fact)

    def of(self, stage: str) -> list[Fact]:
        """The facts of one stage."""
        return [fact for fact in self._facts if fact.stage == stage]

    def about(self, node: Node, compiler: str) -> list[str]:
        """Reasons why ``compiler`` did not get this call: those noted for its variable, else for its operator."""
        same_op = self._of_operator.get((compiler, node.op, node.function), [])
        return self._reasons([e for e in same_op if e.name == node.name] or same_op)

    def behind_annotation(self, node: Node, compiler: str) -> list[str]:
        """Those that were noted for its variable after ``compiler`` had taken the call."""
        same_op = self._of_operator.get((compiler, node.op, node.function), [])
        return self._reasons(e for e in same_op if e.name == node.name and e.stage not in _OF_ANNOTATION)

    def refusal(self, node: Node, compiler: str) -> str | None:
        """Why ``compiler`` has refused the call by itself; ``None`` where it has not, or was not asked."""
        return self._refused.get(((compiler, node.op, node.function), node.name))

    @staticmethod
    def _reasons(entries: Iterable[Fact]) -> list[str]:
        return list(dict.fromkeys(f"{e.stage}: {e.reason}" for e in entries))


def verdicts(
    node: Node, namespaces: Sequence[Namespace], log: BuildLog, compilation: Compilation
) -> tuple[list[Candidate], list[str]]:
    """Every compiler in order, each with why it does not take the call; and the reasons of those that came first.

    These are the compilers that were asked before one took the call; of a host call, all of them.
    """
    why = {ns.name: _reasons(ns, node, log, compilation) for ns in namespaces}
    names = list(why)
    first = names[: names.index(node.compiler)] if node.compiler in why else names
    return [Candidate(n, "; ".join(why[n])) for n in names], [f"{n}: {reason}" for n in first for reason in why[n]]


def _reasons(ns: Namespace, node: Node, log: BuildLog, compilation: Compilation) -> list[str]:
    if ns.name == node.compiler or ns.name in node.candidates:
        return [] if ns.name == node.compiler else log.about(node, ns.name)
    noted = log.behind_annotation(node, ns.name)
    if noted:  # of a pattern's call, too, which alone would be refused
        return noted
    refusal = _refusal(ns, node, log, compilation)
    if refusal:
        return [refusal]
    why = log.about(node, ns.name)
    if not why and not node.compiler:
        return ["would take this call, but the module leaves it with TVM and does not say why"]
    return why


def _refusal(ns: Namespace, node: Node, log: BuildLog, compilation: Compilation) -> str:
    """Why a compiler refuses a call, as it told the build; where that had no reason to ask, it is asked now."""
    if not isinstance(node.call.op, tvm.ir.Op):
        return f"{node.op} is no Relax operator"
    told = log.refusal(node, ns.name)
    if told is None:
        refusal = ask(ns, node.call, compilation)
        told = "" if refusal is None else refusal.reason
        if told and node.op in ns.ops():
            told += " (asked by the report)"
    return f"{told} (it calls {node.kernel})" if told and node.kernel else told
