"""Inputs of a model that may lie at any address, because only regions of the native library read them.

TVM's generated code assumes 64 bytes of a tensor's first byte, which NumPy's arrays seldom have; they must be copied.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm
from tvm import relax

from ..core import _native
from ..ir.relax_utils import bindings_of, external_modules


def unaligned_inputs(mod: tvm.IRModule, function: relax.Function) -> list[int]:
    """Positions of those inputs.

    Parameters
    ----------
    mod : IRModule
        The module, its regions built.
    function : Function
        The model's function.
    """
    symbols = _native.regions(external_modules(mod)).keys()
    if not symbols:
        return []
    read = [*relax.analysis.free_vars(function.body.body)]
    for _, value in bindings_of(function):
        if not _calls_region(value, symbols):
            read += relax.analysis.free_vars(value)
    return [i for i, param in enumerate(function.params) if not any(param.same_as(var) for var in read)]


def _calls_region(value: Any, symbols: Collection[str]) -> bool:
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.call_dps_packed":
        return False
    callee = value.args[0]
    return isinstance(callee, relax.ExternFunc) and str(callee.global_symbol) in symbols
