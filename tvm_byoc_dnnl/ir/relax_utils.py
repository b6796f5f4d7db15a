"""Readers of Relax IR that several stages share: bindings, types, values of constants, the signature of a model; and
small makers of functions, modules and constants.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from ..core.tensor_info import TensorInfo
from ..core.tvm_fast import ByIdentity, is_a, items
from .tvm_compat import analyzer, constant_tensor, dtype_of, is_constant, tensor_constant

#: values with bindings of their own inside
NESTED = (relax.If, relax.Function, relax.SeqExpr)
#: operators whose result has the elements of the argument, in their order
RESHAPES = ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten", "relax.nn.batch_flatten")


def bindings_of(func: relax.Function) -> Iterator[tuple[Any, Any]]:
    """``(var, value)`` of every binding of a function's body, in order."""
    if isinstance(func.body, relax.SeqExpr):
        for block in items(func.body.blocks):
            for binding in items(block.bindings):
                yield binding.var, binding.value


def bindings_in(expr: Any, *, local_functions: bool = True) -> Iterator[Any]:
    """Every binding in an expression, those of branches and local functions in front of that of their result."""
    if is_a(expr, relax.SeqExpr):
        for block in items(expr.blocks):
            for binding in items(block.bindings):
                value = binding.value
                if is_a(value, NESTED) and (local_functions or not is_a(value, relax.Function)):
                    yield from bindings_in(value, local_functions=local_functions)
                yield binding
    elif is_a(expr, relax.If):
        yield from bindings_in(expr.true_branch, local_functions=local_functions)
        yield from bindings_in(expr.false_branch, local_functions=local_functions)
    elif is_a(expr, relax.Function):
        yield from bindings_in(expr.body, local_functions=local_functions)


def blocks_in(expr: Any) -> Iterator[Any]:
    """The blocks of a function, those of branches and local functions behind the block that these are in.

    A dataflow block has no further ones: nothing looks into a local function there.
    """
    if is_a(expr, relax.SeqExpr):
        for block in items(expr.blocks):
            yield block
            for binding in () if is_a(block, relax.DataflowBlock) else items(block.bindings):
                yield from blocks_in(binding.value)
    elif is_a(expr, relax.If):
        yield from blocks_in(expr.true_branch)
        yield from blocks_in(expr.false_branch)
    elif is_a(expr, relax.Function):
        yield from blocks_in(expr.body)


def constants_in(expr: Any) -> Iterator[Any]:
    """The constants in a function or another expression, in the order of the program and as often as they are there."""
    if is_constant(expr):
        yield expr
    for part in _parts(expr):
        if not is_a(part, relax.Var):  # most are, and have no parts
            yield from constants_in(part)


def _parts(expr: Any) -> list[Any]:
    if is_a(expr, relax.Call):
        return items(expr.args)
    if is_a(expr, relax.Function):
        return [expr.body]
    if is_a(expr, relax.SeqExpr):
        return [*(b.value for block in items(expr.blocks) for b in items(block.bindings)), expr.body]
    if is_a(expr, relax.Tuple):
        return items(expr.fields)
    if is_a(expr, relax.TupleGetItem):
        return [expr.tuple_value]
    return [expr.cond, expr.true_branch, expr.false_branch] if is_a(expr, relax.If) else []


class Origins:
    """What the variables of a function stand for, behind other names, tuples and items of tuples.

    ``known`` has what is no other name. Of any other value `of` gives the variable, or the expression, that it comes
    from; of a tuple a Python tuple of such.
    """

    def __init__(self, known: Mapping[Any, Any] | None = None) -> None:
        self._of: ByIdentity[Any] = ByIdentity.of((known or {}).items())

    def bind(self, var: Any, value: Any) -> bool:
        """Note what a variable is bound to; whether it is but another name, a tuple, or an item of one."""
        is_name = is_a(value, (relax.Var, relax.Tuple, relax.TupleGetItem))
        if is_name and var not in self._of:
            self._of[var] = self.of(value)
        return is_name

    def of(self, value: Any) -> Any:
        if is_a(value, relax.Var):
            return self._of.get(value, value)
        if is_a(value, relax.Tuple):
            return tuple(map(self.of, items(value.fields)))
        if is_a(value, relax.TupleGetItem) and isinstance(fields := self.of(value.tuple_value), tuple):
            return fields[value.index]
        return value


