"""PartitionGraph: composite functions → regions, one function each, named dnnl_0, dnnl_1 …"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from ._compat import is_constant
from .codegen import install_codegen
from .merge import Unit, form_units
from .registry import namespace
from .relax_utils import codegen_of, composite_of, is_host_function

__all__ = ["PartitionGraph"]


def PartitionGraph() -> tvm.transform.Pass:
    """Pass: merge composite functions into convex, maximal regions, one function with attribute ``Codegen`` each.

    Regions are named after their compiler and numbered in program order. Works on the result of
    `AnnotateExternalCompiler` and of any other pass that makes composite functions called ``<compiler>.<anything>``.
    Regions of equal composites, wired equally, share one function.

    Returns
    -------
    tvm.transform.Pass
    """

    @tvm.transform.module_pass(opt_level=0, name="PartitionGraph")
    def partition(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        mod = _Outliner(mod).run()
        for compiler in sorted({codegen_of(f) for f in mod.functions.values()} - {""}):
            install_codegen(namespace(compiler))
        return mod

    return partition


@relax.expr_functor.mutator
class _Outliner(relax.PyExprMutator):
    """Replaces the units of each dataflow block that belong to a compiler by calls of new functions."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._mod = mod
        self._taken = {gv.name_hint for gv in mod.get_global_vars() if not composite_of(mod[gv])}
        self._regions: dict[Any, Any] = {}  # wiring -> global variable
        self._functions: dict[Any, relax.Function] = {}

    def run(self) -> tvm.IRModule:
        """The partitioned module: ``main`` first, so that its regions have the first numbers."""
        functions = dict(self._mod.functions.items())
        for gv in sorted(functions, key=lambda gv: (gv.name_hint != "main", gv.name_hint)):
            if is_host_function(functions[gv]):
                functions[gv] = self.visit_expr(functions[gv])
        called = {gv for f in functions.values() if is_host_function(f) for gv in relax.analysis.all_global_vars(f)}
        kept = {gv: f for gv, f in functions.items() if not composite_of(f) or gv in called}
        return tvm.IRModule({**kept, **self._functions}, attrs=self._mod.attrs, global_infos=self._mod.global_infos)

    def visit_dataflow_block_(self, block: Any) -> Any:
        bindings: list[Any] = []
        outputs = {v for b in block.bindings for v in [b.var] if not isinstance(v, relax.DataflowVar)}
        units = form_units(block, self._mod.__getitem__)
        for unit in units:
            if unit.compiler:
                bindings += self._outline(unit, units, outputs)
            else:
                bindings += unit.bindings
        return relax.DataflowBlock(bindings)

    def _outline(self, unit: Unit, units: list[Unit], block_outputs: set[Any]) -> list[Any]:
        """The host's bindings in place of ``unit``: a call of its region, and one binding per further output."""
        read_outside = {v for u in units if u is not unit for v in u.uses()} | block_outputs
        outputs = [b.var for b in unit.bindings if b.var in read_outside]
        region = _Region(unit, outputs, self._mod)
        if region.wiring not in self._regions:
            self._regions[region.wiring] = self._declare(unit.compiler, region)
        call = self.builder_.normalize(relax.Call(self._regions[region.wiring], region.arguments))
        if len(outputs) == 1:
            return [relax.VarBinding(outputs[0], call)]
        result = relax.DataflowVar(f"{call.op.name_hint}_result", call.ty)
        items = [relax.VarBinding(v, relax.TupleGetItem(result, i)) for i, v in enumerate(outputs)]
        return [relax.VarBinding(result, call), *items]

    def _declare(self, compiler: str, region: _Region) -> Any:
        number = 0
        while (name := f"{compiler}_{number}") in self._taken:
            number += 1
        self._taken.add(name)
        func = region.function().with_attr({"Codegen": compiler, "global_symbol": name})
        gv = tvm.ir.GlobalVar(name)
        relax.expr._update_type(gv, func.ty)
        self._functions[gv] = func
        return gv


class _Region:
    """One unit as a function: composites become local functions, as TVM's codegens expect them."""

    def __init__(self, unit: Unit, outputs: list[Any], mod: tvm.IRModule) -> None:
        self._mod = mod
        self._builder = relax.BlockBuilder()
        self._bindings: list[Any] = []
        self._locals: dict[Any, Any] = {}  # composite's global variable -> local variable
        self._values: dict[Any, Any] = {}  # variable of the host -> expression inside
        self._params: list[Any] = []
        self.arguments: list[Any] = []
        wiring: list[Any] = [unit.compiler]
        for binding in unit.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                args = [self._operand(a) for a in value.args]
                wiring.append((value.op, *args))
                value = relax.Call(self._local(value.op), args)
            elif isinstance(value, relax.TupleGetItem):
                value = relax.TupleGetItem(self._operand(value.tuple_value), value.index)
                wiring.append((value.tuple_value, value.index))
            elif isinstance(value, relax.Tuple):
                value = relax.Tuple([self._operand(f) for f in value.fields])
                wiring.append(tuple(value.fields))
            else:
                value = self._operand(value)
                wiring.append((value,))
            self._bind(binding.var, value)
        self._outputs = [self._values[v] for v in outputs]
        wiring.append(tuple(self._outputs))
        self.wiring = _numbered(wiring)

    def _operand(self, expr: Any) -> Any:
        if is_constant(expr):
            return expr
        if expr not in self._values:
            name = expr.name if isinstance(expr, relax.Var) else "shape"
            self._values[expr] = relax.Var(name, expr.ty)
            self._params.append(self._values[expr])
            self.arguments.append(expr)
        return self._values[expr]

    def _local(self, gv: Any) -> Any:
        if gv not in self._locals:
            func = self._mod[gv].without_attr("Primitive")
            self._locals[gv] = relax.Var(gv.name_hint, func.ty)
            self._bindings.append(relax.VarBinding(self._locals[gv], func))
        return self._locals[gv]

    def _bind(self, var: Any, value: Any) -> None:
        self._values[var] = relax.Var(var.name, var.ty)
        self._bindings.append(relax.VarBinding(self._values[var], self._builder.normalize(value)))

    def function(self) -> relax.Function:
        """The region, with variables of its own."""
        single = len(self._outputs) == 1
        result = self._outputs[0] if single else relax.Tuple(self._outputs)
        ret_ty = result.ty if single else relax.TupleType([v.ty for v in self._outputs])
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        func = self._builder.normalize(relax.Function(self._params, body, ret_ty))
        return relax.utils.copy_with_new_vars(func)


def _numbered(wiring: list[Any]) -> tuple[Any, ...]:
    """The wiring with variables replaced by the order of their appearance, so that equal ones compare equal."""
    numbers: dict[Any, int] = {}

    def number(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(number, item))
        return numbers.setdefault(item, len(numbers)) if isinstance(item, relax.Var) else item

    return tuple(map(number, wiring))
