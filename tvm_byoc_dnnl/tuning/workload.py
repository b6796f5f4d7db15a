"""A workload: what one compiler does in one call, apart from the model in which it was found.

Two workloads are equal if they have the same operators, attributes, shapes, dtypes and options, wired equally. Names
and the values of large constants do not count, so a time that was measured for one model holds for another. An open dim
counts as open, with the size that the model is optimised for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tvm
from tvm import relax

from ..graph.cost import call_flops, size_of, usual_sizes
from ..ir.fingerprint import content_key
from ..ir.functions import Block
from ..ir.relax_utils import (
    USUAL_SIZES_ATTR,
    bindings_in,
    bindings_of,
    caller_of,
    composite_of,
    constant_numpy,
    global_var,
    is_op_call,
    shape_dims,
    static_shape,
)
from ..ir.tvm_compat import dtype_of, is_constant
from ..ir.walker import Substitute
from ..vendors.namespaces import HOST, changed_options

_FEW = 16  # elements of a constant that may be axes, indices or a scalar: its values can change the work


@dataclass(frozen=True, eq=False)
class Workload:
    """The work of a region, or of calls that stay with TVM; the module has the functions that it calls, and options."""

    compiler: str
    function: Any = field(repr=False)
    module: tvm.IRModule = field(repr=False)

    @cached_property
    def key(self) -> str:
        """Equal for equal workloads, also of other models, processes and machines."""
        options = changed_options(self.module).get(self.compiler)
        return content_key([text_of(self.function, self.module), *([repr(options)] if options else [])])[:24]

    @cached_property
    def flops(self) -> int:
        sizes = usual_sizes(self.module)
        return sum(call_flops(call, sizes) for call in self._op_calls())

    @cached_property
    def summary(self) -> str:
        ops = [call.op.name.removeprefix("relax.") for call in self._op_calls()]
        sizes = usual_sizes(self.module)
        shapes = ", ".join(_type(p.ty, sizes) for p in self.function.params)
        shown = ", ".join(ops[:6]) + (f", … {len(ops)} calls" if len(ops) > 6 else "")
        return f"{shown} of {shapes}"

    def _op_calls(self) -> list[relax.Call]:
        return [binding.value for binding in bindings_in(self.function) if is_op_call(binding.value)]

    def as_model(self) -> tvm.IRModule:
        functions = {gv: f for gv, f in self.module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
        main = self.function
        if self.compiler != HOST:
            region = self.function.with_attr({"Codegen": self.compiler, "global_symbol": f"{self.compiler}_0"})
            gv = global_var(f"{self.compiler}_0", region)
            functions[gv] = region
            main = caller_of(gv, region)
        sizes = usual_sizes(self.module)
        main = main.with_attr({"global_symbol": "main", **({USUAL_SIZES_ATTR: sizes} if sizes else {})})
        return tvm.IRModule({**functions, tvm.ir.GlobalVar("main"): main}, attrs=self.module.attrs)


def host_workload(bindings: Sequence[Any], block: Block, module: tvm.IRModule) -> Workload:
    inputs, outputs = block.inputs(bindings), block.outputs(bindings)
    result = relax.Var("result", relax.TupleType([v.ty for v in outputs]))
    body = [*bindings, relax.VarBinding(result, relax.Tuple(outputs))]
    func = relax.Function(inputs, relax.SeqExpr([relax.DataflowBlock(body)], result), result.ty)
    # A variable of a dataflow block cannot be a parameter.
    func = Substitute({var: relax.Var(var.name, var.ty) for var in inputs}).function(func)
    symbols = list(relax.analysis.free_symbolic_vars(func))
    if symbols:  # those of which no argument has a dim of its own
        sizes = relax.Var("sizes", relax.ShapeType(symbols))
        func = relax.Function([*func.params, sizes], func.body, func.ret_ty)
    return Workload(HOST, relax.utils.copy_with_new_vars(func), module)


def text_of(func: relax.Function, module: tvm.IRModule) -> str:
    """A function as text without the names of its variables; ``module`` has the functions that it calls."""
    return "\n".join(_Writer(module).lines(func))


class _Writer:
    def __init__(self, module: tvm.IRModule) -> None:
        self._module = module
        self._sizes = usual_sizes(module)
        self._numbers: dict[Any, str] = {}

    def lines(self, func: relax.Function) -> list[str]:
        made = [f"function {composite_of(func)}"]
        made += [f"{self._define(p)}: {_type(p.ty, self._sizes)}" for p in func.params]
        for var, value in bindings_of(func):
            if isinstance(value, relax.Function):
                inner = _Writer(self._module).lines(value)
                made += [f"{self._define(var)} = {{", *inner, "}"]
            else:
                text = self._expr(value)
                made.append(f"{self._define(var)} = {text}")
        return [*made, self._expr(getattr(func.body, "body", func.body))]

    def _define(self, var: Any) -> str:
        return self._numbers.setdefault(var, f"%{len(self._numbers)}")

    def _expr(self, expr: Any) -> str:
        if isinstance(expr, relax.Call):
            attrs = "" if expr.attrs is None else str(expr.attrs)
            types = ", ".join(_type(ty, self._sizes) for ty in expr.ty_args) if expr.ty_args else ""
            return f"{self._expr(expr.op)}({', '.join(map(self._expr, expr.args))}) {attrs} {types}"
        if isinstance(expr, tvm.ir.GlobalVar):
            callee = self._module[expr] if expr in self._module.functions else None
            return f"@{callee.script()}" if isinstance(callee, tvm.tirx.PrimFunc) else f"@{expr.name_hint}"
        if isinstance(expr, relax.Var):
            return self._define(expr)
        if is_constant(expr):
            few = math.prod(static_shape(expr.ty) or ()) <= _FEW
            return f"constant {_type(expr.ty, self._sizes)} {constant_numpy(expr).tolist() if few else ''}"
        if isinstance(expr, relax.TupleGetItem):
            return f"{self._expr(expr.tuple_value)}[{expr.index}]"
        if isinstance(expr, relax.ShapeExpr):
            return f"shape [{_dims(list(expr.values), self._sizes)}]"
        if isinstance(expr, relax.Tuple):
            return f"({', '.join(map(self._expr, expr.fields))})"
        return str(getattr(expr, "name", expr))


def _type(ty: Any, sizes: Mapping[str, int]) -> str:
    if isinstance(ty, relax.TupleType):
        return f"({', '.join(_type(f, sizes) for f in ty.fields)})"
    if isinstance(ty, relax.TensorType):
        dims = shape_dims(ty)
        return f"{dtype_of(ty)}[{'?' if dims is None else _dims(dims, sizes)}]"
    if isinstance(ty, relax.ShapeType):
        return "shape" if ty.values is None else f"shape [{_dims(list(ty.values), sizes)}]"
    return str(ty)


def _dims(dims: Sequence[Any], sizes: Mapping[str, int]) -> str:
    """The sizes of dims; those of open ones have a ``~``."""
    fixed = (int, tvm.tirx.IntImm)
    return ", ".join(str(int(d)) if isinstance(d, fixed) else f"~{size_of(d, sizes)}" for d in dims)