def is_atom(value: Any) -> bool:
    """Whether a value may stand for a variable wherever that is read."""
    return is_a(value, (relax.Var, relax.ShapeExpr)) or is_constant(value)


def is_compound(value: Any) -> bool:
    """Whether a value reads others, and has no scope of its own."""
    return is_a(value, (relax.Call, relax.Tuple, relax.TupleGetItem))


def is_simple(value: Any) -> bool:
    """Whether a bound value has no scope of its own (no branches, no local function)."""
    return is_compound(value) or is_atom(value)


def reads_of(value: Any) -> list[Any]:
    """Variables that a value reads, once per occurrence."""
    if is_a(value, relax.Var):
        return [value]
    if is_a(value, relax.Call):
        callee = [value.op] if is_a(value.op, relax.Var) else []
        return callee + [read for arg in items(value.args) for read in reads_of(arg)]
    if is_a(value, relax.Tuple):
        return [read for field in items(value.fields) for read in reads_of(field)]
    if is_a(value, relax.TupleGetItem):
        return reads_of(value.tuple_value)
    return list(relax.analysis.free_vars(value)) if is_a(value, NESTED) else []


def op_calls(func: relax.Function) -> Iterator[tuple[Any, Any]]:
    for var, value in bindings_of(func):
        if is_op_call(value):
            yield var, value


def is_op_call(expr: Any) -> bool:
    return is_a(expr, relax.Call) and is_a(expr.op, tvm.ir.Op)


def ops_of(func: relax.Function) -> set[str]:
    return {binding.value.op.name for binding in bindings_in(func) if is_op_call(binding.value)}


def _attr(func: relax.Function, key: str) -> str:
    attrs = func.attrs
    return "" if attrs is None else str(attrs.get(key, ""))


def with_attributes(call: Any, args: Sequence[Any], **changed: Any) -> relax.Call:
    """The call with other arguments and some other attributes, of a type that is still to be inferred."""
    about = type(call.attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(call.attrs, field.name) for field in about.fields}
    return relax.Call(call.op, args, tvm.ir.make_node(about.type_key, **{**fields, **changed}), call.ty_args)


def codegen_of(func: Any) -> str:
    return _attr(func, "Codegen")


def composite_of(func: Any) -> str:
    """Name of a composite function, ``""`` for any other."""
    return _attr(func, "Composite")


def is_host_function(func: Any) -> bool:
    """Whether it is a Relax function that belongs to no external compiler."""
    return isinstance(func, relax.Function) and not codegen_of(func) and not composite_of(func)


def external_modules(mod: tvm.IRModule) -> list[Any]:
    return list(mod.attrs["external_mods"]) if mod.attrs and "external_mods" in mod.attrs else []


def free_name(hint: str, taken: set[str], first: int = -1) -> str:
    """The first of ``hint``, ``hint_1``, ``hint_2`` … that is free, and is taken now; from the number ``first`` on."""
    plain = [hint] if first < 0 else []
    numbered = (f"{hint}_{number}" for number in count(first if first >= 0 else 1))
    name = next(name for name in chain(plain, numbered) if name not in taken)
    taken.add(name)
    return name


def global_var(name: str, func: Any) -> Any:
    gv = tvm.ir.GlobalVar(name)
    relax.expr._update_type(gv, func.ty)
    return gv


