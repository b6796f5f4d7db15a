"""Why a call stays with TVM: every compiler is asked again, and what the build noted is added."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import tvm

from ..registry import Namespace
from ..trial import ask
from ..verdict import Reject
from .flow import Node

__all__ = ["BuildLog", "reasons_for"]

#: module attribute in which the build keeps the reasons of trials that failed after annotation
LOG_ATTR = "byoc_log"


class BuildLog:
    """What was noted while the module was built: JSON list of objects with at least ``reason``."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._entries: list[dict[str, Any]] = []
        text = mod.attrs[LOG_ATTR] if mod.attrs and LOG_ATTR in mod.attrs else "[]"
        try:
            entries = json.loads(str(text))
        except ValueError:
            return  # another tool's attribute: nothing of ours to read
        if isinstance(entries, list):
            self._entries = [e for e in entries if isinstance(e, dict) and e.get("reason")]

    def about(self, node: Node) -> list[str]:
        """Reasons noted for this call: the entries that name its operator, and its function and variable if they do."""
        own = {"op": node.op, "function": node.function, "name": node.name}
        found = []
        for entry in self._entries:
            if entry.get("op") == node.op and all(entry.get(k, v) == v for k, v in own.items()):
                stage = f"{entry['stage']}: " if entry.get("stage") else ""
                found.append(f"{entry.get('compiler', '?')}: {stage}{entry['reason']}")
        return list(dict.fromkeys(found))


def reasons_for(node: Node, namespaces: Sequence[Namespace], log: BuildLog) -> list[str]:
    """One reason per compiler that was asked before somebody took the call; of a host call, of every compiler."""
    noted = log.about(node)
    reasons = []
    for ns in _asked(node, namespaces):
        refusal = _ask(ns, node)
        own = [r for r in noted if r.startswith(f"{ns.name}: ")]
        if refusal is not None:
            reasons.append(f"{ns.name}: {refusal.reason}")
        elif own:
            reasons += own
        elif not node.compiler:
            reasons.append(f"{ns.name}: would take this call, but the module leaves it with TVM and says not why")
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
