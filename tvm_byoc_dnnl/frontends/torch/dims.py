"""Open dims of PyTorch's exported programs: symbols that no input has by itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from ...ir.signature import DIMS_ATTR
from ...ir.tvm_compat import analyzer, shape_dims, substitute, var_name

__all__ = ["solve_dims"]


def solve_dims(func: relax.Function) -> relax.Function:
    """Compute ``h`` from the sizes of a call where an input has ``2*h``, and none has ``h`` by itself.

    The input gets a symbol for the whole dim, and the body compares its sizes with ``2*h``.
    """
    known = [dim for param in func.params for dim in _dims(param) if isinstance(dim, tirx.Var)]
    bindings: list[Any] = []
    names: dict[str, str] = {}
    params = []
    for param in func.params:
        dims = list(_dims(param))
        for axis, dim in enumerate(dims):
            unknown = _unknown(dim, known)
            solution = _linear(dim, unknown[0]) if len(unknown) == 1 else None
            if solution is None:
                continue
            start, step = solution
            whole = tirx.Var(f"{var_name(param)}_dim{axis}", "int64")
            names[whole.name] = re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(dim))
            value = relax.ShapeExpr([analyzer().simplify(tirx.floordiv(whole - start, step))])
            type_of_value = relax.ShapeType([unknown[0]])
            bindings.append(relax.MatchCast(relax.Var(unknown[0].name, type_of_value), value, type_of_value))
            known.append(unknown[0])
            dims[axis] = whole
        if all(new is old for new, old in zip(dims, _dims(param), strict=True)):
            params.append(param)
            continue
        params.append(relax.Var(var_name(param), relax.TensorType(relax.ShapeExpr(dims), param.ty.dtype)))
        bindings.append(relax.MatchCast(param, params[-1], param.ty))
    if not names:
        return func
    body = relax.SeqExpr([relax.BindingBlock(bindings), *func.body.blocks], func.body.body)
    new = relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    return new.with_attr(DIMS_ATTR, names)


def _dims(param: relax.Var) -> list[Any]:
    return (shape_dims(param.ty) or []) if isinstance(param.ty, relax.TensorType) else []


def _unknown(dim: Any, known: Sequence[Any]) -> list[Any]:
    if isinstance(dim, (int, tirx.Var)):
        return []
    return [v for v in tirx.analysis.undefined_vars(dim) if not any(v.same_as(k) for k in known)]


def _linear(dim: Any, symbol: tirx.Var) -> tuple[Any, int] | None:
    """``start`` and ``step`` if the dim is ``start + step * symbol``, with a positive number as step."""
    at = [substitute(dim, {symbol: tirx.IntImm("int64", value)}) for value in (0, 1, 2)]
    steps = [analyzer().simplify(after - before) for before, after in itertools.pairwise(at)]
    if not all(isinstance(step, tirx.IntImm) and int(step) == int(steps[0]) > 0 for step in steps):
        return None
    return at[0], int(steps[0])
