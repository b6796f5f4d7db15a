"""Stage 3, partition: composite functions → regions, one function each, named ``<compiler>_0``, ``<compiler>_1`` …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from ..core.compilation import current, knowing, raise_failures, read_log, stage, with_facts
from ..graph.cost import RegionPolicy
from ..ir.functions import RegionBuilder, dissolve_regions, with_uses
from ..ir.relax_utils import codegen_of, composite_of, free_name, global_var, is_host_function
from ..ir.walker import rewrite_blocks
from ..vendors.namespaces import namespace
from ..vendors.portable import install_codegen
from .fallback import Attempt, BlockPlan, Fallback, Plan, attempt_in
from .merge import Unit


def PartitionGraph(
    *, policy: RegionPolicy | None = None, strict: bool = False, dry_run: bool = False
) -> tvm.transform.Pass:
    """Pass: merge composite functions into convex, maximal regions, one function with attribute ``Codegen`` each.

    Every region is tried as it is formed: lowered, planned and, for a namespace with a codegen of its own, compiled.
    A call that fails goes to the next compiler in the function's attribute ``compiler`` or back to TVM, and the region
    is formed again without it; the reasons are kept (`tvm_byoc_dnnl.core.compilation.read_log`).

    Regions are named after their compiler and numbered in program order. Works on the result of
    `AnnotateExternalCompiler` and of any other pass that makes composite functions called ``<compiler>.<anything>``.
    Regions of equal composites, wired equally, share one function.

    Parameters
    ----------
    policy : RegionPolicy, optional
        Decides which regions are worth a call; by default each namespace's own policy.
    strict : bool
        Raise instead of giving anything back because it failed.
    dry_run : bool
        Run no compiler of a vendor's: of such a backend only ``fits`` is asked about a region.

    Returns
    -------
    tvm.transform.Pass

    Raises
    ------
    UnsupportedError
        When the pass runs, with ``strict``: lists every call that failed, with the reason.
    """

    @tvm.transform.module_pass(opt_level=0, name="PartitionGraph")
    def partition(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        with stage("try"):
            fallback = Fallback(mod, attempt_in(mod, dry_run=dry_run), policy)
            made = _partitioned(fallback)
        made = made.with_attr(LIMITS_ATTR, fallback.limits) if fallback.limits else made.without_attr(LIMITS_ATTR)
        if strict:
            raise_failures(read_log(made))
        return made

    return partition


#: attribute of a partitioned module: who (see `Fallback.limits`) → the number of regions that it may have
LIMITS_ATTR = "tvm_byoc_max_regions"


def partition_again(mod: tvm.IRModule, regions: Sequence[Any], attempt: Attempt) -> tvm.IRModule:
    """The module with ``regions`` formed anew, of what works in them, and no more regions than the policies allowed."""
    limits = {str(who): int(limit) for who, limit in (mod.get_attr(LIMITS_ATTR) or {}).items()}
    return _partitioned(Fallback(dissolve_regions(mod, regions), attempt, RegionPolicy(), limits))


def _partitioned(fallback: Fallback) -> tvm.IRModule:
    with knowing(regions={} if current().regions is None else current().regions):  # by hand, until this ends
        plan = fallback.run()
    mod = with_facts(_Outliner(fallback.mod, plan).run(), fallback.facts)
    for compiler in sorted({codegen_of(f) for f in mod.functions.values()} - {""}):
        install_codegen(namespace(compiler))
    return mod


class _Outliner:
    def __init__(self, mod: tvm.IRModule, plan: Plan) -> None:
        self._mod = mod
        self._plan = plan
        self._builder = relax.BlockBuilder()
        self._given = dict(mod.functions.items())
        self._composite = {gv for gv, func in self._given.items() if composite_of(func)}
        self._taken = {gv.name_hint for gv in self._given.keys() - self._composite}
        self._regions: dict[Any, Any] = {}  # compiler and wiring -> global variable
        self._functions: dict[Any, relax.Function] = {}
        self._uses: dict[str, list[list[str]]] = {}  # region -> names of the calls in each use

    def run(self) -> tvm.IRModule:
        """The partitioned module: ``main`` first, so that its regions have the first numbers."""
        functions = dict(self._given)
        hosts = [gv for gv in functions if gv not in self._composite and is_host_function(functions[gv])]
        for gv in sorted(hosts, key=lambda gv: (gv.name_hint != "main", gv.name_hint)):
            functions[gv] = rewrite_blocks(functions[gv], self._with_regions)
        called = {gv for host in hosts for gv in relax.analysis.all_global_vars(functions[host])}
        kept = {gv: f for gv, f in functions.items() if gv not in self._composite or gv in called}
        made = tvm.IRModule({**kept, **self._functions}, attrs=self._mod.attrs, global_infos=self._mod.global_infos)
        return with_uses(made, self._uses)

    def _with_regions(self, block: Any) -> Any:
        plan = self._plan[block]
        bindings: list[Any] = []
        for unit in plan.units:
            bindings += self._outline(unit, plan) if unit.compiler else unit.bindings
        return relax.DataflowBlock(bindings)

    def _outline(self, unit: Unit, plan: BlockPlan) -> list[Any]:
        """The host's bindings in place of ``unit``: a call of its region, and one binding per further output."""
        if unit not in plan.regions:
            return []  # no call reads its results
        region = plan.regions[unit]
        outputs = region.outputs
        key = (unit.compiler, region.wiring)
        if key not in self._regions:
            self._regions[key] = self._declare(unit.compiler, region)
        self._uses.setdefault(self._regions[key].name_hint, []).append(region.names)
        bindings: list[Any] = []
        arguments = [self._bound(a, bindings) for a in region.arguments]
        call = self._builder.normalize(relax.Call(self._regions[key], arguments))
        if len(outputs) == 1:
            return [*bindings, relax.VarBinding(outputs[0], call)]
        result = relax.DataflowVar(f"{call.op.name_hint}_result", call.ty)
        items = [relax.VarBinding(v, relax.TupleGetItem(result, i)) for i, v in enumerate(outputs)]
        return [*bindings, relax.VarBinding(result, call), *items]

    def _bound(self, expr: Any, bindings: list[Any]) -> Any:
        """``expr``, or where it is a field of a tuple a variable that is bound to it."""
        if not isinstance(expr, relax.TupleGetItem):
            return expr
        whole = self._bound(expr.tuple_value, bindings)
        item = self._builder.normalize(relax.TupleGetItem(whole, expr.index))
        bindings.append(relax.VarBinding(relax.DataflowVar(f"{whole.name}_{expr.index}", item.ty), item))
        return bindings[-1].var

    def _declare(self, compiler: str, region: RegionBuilder) -> Any:
        name = free_name(compiler, self._taken, 0)
        func = relax.utils.copy_with_new_vars(region.function)  # whose composites have the variables of the module's
        func = func.with_attr({"Codegen": compiler, "global_symbol": name})
        gv = global_var(name, func)
        self._functions[gv] = func
        return gv
