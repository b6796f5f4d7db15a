"""Dataflow blocks of the host: where they are, and who reads what in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax

from ..core.tvm_fast import ByIdentity, items
from ..ir.relax_utils import blocks_in, is_host_function

__all__ = ["Block", "dataflow_blocks"]


class Block:
    """The readers in a dataflow block: the values that a group of bindings needs, and those that others need of it."""

    def __init__(self, block: Any) -> None:
        self._values: ByIdentity[Any] = ByIdentity()
        self._exported: ByIdentity[None] = ByIdentity()
        self._reads: ByIdentity[list[Any]] = ByIdentity()
        self._readers: ByIdentity[list[Any]] = ByIdentity()
        for binding in items(block.bindings):
            reader, value = binding.var, binding.value
            self._values[reader] = value
            self._reads[reader] = items(relax.analysis.free_vars(value))
            if not isinstance(reader, relax.DataflowVar):
                self._exported[reader] = None
            for var in self._reads[reader]:
                self._readers.setdefault(var, []).append(reader)

    def inputs(self, bindings: Sequence[Any]) -> list[Any]:
        """Variables that ``bindings`` read and do not define, each once."""
        own = ByIdentity.of((b.var, None) for b in bindings)
        return list(dict.fromkeys(v for b in bindings for v in self._reads[b.var] if v not in own))

    def outputs(self, bindings: Sequence[Any]) -> list[Any]:
        """Variables of ``bindings`` that others read, in order; none for dead code."""
        own = ByIdentity.of((b.var, None) for b in bindings)
        return [
            var
            for var in (b.var for b in bindings)
            if var in self._exported or any(reader not in own for reader in self._readers.get(var, ()))
        ]

    def neighbours(self, bindings: Sequence[Any]) -> list[Any]:
        """Values in the block that ``bindings`` read, or that read them."""
        own = ByIdentity.of((b.var, None) for b in bindings)
        beside = [*self.inputs(bindings), *(r for var in own for r in self._readers.get(var, ()) if r not in own)]
        return [self._values[var] for var in beside if var in self._values]


def dataflow_blocks(mod: tvm.IRModule) -> Iterator[tuple[Any, Any]]:
    """``(function, block)`` for every dataflow block of the host, in branches and local functions too; main's first."""
    hosts = [(gv, func) for gv, func in mod.functions.items() if is_host_function(func)]
    for gv, func in sorted(hosts, key=lambda host: (host[0].name_hint != "main", host[0].name_hint)):
        yield from ((gv, block) for block in blocks_in(func) if isinstance(block, relax.DataflowBlock))
