"""The differences between the TVM versions that we support (0.26, 0.27), and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from ..core.tvm_fast import is_a, is_subclass

# 0.27 moved Relax's tensor constant to tvm.ir.GenericConst (`value`); 0.26 has relax.Constant (`data`).
_IS_027 = hasattr(tvm.ir, "GenericConst")
CONSTANT: type = tvm.ir.GenericConst if _IS_027 else relax.Constant
_DATA = "value" if _IS_027 else "data"
#: whether Relax's quantize and dequantize take a tensor without axes; 0.26 refuses it
QUANTISES_NUMBERS = _IS_027
#: whether TVM's C target rounds halves to even, as its other targets do; 0.26 calls C's `round`
C_ROUNDS_TO_EVEN = _IS_027

#: 0.27 makes a call of a type, an operator, arguments, attributes, type arguments and a place in the source
_CALL = tvm_ffi.get_global_func("ir.Call") if _IS_027 else None
_VAR: Any = tvm_ffi.get_global_func("ir.Var") if _IS_027 else relax.Var
_DATAFLOW_VAR: Any = tvm_ffi.get_global_func("relax.DataflowVar") if _IS_027 else relax.DataflowVar
_NO_TYPE = tvm.ir.Type.missing() if _IS_027 else None


def is_constant(expr: Any) -> bool:
    """Whether ``expr`` is a Relax tensor constant."""
    own: Any = type(expr)
    return is_subclass(own, CONSTANT) and is_a(getattr(expr, "ty", None), relax.TensorType)


def constant_tensor(expr: Any) -> tvm.runtime.Tensor:
    return getattr(expr, _DATA)


def with_args(call: Any, args: Sequence[Any], ty: Any = None) -> relax.Call:
    """A call with other arguments; without ``ty`` whoever normalises it infers its type."""
    if _CALL is None:
        made = relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
        if ty is not None:
            relax.expr._update_type(made, ty)
        return made
    return _CALL(_NO_TYPE if ty is None else ty, call.op, args, call.attrs, call.ty_args, call.span)


def call_of(callee: Any, args: Sequence[Any], ty: Any) -> relax.Call:
    """A call of a function with a type; the constructor of 0.27 takes four times as long."""
    if _CALL is None:
        made = relax.Call(callee, args)
        relax.expr._update_type(made, ty)
        return made
    return _CALL(ty, callee, args, None, [], None)


def make_string(text: str) -> Any:
    """A text as an argument of a call (0.27 moved it out of Relax)."""
    return (tvm.ir.StringImm if _IS_027 else relax.StringImm)(text)


def make_var(name: str, ty: Any, *, is_dataflow: bool = False) -> relax.Var:
    """A Relax variable with a type; the constructors of 0.27 take two to five times as long."""
    return (_DATAFLOW_VAR if is_dataflow else _VAR)(name, ty, None)


def tensor_constant(tensor: tvm.runtime.Tensor) -> relax.Expr:
    """A Relax constant of a tensor; `relax.const` takes five times as long, for the other things it accepts."""
    if _IS_027:
        return relax.expr._ffi_api.MakeTensorConst(tensor, None, None)
    return relax.Constant(tensor)


def dtype_of(ty: Any) -> str:
    """Dtype of a tensor type, or of a scalar one, as a string, ``""`` when TVM does not know it."""
    dtype = ty.dtype
    if dtype is None or isinstance(dtype, str):  # of a dim, and in 0.26 of any type
        return str(dtype or "")
    return str(dtype.dtype)


def quantised(bb: relax.BlockBuilder, data: Any, convert: Callable[[Any], Any]) -> Any:
    """``convert(data)``, a quantize or dequantize, of a tensor that may have no axes."""
    if QUANTISES_NUMBERS or int(data.ty.ndim):
        return convert(data)
    one = bb.normalize(convert(bb.normalize(relax.op.reshape(data, (1,)))))
    return bb.normalize(relax.op.reshape(one, ()))


def analyzer() -> Any:
    """A fresh arithmetic analyser (`tvm.arith` became `tvm.sym` in 0.27)."""
    return (getattr(tvm, "sym", None) or tvm.arith).Analyzer()


def substitute(node: Any, mapping: Mapping[Any, Any]) -> Any:
    """``node`` (a TIR expression or statement) with the variables of ``mapping`` replaced, buffers included."""
    if hasattr(tirx, "stmt_functor"):  # 0.26
        return tirx.stmt_functor.substitute(node, dict(mapping))
    return tvm_ffi.structural_map(node, (tvm.ir.Var, lambda var: mapping.get(var, var)), order="post")


def buffer_of(access: Any) -> Any:
    """The buffer of a load, a store or a region of a block (0.27 calls it ``source``, but for stores)."""
    return access.source if hasattr(access, "source") else access.buffer


def buffer_loads(node: Any) -> list[Any]:
    """Every load in a TIR expression or statement, repeated as often as it occurs there."""
    kind = getattr(tvm.ir, "TensorLoad", None) or tirx.BufferLoad
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, found.append), order="post")
    return found
