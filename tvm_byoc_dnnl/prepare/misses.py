"""Values that look like a form that the preparing rules know, but are not one: noted in the module, for reports.

A rule notes a miss where it gives up after it has recognised most of a form: a wrong factor, another axis, a part
that another call reads. A value that becomes part of another form later is not noted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import tvm

__all__ = ["Miss", "read_misses", "with_misses"]

_ATTR = "byoc_near_forms"


@dataclass(frozen=True)
class Miss:
    """The reason why a value was left as it is.

    Attributes
    ----------
    function, name : str
        Function in which it stands, and the variable that holds it.
    form : str
        The form that it resembles: ``"gelu"``, ``"layer_norm"`` …
    reason : str
        The difference, with the value.
    """

    function: str
    name: str
    form: str
    reason: str


def read_misses(mod: tvm.IRModule) -> list[Miss]:
    """The misses noted in a module."""
    if not mod.attrs or _ATTR not in mod.attrs:
        return []
    return [Miss(**record) for record in json.loads(str(mod.attrs[_ATTR]))]


def with_misses(mod: tvm.IRModule, misses: Iterable[Miss]) -> tvm.IRModule:
    """The module with these misses in addition to those that it has."""
    new = list(misses)
    if not new:
        return mod
    merged = list(dict.fromkeys([*read_misses(mod), *new]))
    return mod.with_attr(_ATTR, json.dumps([asdict(m) for m in merged]))
