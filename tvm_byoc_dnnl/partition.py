"""PartitionGraph: composite functions → regions, one function each, named dnnl_0, dnnl_1 …"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from .codegen import install_codegen
from .registry import namespace
from .relax_utils import codegen_of

__all__ = ["PartitionGraph", "regions_in_order"]


def regions_in_order(mod: tvm.IRModule) -> list[Any]:
    """Global variables of the partitioned functions in program order: ``main`` first, then the others by name."""
    found: dict[Any, None] = {}

    def visit(func: Any) -> None:
        def note(expr: Any) -> None:
            if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar) and codegen_of(mod[expr.op]):
                found.setdefault(expr.op)

        relax.analysis.post_order_visit(func.body, note)

    for gv in sorted(mod.get_global_vars(), key=lambda gv: (gv.name_hint != "main", gv.name_hint)):
        if isinstance(mod[gv], relax.Function) and not codegen_of(mod[gv]):
            visit(mod[gv])
    unused = (gv for gv in mod.get_global_vars() if codegen_of(mod[gv]) and gv not in found)
    return [*found, *sorted(unused, key=lambda gv: gv.name_hint)]


def _new_names(mod: tvm.IRModule) -> Iterator[tuple[Any, str]]:
    """Each region and its new name: namespace and a number, the numbers free of clashes with other functions."""
    regions = regions_in_order(mod)
    taken = {gv.name_hint for gv in mod.get_global_vars()} - {gv.name_hint for gv in regions}
    counter: Counter[str] = Counter()
    for gv in regions:
        compiler = codegen_of(mod[gv])
        while (name := f"{compiler}_{counter[compiler]}") in taken:
            counter[compiler] += 1
        counter[compiler] += 1
        yield gv, name


@relax.expr_functor.mutator
class _RenameCalls(relax.PyExprMutator):
    def __init__(self, names: dict[Any, Any]) -> None:
        super().__init__()
        self._names = names

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        new = self._names.get(call.op)
        return call if new is None else relax.Call(new, call.args, call.attrs, call.ty_args, call.span)


def _rename_regions(mod: tvm.IRModule) -> tvm.IRModule:
    # TVM's names list every fused op: thousands of characters, repeated in each constant's name.
    names: dict[Any, Any] = {}
    for old, name in _new_names(mod):
        names[old] = tvm.ir.GlobalVar(name)
        relax.expr._update_type(names[old], mod[old].ty)
    functions = {}
    for gv, func in mod.functions.items():
        if gv in names:
            functions[names[gv]] = func.with_attr("global_symbol", names[gv].name_hint)
        elif isinstance(func, relax.Function):
            functions[gv] = _RenameCalls(names).visit_expr(func)
        else:
            functions[gv] = func
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def PartitionGraph() -> tvm.transform.Pass:
    """Pass: merge composite functions into convex, maximal regions, one function with attribute ``Codegen`` each.

    Regions are named after their compiler and numbered in program order. Works on the result of
    `AnnotateExternalCompiler` and of any other pass that makes composite functions called ``<compiler>.<anything>``.

    Returns
    -------
    tvm.transform.Pass
    """

    @tvm.transform.module_pass(opt_level=0, name="PartitionGraph")
    def partition(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        mod = relax.transform.MergeCompositeFunctions()(mod)
        for compiler in sorted({codegen_of(f) for f in mod.functions.values()} - {""}):
            install_codegen(namespace(compiler))
        return _rename_regions(mod)

    return partition
