"""Which calls of the host each use of a region stands for: equal regions share one function, with the names of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import tvm

__all__ = ["names_of_uses", "with_uses"]

#: module attribute, JSON: region -> for each further use the name of a variable in the region -> that of the host
_USES_ATTR = "byoc_uses"


def with_uses(mod: tvm.IRModule, uses: Mapping[str, Sequence[Sequence[str]]]) -> tvm.IRModule:
    """The module with a note of the names in each use of its regions; the function has those of the first one."""
    further = {name: [dict(zip(first, use)) for use in others] for name, (first, *others) in uses.items() if others}
    return mod.with_attr(_USES_ATTR, json.dumps({**names_of_uses(mod), **further})) if further else mod


def names_of_uses(mod: tvm.IRModule) -> dict[str, list[dict[str, str]]]:
    """Region -> for each use after the first, name of a variable in the region -> name in this use."""
    return json.loads(str(mod.attrs[_USES_ATTR])) if mod.attrs and _USES_ATTR in mod.attrs else {}
