"""What went wrong on the way: one entry per call and compiler, kept in an attribute of the module.

Plain refusals are not noted (whoever asks the compiler again gets them again); noted is what only the build knows:
code that crashed, regions that could not be lowered, planned or compiled, and what a policy left with TVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import tvm

from .errors import UnsupportedError

__all__ = ["LOG_ATTR", "Entry", "raise_failures", "read_log", "with_entries"]

#: module attribute that holds the entries, as JSON
LOG_ATTR = "byoc_log"


@dataclass(frozen=True)
class Entry:
    """Why one compiler did not get one call.

    Attributes
    ----------
    function, name : str
        Function in which the call stands, and the variable that holds its result.
    op : str
        Relax operator.
    compiler : str
        Namespace that did not get it.
    stage : str
        ``annotate`` or ``pattern`` for code that crashed there; ``lower``, ``plan`` or ``codegen`` for a region that
        failed there; ``policy`` for what was not worth a region, ``policy crash`` where the policy itself failed;
        ``output`` for a region that is a module although source was asked for.
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
    """The module with more entries; what it says already is not said twice."""
    old = read_log(mod)
    merged = list(dict.fromkeys([*old, *entries]))
    if len(merged) == len(old):
        return mod
    return mod.with_attr(LOG_ATTR, json.dumps([asdict(e) for e in merged]))


def raise_failures(entries: Sequence[Entry]) -> None:
    """Raise for everything that broke; what a policy decided is no failure.

    Raises
    ------
    UnsupportedError
        Listing each call with its reason.
    """
    failures = [e for e in entries if e.stage != "policy"]
    if failures:
        lines = "".join(f"\n  {e}" for e in failures)
        raise UnsupportedError(
            f"{len(failures)} call(s) could not be offloaded and strict=True forbids to leave them with TVM:{lines}"
        )