def module_of(params: Sequence[Any], body: Callable[[relax.BlockBuilder], Any]) -> tvm.IRModule:
    """A module whose ``main`` has these parameters and gives ``body(builder)``: an expression, or a tuple of some."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(params)):
        with builder.dataflow():
            made = body(builder)
            result = builder.emit_output(relax.Tuple(list(made)) if isinstance(made, tuple) else made)
        builder.emit_func_output(result)
    return builder.get()


def caller_of(gv: Any, func: relax.Function) -> relax.Function:
    """A function with the parameters of ``func`` that does nothing but call it."""
    params = relax.utils.copy_with_new_vars(func).params
    return module_of(params, lambda _builder: relax.Call(gv, params))["main"]


def with_functions(mod: tvm.IRModule, functions: Mapping[Any, Any]) -> tvm.IRModule:
    """A copy of ``mod`` in which ``functions`` are added or take the place of those there."""
    return tvm.IRModule({**dict(mod.functions.items()), **functions}, attrs=mod.attrs, global_infos=mod.global_infos)


def leaf_types(ty: Any) -> list[Any]:
    """The types of a tuple, and of the tuples in it; else the type alone."""
    return [leaf for field in ty.fields for leaf in leaf_types(field)] if is_a(ty, relax.TupleType) else [ty]


def shape_dims(ty: Any) -> list[Any] | None:
    """Dims of a tensor type (``int`` or a ``tirx`` expression), ``None`` when the shape is unknown."""
    shape = ty.shape
    # A variable is a parameter of the function that the type belongs to.
    values = getattr(shape.ty if is_a(shape, relax.Var) else shape, "values", None)
    return None if values is None else [d.value if type(d) is tirx.IntImm else d for d in items(values)]


def static_shape(ty: Any) -> tuple[int, ...] | None:
    """Shape of a tensor type when every dim is a number, else ``None``."""
    dims = shape_dims(ty)
    return tuple(dims) if dims is not None and all(isinstance(d, int) for d in dims) else None


_INT64 = re.compile(r"T\.int64\((-?\d+)\)")  # as TVM's script writes numbers


def _dim_text(dim: Any) -> str:
    return _INT64.sub(r"\1", str(dim))


def type_text(ty: Any, symbol: Callable[[Any], str] = _dim_text) -> str:
    """A type as ``float32[1, 64]``, its open dims by ``symbol``."""
    if is_a(ty, relax.TupleType):
        return f"({', '.join(type_text(field, symbol) for field in ty.fields)})"
    if not is_a(ty, relax.TensorType):
        return str(ty)
    dims = shape_dims(ty)
    shown = "…" if dims is None else ", ".join(str(d) if isinstance(d, int) else symbol(d) for d in dims)
    return f"{dtype_of(ty) or '?'}[{shown}]"


def straight_line(at: Callable[[Any], Any]) -> tuple[Any, int] | None:
    """``start`` and ``step`` if ``at(n)`` is ``start + step * n`` for every n, with a positive number as step."""
    n, start = tirx.Var("n", "int64"), at(tirx.IntImm("int64", 0))
    step = analyzer().simplify(at(tirx.IntImm("int64", 1)) - start)
    if not isinstance(step, tirx.IntImm) or step.value < 1:
        return None
    return (start, step.value) if analyzer().can_prove_equal(at(n), start + step * n) else None


def equal_dims(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are surely equal; ``n + p`` is ``p + n``."""
    if len(a) != len(b):
        return False
    return all(
        x == y
        if isinstance(x, int) and isinstance(y, int)
        else tvm_ffi.structural_equal(x, y)
        or (not isinstance(x, int) and not isinstance(y, int) and analyzer().can_prove_equal(x, y))
        for x, y in zip(a, b, strict=True)
    )


_STRIP = 16  # columns of a transposed matrix that are copied at a time: of float32, a cache line of each row
_MANY = 1 << 19  # elements of a matrix that several threads transpose


def constant_numpy(expr: Any) -> np.ndarray:
    """The value of a Relax constant as a NumPy array; a read-only view where NumPy knows the dtype."""
    tensor = constant_tensor(expr)
    try:
        view = np.from_dlpack(tensor)
    except RuntimeError:  # bfloat16 and the float8 types
        return tensor.numpy()
    view.flags.writeable = False
    return view


