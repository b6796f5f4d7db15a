"""Failures during a build: one entry per call and compiler, kept in an attribute of the module.

Plain refusals are not noted, because the compiler can be asked for them again. Noted are facts that only the build
knows: code that crashed, regions that could not be lowered, planned or compiled, and calls that a policy left with TVM.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import tvm

from .errors import UnsupportedError

__all__ = ["CUT", "LOG_ATTR", "Entry", "raise_failures", "read_log", "with_entries"]

_logger = logging.getLogger("tvm_byoc_dnnl")
_MOST_NAMES = 3

#: stages that are decisions and no failures
CUT = "cut"
_DECISIONS = ("policy", "placement", CUT)

#: module attribute that holds the entries, as JSON
LOG_ATTR = "byoc_log"


@dataclass(frozen=True)
class Entry:
    """The reason why one compiler did not get one call.

    Attributes
    ----------
    function, name : str
        Function in which the call stands, and the variable that holds its result.
    op : str
        Relax operator.
    compiler : str
        Namespace that did not get it.
    stage : str
        ``prepare`` for a vendor's pass that was left out; ``annotate`` or ``pattern`` for code that crashed there;
        ``lower``, ``plan`` or ``codegen`` for a region that failed there; ``cut`` for a call with which another region
        of the same compiler begins, because all calls together failed; ``policy`` for calls not worth a region,
        ``policy crash`` where the policy itself failed; ``placement`` for calls that were given to another compiler by
        hand or by measurement; ``output`` for a region that is a module although source was asked for.
    reason : str
        With the offending value.
    """

    function: str
    name: str
    op: str
    compiler: str
    stage: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op} ({self.name} in {self.function}): {self.compiler}: {self.stage}: {self.reason}"


def read_log(mod: tvm.IRModule) -> list[Entry]:
    """The entries of a module, oldest first."""
    if not mod.attrs or LOG_ATTR not in mod.attrs:
        return []
    return [Entry(**record) for record in json.loads(str(mod.attrs[LOG_ATTR]))]


def with_entries(mod: tvm.IRModule, entries: Iterable[Entry]) -> tvm.IRModule:
    """The module with more entries, which are logged; entries that it has already are not added again."""
    old = read_log(mod)
    merged = list(dict.fromkeys([*old, *entries]))
    if len(merged) == len(old):
        return mod
    _warn(merged[len(old) :])
    return mod.with_attr(LOG_ATTR, json.dumps([asdict(e) for e in merged]))


def _warn(entries: Sequence[Entry]) -> None:
    """One line for all calls of an operator with one reason; a decision causes no warning."""
    groups: dict[tuple[str, str, str, str, str], list[str]] = {}
    for e in entries:
        groups.setdefault((e.op, e.function, e.compiler, e.stage, e.reason), []).append(e.name)
    for (op, function, compiler, stage, reason), names in groups.items():
        some = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        calls = f"{len(names)} calls: {some}" if len(names) > 1 else some
        level = logging.INFO if stage in _DECISIONS else logging.WARNING
        what = "in another region" if stage == CUT else "not offloaded as asked"
        _logger.log(level, "%s: %s (%s in %s): %s: %s: %s", what, op, calls, function, compiler, stage, reason)


def raise_failures(entries: Sequence[Entry]) -> None:
    """Raise for every failure; a decision of a policy or a placement is not a failure.

    Raises
    ------
    UnsupportedError
        Listing each call with its reason.
    """
    failures = [e for e in entries if e.stage not in _DECISIONS]
    if failures:
        lines = "".join(f"\n  {e}" for e in failures)
        raise UnsupportedError(
            f"{len(failures)} call(s) could not be offloaded and strict=True forbids to leave them with TVM:{lines}"
        )
