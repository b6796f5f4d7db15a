"""Canonical forms of the graphs that TVM's importers make."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
from tvm import relax

from . import (
    activations,
    affine,
    clip,
    compression,
    constants,
    identities,
    norms,
    pad,
    softmax,
    tir_forms,
    variadic,
)
from .rewrite import Rule, Rules, rewrite_pass

__all__ = ["RULES", "Prepare", "merged"]

# The forms that are recognised or undone, one concept per row. For one operator, earlier rows are tried first.
RULES: tuple[tuple[str, Rules], ...] = (
    ("constants", constants.RULES),
    ("identities", identities.RULES),
    ("variadic", variadic.RULES),
    ("operators written as TIR", tir_forms.RULES),
    ("clip and relu", clip.RULES),
    ("padding", pad.RULES),
    ("activations", activations.RULES),
    ("softmax", softmax.RULES),
    ("normalisations", norms.RULES),
    ("affine", affine.RULES),
    ("weights of four bits", compression.RULES),
)


def merged(tables: Iterable[Rules]) -> dict[str, list[Rule]]:
    """One table of rules out of several, in order."""
    rules: dict[str, list[Rule]] = {}
    for table in tables:
        for op, some in table.items():
            rules.setdefault(op, []).extend(some)
    return rules


@tvm.transform.module_pass(opt_level=0, name="ToDataflow")
def _to_dataflow(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    return mod if all(map(_is_dataflow, mod.functions.values())) else relax.transform.ConvertToDataflow(min_size=1)(mod)


def _is_dataflow(func: Any) -> bool:
    """Whether all bindings of a function are in dataflow blocks, as those that importers make are."""
    blocks = func.body.blocks if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr) else ()
    return all(isinstance(block, relax.DataflowBlock) for block in blocks)


def Prepare() -> tvm.transform.Sequential:
    """The preparing passes: equal results, canonical forms.

    Returns
    -------
    tvm.transform.Sequential
        Safe on any Relax module; functions that a backend owns already are left alone.
    """
    return tvm.transform.Sequential(
        [
            _to_dataflow,
            rewrite_pass("CanonicalForms", merged(table for _, table in RULES)),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ],
        name="Prepare",
    )
