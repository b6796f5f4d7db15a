"""Types and symbolic dimensions of Relax, as the translator needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
from tvm import relax, tirx


def is_tir(call: relax.Call) -> bool:
    """Whether a call is a scalar TIR expression (`tirx.exp`, …) and not a Relax call that returns a scalar."""
    return tvm.ir.is_prim_expr(call) and isinstance(call.op, tvm.ir.Op) and not call.op.name.startswith("relax.")


def leaves(expr: relax.Expr) -> list[relax.Expr]:
    return [leaf for f in expr.fields for leaf in leaves(f)] if isinstance(expr, relax.Tuple) else [expr]


def symbols_in(dim: Any) -> list[tirx.Var]:
    return list(tirx.analysis.undefined_vars(dim)) if isinstance(dim, tvm.ir.Expr) else []


def symbols_of(params: Iterable[relax.Var]) -> list[tirx.Var]:
    """The distinct symbols in the types of parameters, in order, scalar parameters included."""

    def dims(ty: Any) -> list[Any]:
        if isinstance(ty, relax.TupleType):
            return [dim for inner in ty.fields for dim in dims(inner)]
        if isinstance(ty, relax.TensorType):
            return list(ty.shape.values) if isinstance(ty.shape, relax.ShapeExpr) else []
        return list(ty.values or ()) if isinstance(ty, relax.ShapeType) else []

    every = (d for p in params for d in ([p] if tvm.ir.is_prim_expr(p) else dims(p.ty)))
    return list(dict.fromkeys(symbol for dim in every for symbol in symbols_in(dim)))


def paired_dims(ty: Any, value: relax.Expr) -> Iterable[tuple[Any, Any]]:
    """Dimensions in a type, each with that of a resolved value; dimensions that the type leaves open are left out."""
    if isinstance(ty, relax.TupleType):
        for inner, field in zip(ty.fields, value.fields, strict=True):
            yield from paired_dims(inner, field)
    elif isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        yield from zip(ty.shape.values, value.ty.shape.values, strict=True)
    elif isinstance(ty, relax.ShapeType) and ty.values is not None:
        yield from zip(ty.values, value.values, strict=True)
