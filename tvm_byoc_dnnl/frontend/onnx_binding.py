"""Weights put in the place of the parameters that stood for them during the import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tvm
from tvm import relax

from .._compat import is_a, tensor_constant, with_args
from ..compilation import current
from ..handles import ByIdentity, items

__all__ = ["bind_params"]

_COMPOUND = (relax.Call, relax.Tuple, relax.TupleGetItem)
_SIMPLE = (*_COMPOUND, relax.Var)
_LINEAR = ("relax.matmul", *(f"relax.nn.conv{d}d{t}" for d in (1, 2, 3) for t in ("", "_transpose")))


def bind_params(
    module: tvm.IRModule, weights: Mapping[Any, tvm.runtime.Tensor], owned: Iterable[Any] = ()
) -> tvm.IRModule:
    """The module whose ``main`` has ``weights`` in the place of these parameters.

    TVM's pass infers the type of each changed call again. A weight has its parameter's type, so they stay as they are.
    The values of ``owned`` parameters have memory of their own; those that are nothing but the weights of one linear
    operator become those that this compilation may overwrite.
    """
    func = module["main"]
    blocks = [(type(block), items(block.bindings)) for block in items(func.body.blocks)]
    values = [binding.value for _, bindings in blocks for binding in bindings]
    if not all(is_a(value, _SIMPLE) for value in values):  # branches have scopes of their own
        return relax.transform.BindParams("main", weights)(module)
    binder = _Binder(weights)
    bound = [kind([binder.binding(b) for b in bindings]) for kind, bindings in blocks]
    body = relax.SeqExpr(bound, binder.value(func.body.body))
    relax.expr._update_type(body, func.body.ty)
    params = [param for param in func.params if param not in binder.constants]
    module = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs, global_infos=module.global_infos)
    module["main"] = relax.Function(params, body, func.ret_ty, func.is_pure, func.attrs, func.span)
    if (own := current().weights) is not None:
        alone = (p for p in owned if p in binder.weights and binder.reads[p] == 1)
        own.constants.update((binder.constants[param], None) for param in alone)
    return module


class _Binder:
    """Puts constants in the place of parameters; how often each is read, and which are a linear operator's weights."""

    def __init__(self, weights: Mapping[Any, tvm.runtime.Tensor]) -> None:
        self.constants = ByIdentity.of((param, tensor_constant(tensor)) for param, tensor in weights.items())
        self.reads: ByIdentity[int] = ByIdentity()
        self.weights: ByIdentity[None] = ByIdentity()

    def binding(self, binding: Any) -> Any:
        """The binding of a value, itself if that reads no constant."""
        value = self.value(binding.value)
        if value is binding.value:
            return binding
        if is_a(binding, relax.MatchCast):
            return relax.MatchCast(binding.var, value, binding.ty)
        return relax.VarBinding(binding.var, value)

    def value(self, value: Any) -> Any:
        """``value`` with constants in the place of parameters; itself if it reads none."""
        if not is_a(value, _COMPOUND):
            return self._atom(value)
        if is_a(value, relax.Call):
            args = self._all(value.args)
            if args is None:
                return value
            if getattr(value.op, "name", "") in _LINEAR:
                self.weights[value.args[1]] = None
            return with_args(value, args, value.ty)
        if is_a(value, relax.Tuple):
            fields = self._all(value.fields)
            return value if fields is None else relax.Tuple(fields, value.span)
        old = value.tuple_value
        whole = self.value(old)
        return value if whole is old else relax.TupleGetItem(whole, value.index, value.span)

    def _atom(self, value: Any) -> Any:
        constant = self.constants.get(value)
        if constant is None:
            return value
        self.reads[value] = self.reads.get(value, 0) + 1
        return constant

    def _all(self, values: Any) -> list[Any] | None:
        """The values with constants in the place of parameters; ``None`` if they read none."""
        old = items(values)
        new = [self.value(value) for value in old]
        return new if any(a is not b for a, b in zip(new, old, strict=True)) else None
