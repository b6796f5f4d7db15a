"""The route by target hooks and fused operators; regions that they do not change go to the namespace's codegen.

    region (Relax)  --relax_to_tir-->  call_tir of PrimFuncs   --(tir_passes, tir_to_runtime)-->  call_dps_packed

This file does the work that is the same for every vendor: it keeps equal PrimFuncs once, and replaces the regions by
calls of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from ...core.verdict import Reject
from ...ir.relax_utils import codegen_of, external_modules, global_var, is_host_function
from ...regions.failure import BrokenRegions, Failure, all_or_each, describe
from ...regions.inline import inline_regions
from ..namespace import Namespace
from ..routes.route import Route
from .build import build_apart, hook_target
from .kernels import KernelTable, opaque, redirect_calls
from .lowering import HookLowering, Lowered


class HookBuild:
    """Regions and PrimFuncs of one namespace while they are lowered and built.

    Parameters
    ----------
    ns : Namespace
        Whose they are.
    target : Target
        The target for which the rest of the module is built.
    options : mapping
        The options of the namespace.
    taken : collection of str
        Names that are not free.

    Attributes
    ----------
    done : dict
        Global variable of a region → what takes its place. A region that is left to a codegen is not among them.
    names : dict
        Global variable of a PrimFunc → its name in ``kernels``.
    kernels : KernelTable
        The PrimFuncs, each once.
    library : Module or None
        The PrimFuncs as a runtime module, where the namespace builds them itself.
    failures : dict
        Global variable of a region or PrimFunc → why it cannot be built.
    all_together : Failure or None
        The error where each PrimFunc can be built alone, but not all of them together.
    """

    def __init__(
        self, ns: Namespace, target: tvm.target.Target, options: Mapping[str, Any], taken: Collection[str] = ()
    ) -> None:
        self._ns = ns
        self._target = hook_target(ns.hooks, target)
        self._options = {ns.name: options}
        self.done: dict[Any, Lowered] = {}
        self.names: dict[Any, str] = {}
        self.kernels = KernelTable(taken)
        self.library: tvm.runtime.Module | None = None
        self.failures: dict[Any, Failure] = {}
        self.all_together: Failure | None = None

    def lower(self, regions: Mapping[Any, relax.Function], lookup: Callable[[Any], Any]) -> None:
        """Fill ``done`` and ``failures``; ``lookup`` finds the functions that the regions call."""
        lowering = HookLowering(self._ns, self._target, self._options)
        lowering.run(regions, lookup)
        self.done, self.failures = lowering.done, lowering.failures

    def build(self, primfuncs: Mapping[Any, tirx.PrimFunc]) -> None:
        """Build the PrimFuncs that were lowered here, and those that the module had before."""
        users: dict[Any, Mapping[Any, tirx.PrimFunc]] = {gv: lowered.kernels for gv, lowered in self.done.items()}
        users.update((gv, {gv: func}) for gv, func in primfuncs.items())
        for user, kernels in users.items():
            for gv, func in kernels.items():
                hint = user.name_hint if len(kernels) == 1 else f"{user.name_hint}_{gv.name_hint}"
                self.names[gv] = self.kernels.add(func, hint)
        if not self.names or not (self._builds_apart or "cpu" in self._target.keys):
            return
        broken = self._build_apart()
        for user, kernels in users.items():
            failure = next((broken[self.names[gv]] for gv in kernels if self.names[gv] in broken), None)
            if failure is not None:
                self.failures[user] = failure

    @property
    def _builds_apart(self) -> bool:
        return self._ns.hooks is not None and self._ns.hooks.builds_apart

    def _build_apart(self) -> dict[str, Failure]:
        """Build the PrimFuncs. Those that go on through TVM's lowering are built once here, too, to see that it can."""
        hooks, functions = self._ns.hooks, self.kernels.functions

        def make(names: Sequence[str]) -> tvm.runtime.Module:
            some = {n: functions[n] for n in names}
            return build_apart(hooks, some, self._target, self._options, isolate=self._ns.isolate)

        made, errors, together = all_or_each(list(functions), make)
        if together is None:
            self.library = made[0][1] if self._builds_apart else None
        elif not errors:
            self.all_together = Failure("codegen", f"all functions of the module together: {describe(together)}")
            return dict.fromkeys(functions, self.all_together)
        return {name: Failure("codegen", describe(error)) for name, error in errors.items()}