def make_constant(array: np.ndarray, dtype: str | None = None) -> relax.Expr:
    """A Relax constant of ``array`` (C-contiguous; converted to ``dtype`` when given), by one copy."""
    array = np.asarray(array)
    name = dtype or str(array.dtype)
    tensor = tvm.runtime.empty(array.shape, name)
    try:
        target = np.from_dlpack(tensor)
    except RuntimeError:
        return relax.const(array, name)
    if array.ndim == 2 and array.strides[0] < array.strides[1]:  # in strips, whose rows stay in cache

        def copy(start: int) -> None:
            target[:, start : start + _STRIP] = array[:, start : start + _STRIP]

        with ThreadPoolExecutor(os.cpu_count() if array.size >= _MANY else 1) as pool:
            list(pool.map(copy, range(0, array.shape[1], _STRIP)))
    else:
        target[...] = array
    return tensor_constant(tensor)


#: attribute of ``main``: symbol -> the dim that it stands for, such as ``2*h``
DIMS_ATTR = "open_dims"
#: attribute of ``main``: dims of each output as the model says them; Relax forgets those of which no input has a symbol
OUTPUTS_ATTR = "output_dims"
#: attribute of ``main``: output name → the strings whose indices it gives
LABELS_ATTR = "string_labels"
#: attribute of ``main``: symbol -> the size that the model is optimised for
USUAL_SIZES_ATTR = "usual_sizes"
#: attribute of ``main``: variable -> name of the ONNX node that it is made of
NODES_ATTR = "onnx_nodes"


def inputs_of(func: relax.Function) -> list[TensorInfo]:
    """The inputs of a Relax function."""
    names = _names(func, "input_names")
    symbols = _Symbols(func)
    return [
        _info(n, p.ty, symbols) for n, p in zip([*names, *(p.name for p in func.params[len(names) :])], func.params)
    ]


def outputs_of(func: relax.Function) -> list[TensorInfo]:
    """The outputs of a Relax function; a tuple inside of a tuple is one output without a type."""
    types = list(func.ret_ty.fields) if isinstance(func.ret_ty, relax.TupleType) else [func.ret_ty]
    names = _names(func, "output_names")
    if len(names) != len(types):
        names = [f"output_{i}" for i in range(len(types))]
    symbols = _Symbols(func)
    infos = [_info(name, ty, symbols) for name, ty in zip(names, types, strict=True)]
    said = list((func.attrs or {}).get(OUTPUTS_ATTR, ()))
    return [_said(info, dims) for info, dims in zip(infos, said, strict=True)] if len(said) == len(infos) else infos


def _names(func: relax.Function, attribute: str) -> Sequence[str]:
    return [str(name) for name in (func.attrs or {}).get(attribute, ())]


def _said(info: TensorInfo, dims: Sequence[Any]) -> TensorInfo:
    if not dims or (info.shape is not None and all(isinstance(d, int) or d.isidentifier() for d in info.shape)):
        return info
    return replace(info, shape=tuple(int(d) if str(d).isdecimal() else str(d) for d in dims))


def _info(name: str, ty: Any, symbols: _Symbols) -> TensorInfo:
    if not isinstance(ty, relax.TensorType):
        return TensorInfo(name, "", None)
    dims = shape_dims(ty)
    shape = None if dims is None else tuple(d if isinstance(d, int) else symbols.text(d) for d in dims)
    return TensorInfo(name, dtype_of(ty), shape)


class _Symbols:
    """Names of a function's open dims; two symbols of one name get different ones."""

    def __init__(self, func: relax.Function) -> None:
        self._given = {str(k): str(v) for k, v in (func.attrs or {}).get(DIMS_ATTR, {}).items()}
        self._names: dict[Any, str] = {}

    def text(self, dim: Any) -> str:
        if not isinstance(dim, tirx.Var):
            return _dim_text(dim)
        if dim not in self._names:
            same = sum(other.name == dim.name for other in self._names)
            self._names[dim] = f"{dim.name}_{same}" if same else self._given.get(str(dim.name), str(dim.name))
        return self._names[dim]
