"""The ledger of a module: what was decided about its calls, each fact written once, in one attribute.

In it are single calls that were refused, code that crashed, regions that could not be lowered, planned or compiled,
calls that a policy left with TVM, and what nearly matched. A report reads them here, and nowhere else; what the build
had no reason to ask, it asks itself, and says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tvm

from .errors import UnsupportedError

_logger = logging.getLogger("tvm_byoc_dnnl")
_MOST_NAMES = 3

#: stages that are decisions and no failures
CUT = "cut"
_DECISIONS = ("policy", "placement", CUT)
#: stages of facts that are for reports only
ALONE, MATCH, FORM, ASKED = "alone", "match", "form", "asked"
FOR_REPORTS = (ALONE, MATCH, FORM, ASKED)

_ATTR = "byoc_log"


@dataclass(frozen=True)
class Fact:
    """The reason why one compiler did not get one call, or why calls are not the form or the match that they resemble.

    The stage is ``prepare`` for a vendor's pass that was left out; ``annotate`` or ``pattern`` for code that crashed
    there; ``lower``, ``plan`` or ``codegen`` for a region that failed there; ``cut`` for a call with which another
    region of the same compiler begins, because all calls together failed; ``policy`` for calls not worth a region;
    ``placement`` for calls that were given to another compiler by hand or by measurement; ``output`` for a region that
    is a module although source was asked for. For reports: ``alone`` for what it said of a single call: why it refuses
    that, and nothing where it would take what a compiler before it has got; ``form`` for what looks like a form that
    the preparing rules know; ``match`` for a match of a pattern that was refused; ``asked`` for a compiler that was
    asked for the module's calls.
    """

    function: str = ""
    name: str = ""  #: of the variable that holds the result
    op: str = ""  #: of a form and of a match its name, such as ``prepare.gelu`` or ``<namespace>.<pattern>``
    compiler: str = ""
    stage: str = ""
    reason: str = ""
    calls: tuple[str, ...] = ()  #: of a match, the variables that hold the results of its calls

    def __str__(self) -> str:
        return f"{self.op} ({self.name} in {self.function}): {self.compiler}: {self.stage}: {self.reason}"


def read_facts(mod: tvm.IRModule) -> list[Fact]:
    if not mod.attrs or _ATTR not in mod.attrs:
        return []
    records = json.loads(str(mod.attrs[_ATTR]))
    return [Fact(**{**record, "calls": tuple(record.get("calls", ()))}) for record in records]


def read_log(mod: tvm.IRModule) -> list[Fact]:
    """The failures and decisions of a module, oldest first."""
    return [fact for fact in read_facts(mod) if fact.stage not in FOR_REPORTS]


def with_facts(mod: tvm.IRModule, facts: Iterable[Fact]) -> tvm.IRModule:
    """The module with more facts, which are logged; those that it has already are not added again."""
    given = list(facts)
    old = read_facts(mod) if given else []
    merged = list(dict.fromkeys([*old, *given]))
    if len(merged) == len(old):
        return mod
    _warn([fact for fact in merged[len(old) :] if fact.stage not in FOR_REPORTS])
    records = [{name: value for name, value in vars(fact).items() if value} for fact in merged]
    return mod.with_attr(_ATTR, json.dumps(records))


def _warn(facts: Sequence[Fact]) -> None:
    """One line for all calls of an operator with one reason; a decision causes no warning."""
    groups: dict[tuple[str, str, str, str, str], list[str]] = {}
    for e in facts:
        groups.setdefault((e.op, e.function, e.compiler, e.stage, e.reason), []).append(e.name)
    for (op, function, compiler, stage, reason), names in groups.items():
        some = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        calls = f"{len(names)} calls: {some}" if len(names) > 1 else some
        level = logging.INFO if stage in _DECISIONS else logging.WARNING
        what = "in another region" if stage == CUT else "not offloaded as asked"
        _logger.log(level, "%s: %s (%s in %s): %s: %s: %s", what, op, calls, function, compiler, stage, reason)


def raise_failures(facts: Sequence[Fact]) -> None:
    """Raise `UnsupportedError` with each call that failed; a decision of a policy or a placement is no failure."""
    failures = [e for e in facts if e.stage not in _DECISIONS]
    if failures:
        lines = "".join(f"\n  {e}" for e in failures)
        raise UnsupportedError(
            f"{len(failures)} call(s) could not be offloaded and strict=True forbids to leave them with TVM:{lines}"
        )