class HookRoute(Route):
    """The hooks and the fused operators of a namespace."""

    def __init__(self, ns: Namespace) -> None:
        self.compiler = ns.name
        self._ns = ns

    @property
    def _rest(self) -> Route:
        return self._ns.by_codegen

    @property
    def makes_source(self) -> bool:  # type: ignore[override]
        return self._rest.makes_source

    @property
    def source_build(self) -> Any:  # type: ignore[override]
        return self._rest.source_build

    def source(self, region: relax.Function, symbol: str) -> tvm.runtime.Module:
        """See `Route.source`."""
        return self._rest.source(region, symbol)

    def attempt(self, region: relax.Function, options: Mapping[str, Any], *, fully: bool = False) -> Failure | None:
        """See `Route.attempt`; while partitioning, the target may not be known yet."""
        made = HookBuild(self._ns, tvm.target.Target.current(allow_none=True) or tvm.target.Target("llvm"), options)
        gv = tvm.ir.GlobalVar("trial")
        made.lower({gv: region.with_attr({"Codegen": self.compiler, "global_symbol": "trial"})}, _nowhere)
        if fully and not made.failures:
            made.build({})
        if made.failures:
            return made.failures[gv]
        return None if gv in made.done else self._rest.attempt(region, options, fully=fully)

    def build(self, mod: tvm.IRModule, options: Mapping[str, Any]) -> tvm.IRModule:
        """See `Route.build`."""
        owned = {gv: f for gv, f in mod.functions.items() if codegen_of(f) == self.compiler}
        taken = {gv.name_hint for gv in mod.get_global_vars()} - {gv.name_hint for gv in owned}
        made = HookBuild(self._ns, tvm.target.Target.current(allow_none=False), options, taken)
        made.lower({gv: f for gv, f in owned.items() if isinstance(f, relax.Function)}, mod.__getitem__)
        primfuncs = {gv: f for gv, f in owned.items() if isinstance(f, tirx.PrimFunc)}
        if not made.failures:
            made.build(primfuncs)
        if made.failures:
            raise BrokenRegions(made.failures, made.all_together)
        mod = _assembled(mod, made, primfuncs)
        return (
            self._rest.build(mod, options)
            if any(codegen_of(f) == self.compiler for f in mod.functions.values())
            else mod
        )


def _nowhere(gv: Any) -> Any:
    raise Reject(f"it calls {gv.name_hint}, which stands outside of the region")


def _assembled(mod: tvm.IRModule, made: HookBuild, primfuncs: Mapping[Any, tirx.PrimFunc]) -> tvm.IRModule:
    """The module without regions of a namespace, but for those that are left to its codegen."""
    callees: dict[Any, Any] = dict(made.names)
    functions = {gv: f for gv, f in mod.functions.items() if gv not in made.done and gv not in primfuncs}
    if made.library is None:
        kernels = {name: global_var(name, func) for name, func in made.kernels.functions.items()}
        callees = {gv: kernels[name] for gv, name in made.names.items()}
        functions.update((gv, opaque(made.kernels.functions[name])) for name, gv in kernels.items())
    given = {gv: callees[gv] for gv in primfuncs}
    functions.update((gv, redirect_calls(f, given)) for gv, f in functions.items() if is_host_function(f))
    bodies = {gv: redirect_calls(lowered.body, callees) for gv, lowered in made.done.items()}
    mod = inline_regions(tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos), bodies)
    if made.library is None:
        return mod
    return mod.with_attr("external_mods", [*external_modules(mod), made.library])
