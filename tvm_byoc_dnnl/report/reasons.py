"""Why a call stays with TVM: every compiler is asked again, and what the build noted is added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tvm

from ..annotate.trial import ask
from ..log import read_log
from ..registry import Namespace
from ..verdict import Reject
from .flow import Node

__all__ = ["BuildLog", "reasons_for"]


class BuildLog:
    """What was noted while the module was built: failures after annotation, and what a policy left with TVM."""

    def __init__(self, mod: tvm.IRModule) -> None:
        try:
            self._entries = read_log(mod)
        except (TypeError, ValueError):
            self._entries = []  # another version's notes: the compilers are asked again in any case

    def about(self, node: Node, compiler: str) -> list[str]:
        """Reasons why ``compiler`` did not get this call: those noted for its variable, else for its operator."""
        same_op = [e for e in self._entries if (e.compiler, e.op, e.function) == (compiler, node.op, node.function)]
        same_name = [e for e in same_op if e.name == node.name]
        return list(dict.fromkeys(f"{e.stage}: {e.reason}" for e in same_name or same_op))


def reasons_for(node: Node, namespaces: Sequence[Namespace], log: BuildLog) -> list[str]:
    """One reason per compiler that was asked before somebody took the call; of a host call, of every compiler."""
    reasons = []
    for ns in _asked(node, namespaces):
        refusal = _ask(ns, node)
        why = [refusal.reason] if refusal is not None else log.about(node, ns.name)
        if not why and not node.compiler:
            why = ["would take this call, but the module leaves it with TVM and does not say why"]
        reasons += [f"{ns.name}: {w}" for w in why]
    return reasons


def _asked(node: Node, namespaces: Sequence[Namespace]) -> Iterable[Namespace]:
    for ns in namespaces:
        if ns.name == node.compiler:
            return
        yield ns


def _ask(ns: Namespace, node: Node) -> Reject | None:
    if not isinstance(node.call.op, tvm.ir.Op):
        return Reject(f"{node.op} is no Relax operator")
    refusal = ask(ns, node.call)
    if refusal is not None and node.kernel:
        return Reject(f"{refusal.reason} (it calls {node.kernel})")
    return refusal
