"""Names of variables, unique in their function: reports, logs and policies name a call by the one of its result."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...core.tvm_fast import items
from ...ir.relax_utils import bindings_in
from ...ir.walker import Substitute

__all__ = ["with_unique_names"]


def with_unique_names(func: relax.Function) -> relax.Function:
    """``func`` with every variable named differently."""
    bound = [*items(func.params)]
    for binding in bindings_in(func):
        value = binding.value
        bound += [*items(value.params), binding.var] if isinstance(value, relax.Function) else [binding.var]
    taken: dict[str, int] = {}
    renamed: dict[Any, Any] = {}
    for var in bound:
        name = given = str(var.name)
        while name in taken:
            taken[given] += 1
            name = f"{given}_{taken[given]}"
        taken[name] = 0
        if name != given:
            renamed[var] = type(var)(name, var.ty)
    return Substitute(renamed).function(func) if renamed else func
