"""Which operators that are kept whole a compiler knows, and why it did not take a call of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tvm import relax

from ...core.compilation import Compilation
from ...core.ledger import MATCH, Fact
from ...ir.relax_utils import op_calls
from ...ir.tvm_compat import var_name
from ...vendors.namespace import Namespace
from ...vendors.namespaces import namespace
from ...whole import is_whole, whole_ops
from .needed import ops_in_pattern
from .trial import ask

__all__ = ["refused_whole", "unknown_whole"]


def _knows(ns: Namespace, op: str) -> bool:
    return op in ns.ops() or any(op in ops_in_pattern(p.pattern) for p in ns.patterns.values())


def unknown_whole(func: relax.Function, compilers: Sequence[str]) -> set[str]:
    """The operators kept whole that a function calls, and about which none of its compilers can be asked."""
    return {op for op in whole_ops(func) if not any(_knows(namespace(name), op) for name in compilers)}


def refused_whole(
    functions: Iterable[relax.Function], compilers: Sequence[str], compilation: Compilation
) -> Iterator[Fact]:
    """Why the compilers that know them have left calls of such operators; each is named by its result."""
    for func in functions:
        for var, call in op_calls(func):
            for ns in map(namespace, compilers if is_whole(call.op.name) else ()):
                if _knows(ns, call.op.name) and (refusal := ask(ns, call, compilation)) is not None:
                    name = var_name(var)
                    op = f"{ns.name}.{call.op.name}"
                    yield Fact("", name, op, ns.name, MATCH, refusal.reason, (name,))
