"""Types and symbolic dimensions of Relax, as the translator needs them; and the constructs that TE cannot express, and
why: the same text in the error and in the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm
from tvm import relax, tirx

from ..core.errors import UnsupportedError


def is_tir(call: relax.Call) -> bool:
    """Whether a call is a scalar TIR expression (`tirx.exp`, …) and not a Relax call that returns a scalar."""
    return tvm.ir.is_prim_expr(call) and isinstance(call.op, tvm.ir.Op) and not call.op.name.startswith("relax.")


def leaves(expr: relax.Expr) -> list[relax.Expr]:
    return [leaf for f in expr.fields for leaf in leaves(f)] if isinstance(expr, relax.Tuple) else [expr]


def symbols_in(dim: Any) -> list[tirx.Var]:
    return list(tirx.analysis.undefined_vars(dim)) if isinstance(dim, tvm.ir.Expr) else []


def symbols_of(params: Iterable[relax.Var]) -> list[tirx.Var]:
    """In order, scalar parameters included."""
    every = (
        symbol
        for param in params
        for symbol in ([param] if tvm.ir.is_prim_expr(param) else relax.analysis.tir_vars_in_type(param.ty))
    )
    return list(dict.fromkeys(every))


def paired_dims(ty: Any, value: relax.Expr) -> Iterable[tuple[Any, Any]]:
    """Dimensions in a type, each with that of a resolved value; dimensions that the type leaves open are left out."""
    if isinstance(ty, relax.TupleType):
        for inner, field in zip(ty.fields, value.fields, strict=True):
            yield from paired_dims(inner, field)
    elif isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        yield from zip(ty.shape.values, value.ty.shape.values, strict=True)
    elif isinstance(ty, relax.ShapeType) and ty.values is not None:
        yield from zip(ty.values, value.values, strict=True)


_BY_REASON: dict[str, str] = {
    "its output shape depends on the values of its inputs": "dynamic_strided_slice nonzero unique",
    "it calls a function that only exists at run time, whose computation TE cannot see": (
        "call_builtin_with_ctx call_dps_packed call_inplace_packed call_pure_packed call_py_func invoke_closure "
        "invoke_pure_closure make_closure"
    ),
    "it overwrites one of its arguments, and a TE tensor is written once": "call_tir_inplace",
    "it has a side effect, and TE has values only": "assert_op print",
    "it manages memory, which TE leaves to the lowering": (
        "builtin.alloc_tensor memory.alloc_storage memory.alloc_tensor memory.ensure_zero_offset memory.kill_storage "
        "memory.kill_tensor memory.view vm.alloc_storage vm.alloc_tensor vm.call_tir_dyn vm.kill_object"
    ),
    "it reads a field of the tensor's descriptor at run time": (
        "inspect.tensor_byte_offset inspect.tensor_dtype_bits inspect.tensor_dtype_code inspect.tensor_dtype_lanes "
        "inspect.tensor_elem_offset inspect.tensor_ndim inspect.tensor_shape_i inspect.tensor_stride_i"
    ),
    "it moves data between devices or workers": (
        "ccl.allgather ccl.allreduce ccl.broadcast_from_worker0 ccl.scatter_from_worker0 dist.annotate_sharding "
        "dist.call_tir_local_view dist.redistribute dist.redistribute_replica_to_shard hint_on_device to_vdevice"
    ),
    "TVM has no lowering of it for a CPU": (
        "ewise_fma multinomial_from_uniform nn.attention_var_len null_value wrap_param"
    ),
}

# op name -> reason
REFUSED: dict[str, str] = {f"relax.{op}": reason for reason, ops in _BY_REASON.items() for op in ops.split()}

# Ops that Relax accepts in every dtype and TVM computes in floats. Its own message prints the TE expression, which its
# printer warns about.
FLOATS_ONLY = frozenset({"relax.log_add_exp"})


class Refusal(UnsupportedError):
    """An `UnsupportedError` that remembers the refused construct, and the reason."""

    def __init__(self, what: str, reason: str, advice: str):
        super().__init__(f"{what} cannot be translated to TE: {reason}; {advice}")
        self.what = what
        self.reason = reason


def refuse(what: str, reason: str, advice: str | None = None) -> Refusal:
    if advice is None:
        advice = "keep it outside of the translated function"
        if what.startswith("relax."):
            advice += f", or register_te_compute({what!r}, fn)"
    return Refusal(what, reason, advice)
