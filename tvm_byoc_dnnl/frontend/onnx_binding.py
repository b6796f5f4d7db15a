"""Weights put in the place of the parameters that stood for them during the import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from .._compat import is_a, tensor_constant, with_args
from ..handles import ByIdentity, items

__all__ = ["bind_params"]

_COMPOUND = (relax.Call, relax.Tuple, relax.TupleGetItem)
_SIMPLE = (*_COMPOUND, relax.Var)


def bind_params(module: tvm.IRModule, weights: Mapping[Any, tvm.runtime.Tensor]) -> tvm.IRModule:
    """The module whose ``main`` has ``weights`` in the place of these parameters.

    TVM's pass infers the type of each changed call again. A weight has its parameter's type, so they stay as they are.
    """
    func = module["main"]
    blocks = [(type(block), items(block.bindings)) for block in items(func.body.blocks)]
    values = [binding.value for _, bindings in blocks for binding in bindings]
    if not all(is_a(value, _SIMPLE) for value in values):  # branches have scopes of their own
        return relax.transform.BindParams("main", weights)(module)
    constants = ByIdentity.of((param, tensor_constant(tensor)) for param, tensor in weights.items())
    bound = [kind([_bound_binding(b, constants) for b in bindings]) for kind, bindings in blocks]
    body = relax.SeqExpr(bound, _bound(func.body.body, constants))
    relax.expr._update_type(body, func.body.ty)
    params = [param for param in func.params if param not in constants]
    module = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs, global_infos=module.global_infos)
    module["main"] = relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    return module


def _bound_binding(binding: Any, constants: ByIdentity[Any]) -> Any:
    value = _bound(binding.value, constants)
    if value is binding.value:
        return binding
    if is_a(binding, relax.MatchCast):
        return relax.MatchCast(binding.var, value, binding.ty)
    return relax.VarBinding(binding.var, value)


def _bound(value: Any, constants: ByIdentity[Any]) -> Any:
    """``value`` with constants in the place of parameters; itself if it reads none."""
    if not is_a(value, _COMPOUND):
        return constants.get(value, value)
    if is_a(value, relax.Call):
        args = _bound_all(value.args, constants)
        return value if args is None else with_args(value, args, value.ty)
    if is_a(value, relax.Tuple):
        fields = _bound_all(value.fields, constants)
        return value if fields is None else relax.Tuple(fields, value.span)
    old = value.tuple_value
    whole = _bound(old, constants)
    return value if whole is old else relax.TupleGetItem(whole, value.index, value.span)


def _bound_all(values: Any, constants: ByIdentity[Any]) -> list[Any] | None:
    """The values with constants in the place of parameters; ``None`` if they read none."""
    old = items(values)
    new = [_bound(value, constants) for value in old]
    return new if any(a is not b for a, b in zip(new, old, strict=True)) else None
