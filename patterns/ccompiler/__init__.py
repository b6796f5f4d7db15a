"""A C compiler as a backend: regions → TE → TIR → C → object code in the exported library, without LLVM.

It is also the example of target hooks: everything that a vendor registers is in this folder.
"""

from __future__ import annotations

from ...vendor import for_each_region, register_namespace, register_target_hooks
from . import ops
from .lower import NAMESPACE, OPTIONS, TARGET, compile_functions, lower_region

__all__ = ["ops"]

register_namespace(NAMESPACE, policy=ops.ViewsStay())
ops.register(NAMESPACE)
register_target_hooks(
    NAMESPACE,
    relax_to_tir=for_each_region(lower_region),
    tir_to_runtime=compile_functions,
    target=TARGET,
    options=OPTIONS,
)
