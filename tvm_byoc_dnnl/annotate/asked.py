"""The compilers that were asked for the calls of a module; the module keeps their names for reports."""

from __future__ import annotations

from collections.abc import Iterable

import tvm

__all__ = ["asked_of", "with_asked"]

_ATTR = "byoc_asked"


def asked_of(mod: tvm.IRModule) -> list[str]:
    """The compilers noted in a module, in order of priority."""
    return [str(name) for name in (mod.attrs or {}).get(_ATTR, ())]


def with_asked(mod: tvm.IRModule, compilers: Iterable[str]) -> tvm.IRModule:
    """The module with these behind those that it has."""
    merged = list(dict.fromkeys([*asked_of(mod), *compilers]))
    return mod.with_attr(_ATTR, merged) if merged else mod
