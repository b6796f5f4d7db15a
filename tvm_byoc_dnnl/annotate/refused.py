"""Matches of patterns that were refused: noted in the module, for reports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import tvm

__all__ = ["RefusedMatch", "read_refused", "with_refused"]

_ATTR = "byoc_refused_matches"


@dataclass(frozen=True)
class RefusedMatch:
    """A match of a pattern that was refused.

    Attributes
    ----------
    pattern : str
        ``<namespace>.<name>``.
    names : sequence of str
        Variables that hold the results of the matched calls.
    reason : str
        The reason of the pattern's check, or the call that also reads an intermediate result.
    """

    pattern: str
    names: tuple[str, ...]
    reason: str


def read_refused(mod: tvm.IRModule) -> list[RefusedMatch]:
    """The refused matches noted in a module."""
    if not mod.attrs or _ATTR not in mod.attrs:
        return []
    records = json.loads(str(mod.attrs[_ATTR]))
    return [RefusedMatch(r["pattern"], tuple(r["names"]), r["reason"]) for r in records]


def with_refused(mod: tvm.IRModule, matches: Iterable[RefusedMatch]) -> tvm.IRModule:
    """The module with these matches in addition to those that it has."""
    merged = list(dict.fromkeys([*read_refused(mod), *matches]))
    return mod.with_attr(_ATTR, json.dumps([asdict(m) for m in merged])) if merged else mod
