"""Canonical forms of the graphs that TVM's importers make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
from tvm import relax

from ..core.compilation import OverwritableWeights
from ..ir.relax_utils import is_host_function, op_calls
from ..ir.tvm_compat import is_constant
from . import activations, affine, compression, constants, identities, integers, norms
from .rewrite import Rule, Rules, rewrite_pass

__all__ = ["RULES", "ExactForms", "FoldTransposed", "Prepare", "merged"]

# The forms that are recognised or undone, one concept per row. For one operator, earlier rows are tried first.
RULES: tuple[tuple[str, Rules], ...] = (
    ("constants", constants.RULES),
    ("identities", identities.RULES),
    ("variadic", identities.VARIADIC),
    ("operators written as TIR", identities.WRITTEN_AS_TIR),
    ("clip and relu", activations.BOUNDS),
    ("padding", identities.PADDING),
    ("activations", activations.RULES),
    ("softmax", norms.SOFTMAX),
    ("normalisations", norms.RULES),
    ("whole numbers", integers.RULES),
    ("affine", affine.RULES),
    ("weights of four bits", compression.RULES),
)


def merged(tables: Iterable[Rules]) -> dict[str, list[Rule]]:
    rules: dict[str, list[Rule]] = {}
    for table in tables:
        for op, some in table.items():
            rules.setdefault(op, []).extend(some)
    return rules


#: Pass: what loses too many bits in the form that it has. It runs without `Prepare`, too.
ExactForms = rewrite_pass("ExactForms", merged([integers.EXACT, norms.EXACT]))


@tvm.transform.module_pass(opt_level=0, name="FoldTransposed")
def FoldTransposed(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Pass: transpose the weights that `Prepare` has left to a compiler, and that it did not take."""
    calls = (call for func in mod.functions.values() if is_host_function(func) for _, call in op_calls(func))
    is_left = any(call.op.name == "relax.permute_dims" and is_constant(call.args[0]) for call in calls)
    return rewrite_pass("Transposed", constants.FOLD_TRANSPOSED)(mod) if is_left else mod


def Prepare(*, keep_transposed: bool = False, own: OverwritableWeights | None = None) -> tvm.transform.Sequential:
    """The preparing passes: equal results, canonical forms.

    Parameters
    ----------
    keep_transposed : bool
        Leave large constant weights that a product reads transposed as they are stored.
    own : OverwritableWeights, optional
        Weights of the module that it may overwrite; it forgets them.

    Returns
    -------
    tvm.transform.Sequential
        Safe on any Relax module; functions that a backend owns already are left alone.
    """
    tables = dict(RULES)
    if keep_transposed:
        tables["constants"] = {**tables["constants"], **constants.KEEP_TRANSPOSED}
    passes = [
        relax.transform.ConvertToDataflow(min_size=1),
        rewrite_pass("CanonicalForms", merged(tables.values()), tidy=True, own=own),
    ]
    return tvm.transform.Sequential(passes, name="Prepare")
