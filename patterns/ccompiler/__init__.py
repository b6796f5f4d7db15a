"""A C compiler as a backend: regions → TE → TIR → C → object code in the exported library, without LLVM.

It is also the example of target hooks: everything that a vendor registers is in this folder.
"""

from __future__ import annotations

from ...vendor import for_each_region, register_namespace, register_target_hooks
from .ops import NAMESPACE, OPTIONS, TARGET, ViewsStay, compile_functions, lower_region, register

register_namespace(NAMESPACE, policy=ViewsStay())
register(NAMESPACE)
register_target_hooks(
    NAMESPACE,
    relax_to_tir=for_each_region(lower_region),
    tir_to_runtime=compile_functions,
    target=TARGET,
    options=OPTIONS,
)
