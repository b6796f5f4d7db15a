"""Regions → calls of PrimFuncs, by a namespace's fused operators and its ``relax_to_tir`` hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx

from ...core.own_process import apart
from ...core.vendor_code import calling, run_pass
from ...core.verdict import Reject, require
from ...ir.relax_utils import bindings_in, codegen_of, global_var
from ...regions.failure import Failure, all_or_each, describe
from ...regions.inline import flatten_region, inline_functions
from ..namespace import Namespace, TargetHooks
from ..target_options import OPTIONS_ATTR
from .fused_region import fused_ops_in, lower_fused_region
from .primfunc_call import call_primfunc, with_body, with_known_shapes

#: attribute of a region that a hook leaves as it is: why
REFUSED_ATTR = "byoc.refused"


@dataclass(frozen=True)
class Lowered:
    """The replacement of a region: a Relax function, and the PrimFuncs that it calls."""

    body: relax.Function
    kernels: Mapping[Any, tirx.PrimFunc]


@dataclass
class HookLowering:
    """The regions of one namespace while they are lowered to TIR.

    Attributes
    ----------
    ns : Namespace
        Whose.
    target : Target
        What for.
    options : mapping
        What `get_target_options` reads.
    done : dict
        Global variable of a region → its replacement. A region that is in neither of the two is left to a codegen.
    failures : dict
        Global variable of a region → why not.
    """

    ns: Namespace
    target: tvm.target.Target
    options: Mapping[str, Any]
    done: dict[Any, Lowered] = field(default_factory=dict)
    failures: dict[Any, Failure] = field(default_factory=dict)

    def run(self, regions: Mapping[Any, relax.Function], lookup: Callable[[Any], Any]) -> None:
        """Lower regions; ``lookup`` finds the functions that they call."""
        regions = {gv: with_known_shapes(f) for gv, f in regions.items()}
        fused = {gv: f for gv, f in regions.items() if fused_ops_in(self.ns, f)}
        for gv, func in fused.items():
            self._guarded(gv, partial(self._lower_fused, gv, func))
        others = [gv for gv in regions if gv not in fused]
        if self.ns.hooks is not None and others:
            self._relax_to_tir(self.ns.hooks, others, regions, lookup)

    def _guarded(self, gv: Any, lower: Callable[[], None]) -> None:
        try:
            with calling("a fused operator, or relax_to_tir,"):
                lower()
        except Exception as error:
            self.failures[gv] = Failure("lower", describe(error))

    def _lower_fused(self, gv: Any, region: relax.Function) -> None:
        builder = relax.BlockBuilder()
        with self.target:
            body = lower_fused_region(self.ns, region, builder)
        self._take(gv, body, builder.get())

    def _relax_to_tir(
        self, hooks: TargetHooks, names: Sequence[Any], regions: Mapping[Any, Any], lookup: Callable[[Any], Any]
    ) -> None:
        def lower(some: Sequence[Any]) -> tvm.IRModule:
            functions = {gv: regions[gv] for gv in some}
            called = {c for f in functions.values() for c in relax.analysis.all_global_vars(f)}
            mod = tvm.IRModule({**functions, **{c: lookup(c) for c in called}}).with_attr(OPTIONS_ATTR, self.options)
            with self.target:
                if self.ns.isolate:  # tried there, and done here: TVM cannot pass such modules between processes
                    apart(lambda: run_pass(hooks.relax_to_tir, mod, "relax_to_tir") and None, "relax_to_tir")
                return run_pass(hooks.relax_to_tir, mod, "relax_to_tir")

        made, errors, _ = all_or_each(names, lower)
        self.failures.update((gv, Failure("lower", describe(error))) for gv, error in errors.items())
        for some, result in made:
            for gv in some:
                self._guarded(gv, partial(self._read, gv, regions[gv], result))

    def _read(self, gv: Any, region: relax.Function, result: tvm.IRModule) -> None:
        """Keep what ``relax_to_tir`` made of a region."""
        func = {g.name_hint: f for g, f in result.functions.items()}.get(gv.name_hint)
        if isinstance(func, tirx.PrimFunc):
            callee = global_var(gv.name_hint, func)
            self.done[gv] = Lowered(with_body(region, call_primfunc(region, callee, func)), {callee: func})
            return
        if not isinstance(func, relax.Function):
            raise Reject("relax_to_tir removed it from its module")
        if func.attrs and REFUSED_ATTR in func.attrs:
            raise Reject(str(func.attrs[REFUSED_ATTR]))
        helpers = {g: f for g, f in result.functions.items() if isinstance(f, relax.Function) and not codegen_of(f)}
        body = inline_functions(flatten_region(func), helpers)
        if relax.analysis.all_global_vars(body):
            self._take(gv, body, result)
        else:
            require(self.ns.codegen is not None, "relax_to_tir left it as it was")

    def _take(self, gv: Any, body: relax.Function, mod: tvm.IRModule) -> None:
        kernels = {callee: mod[callee] for callee in relax.analysis.all_global_vars(body)}
        for callee, func in kernels.items():
            require(isinstance(func, tirx.PrimFunc), f"{callee.name_hint}, which it calls, is no PrimFunc")
        apart = self.ns.hooks is not None and self.ns.hooks.builds_apart
        for binding in bindings_in(body):
            _check_call(binding.value, kernels, apart)
        self.done[gv] = Lowered(body, kernels)


def _check_call(expr: Any, kernels: Mapping[Any, Any], apart: bool) -> None:
    if not isinstance(expr, relax.Call) or not any(a in kernels for a in expr.args):
        return
    op, callee = getattr(expr.op, "name", str(expr.op)), expr.args[0].name_hint
    require(op == "relax.call_tir", f"{callee} is called by {op}; expected relax.call_tir")
    require(
        len(expr.args) == 2 or not apart,
        f"the call of {callee} has symbols behind the results (tir_vars), which only TVM's own lowering can pass; "
        "pass them among the arguments",
    )
