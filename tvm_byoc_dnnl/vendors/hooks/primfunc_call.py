"""How a region calls its PrimFunc: parameters, symbols, constants and results in one fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from ...core.verdict import Reject, require
from ...ir.relax_utils import constants_in
from ...ir.tvm_compat import dtype_of, shape_dims
from ...ir.walker import Substitute
from ...regions.inline import flatten_region


def with_known_shapes(func: relax.Function) -> relax.Function:
    """``func`` with the values of shape arguments in place of their variables; many lowerings need that."""
    shapes = [v for v in relax.analysis.all_vars(func) if isinstance(v.ty, relax.ShapeType) and v.ty.values is not None]
    return Substitute({var: relax.ShapeExpr(var.ty.values) for var in shapes}).function(func)


def region_arguments(func: relax.Function) -> list[relax.Expr]:
    """The arguments that a region passes to its PrimFunc, in the order of its own parameters.

    Tensors, tuples flattened. A shape or scalar parameter gives the symbols in it, but for those that are a plain
    dimension of some tensor, because a PrimFunc reads these off the tensor.
    """
    found: dict[Any, None] = dict.fromkeys(e for p in func.params for e in _arguments(p))
    tensors = [e for e in found if isinstance(e.ty, relax.TensorType)]
    bound = {d for t in tensors for d in shape_dims(t.ty) or () if isinstance(d, tirx.Var)}
    return [e for e in found if e not in bound]


def _arguments(expr: Any) -> Iterator[Any]:
    ty = expr.ty
    if isinstance(ty, relax.TupleType):
        for i in range(len(ty.fields)):
            yield from _arguments(relax.BlockBuilder().normalize(relax.TupleGetItem(expr, i)))
    elif isinstance(ty, relax.ShapeType):
        require(ty.values is not None, f"the shape argument {expr} has unknown values")
        for dim in ty.values:
            yield from tirx.analysis.undefined_vars(dim)
    elif isinstance(ty, relax.TensorType) or tvm.ir.is_prim_expr(expr):
        yield expr
    else:
        raise Reject(f"argument {expr} is {ty}; a PrimFunc takes tensors and numbers")


def region_constants(func: relax.Function) -> list[relax.Expr]:
    """The constants of a region, composites included, each once, in the order of their first use."""
    return list(dict.fromkeys(constants_in(flatten_region(func))))


def call_primfunc(func: relax.Function, callee: Any, primfunc: tirx.PrimFunc) -> relax.Expr:
    """A ``call_tir`` of ``primfunc``, which computes all of the region ``func``, on the region's parameters.

    Parameters
    ----------
    func : relax.Function
        The region.
    callee : GlobalVar
        What to call.
    primfunc : PrimFunc
        Its parameters are `region_arguments`, then either none or all of `region_constants`, then the results,
        tuples flattened.

    Raises
    ------
    Reject
        If the parameters of ``primfunc`` are not these.
    """
    args, types = region_arguments(func), _result_types(func.ret_ty)
    constants = region_constants(func)
    if len(primfunc.params) == len(args) + len(constants) + len(types):
        args = args + constants
    require(
        len(primfunc.params) == len(args) + len(types),
        f"the PrimFunc has {len(primfunc.params)} parameters; expected {len(args)} inputs, none or all of "
        f"{len(constants)} constants, and {len(types)} results",
    )
    for number, (param, ty) in enumerate(zip(primfunc.params, [*(a.ty for a in args), *types], strict=True)):
        _check_parameter(number, param, ty)
    return relax.op.call_tir(callee, relax.Tuple(args), types[0] if len(types) == 1 else types)


def with_body(func: relax.Function, expr: relax.Expr, order: Sequence[int] | None = None) -> relax.Function:
    """The function ``func`` with another body.

    Parameters
    ----------
    func : relax.Function
        A region or a composite.
    expr : relax.Expr
        In terms of ``func.params``: one tensor, or a flat tuple of tensors.
    order : sequence of int, optional
        Which of these tensors are the results of ``func``, tuples flattened; by default all.
    """
    block = relax.BlockBuilder()
    expr = block.normalize(expr)
    result = relax.Var("result", expr.ty)
    is_tuple = isinstance(expr.ty, relax.TupleType)
    parts: list[Any] = [relax.TupleGetItem(result, i) for i in range(len(expr.ty.fields))] if is_tuple else [result]
    parts = parts if order is None else [parts[i] for i in order]
    count = len(_result_types(func.ret_ty))
    require(len(parts) == count, f"{len(parts)} results came back, expected {count}")
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, expr)])], _nested(func.ret_ty, iter(parts)))
    new = relax.Function(func.params, body, func.ret_ty, func.is_pure)
    return relax.utils.copy_with_new_vars(block.normalize(new))


def _result_types(ty: Any) -> list[relax.TensorType]:
    """The tensors in the type of a result, tuples flattened."""
    if isinstance(ty, relax.TupleType):
        return [t for f in ty.fields for t in _result_types(f)]
    if not isinstance(ty, relax.TensorType) or shape_dims(ty) is None:
        raise Reject(f"a result is {ty}; a PrimFunc makes tensors of a shape that is known before it runs")
    return [ty]


def _nested(ty: Any, parts: Iterator[Any]) -> Any:
    """Flat results in the nesting of ``ty``."""
    return relax.Tuple([_nested(f, parts) for f in ty.fields]) if isinstance(ty, relax.TupleType) else next(parts)


def _check_parameter(number: int, param: Any, ty: Any) -> None:
    shape = getattr(param, "shape", None)
    if isinstance(ty, relax.TensorType):
        dims = ", ".join(str(int(d) if isinstance(d, tirx.IntImm) else d) for d in shape or ())
        what = str(param.ty) if shape is None else f"{dtype_of(param)}[{dims}]"
        is_right = shape is not None and fits(dtype_of(param), list(shape), ty)
    else:
        what, is_right = "a buffer", shape is None
    require(is_right, f"parameter {number} of the PrimFunc, {param.name}, is {what}; expected {ty}")


def fits(dtype: str, shape: list[Any], ty: Any) -> bool:
    """Whether a buffer of ``dtype`` and ``shape`` can hold a tensor of type ``ty``, as far as its dims are numbers."""
    dims = shape_dims(ty)
    if dtype != dtype_of(ty) or dims is None or len(shape) != len(dims):
        return False
    pairs = zip(shape, dims, strict=True)
    return all(int(a) == b for a, b in pairs if isinstance(a, tirx.IntImm) and isinstance(b, int))
