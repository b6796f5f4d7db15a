"""The stage of the ``byoc`` pipeline that runs the target hooks, one namespace after the other.

    region (Relax)  --relax_to_tir-->  call_tir of PrimFuncs   --(tir_passes, tir_to_runtime)-->  call_dps_packed

What is the same for every vendor happens here: equal PrimFuncs are kept once, the regions are replaced by the calls
that they became, and what fails is partitioned again around the calls that are to blame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from ..hooks.build import build_apart, hook_target
from ..hooks.kernels import KernelTable, global_var, opaque, redirect_calls
from ..hooks.lowering import HookLowering
from ..log import Entry, raise_failures, read_log, with_entries
from ..namespace import Namespace, TargetHooks
from ..partitioning.attempt import make_region
from ..partitioning.passes import partition_module
from ..regions.dissolve import dissolve_regions
from ..regions.failure import Failure, describe
from ..regions.flatten import inline_regions
from ..regions.policy import RegionPolicy
from ..registry import compilers, namespace
from ..relax_utils import codegen_of, is_host_function, with_functions
from ..target_options import get_target_options

__all__ = ["RunTargetHooks"]


def RunTargetHooks(*, strict: bool = False) -> tvm.transform.Pass:
    """Pass: run the hooks of every namespace that owns functions here, in the order of the names.

    Parameters
    ----------
    strict : bool
        Raise for a region that cannot be lowered, instead of giving it back.

    Raises
    ------
    UnsupportedError
        When the pass runs, with ``strict``; the message names regions and reasons.
    """

    @tvm.transform.module_pass(opt_level=0, name="RunTargetHooks")
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        for name in sorted({codegen_of(f) for f in mod.functions.values()} & set(compilers())):
            ns = namespace(name)
            while ns.hooks is not None or ns.fused_ops:
                stage = _Stage(mod, ns, target)
                stage.run()
                if not stage.failures:
                    mod = stage.assemble()
                    break
                mod = stage.without_failures()
                if strict:
                    raise_failures(read_log(mod))
        return mod

    return run


class _Stage:
    """The functions of one namespace in one module.

    Attributes
    ----------
    failures : dict
        After `run`: global variable of a region, or of a PrimFunc that was there before → why it cannot be built.
    """

    def __init__(self, mod: tvm.IRModule, ns: Namespace, target: tvm.target.Target) -> None:
        self.mod, self.ns = mod, ns
        self.failures: dict[Any, Failure] = {}
        self._build_target = target
        self._target = hook_target(ns.hooks, target)
        self._options = {ns.name: get_target_options(mod, ns.name)}
        owned = {gv: f for gv, f in mod.functions.items() if codegen_of(f) == ns.name}
        self._regions = {gv: f for gv, f in owned.items() if isinstance(f, relax.Function)}
        self._primfuncs = {gv: f for gv, f in owned.items() if isinstance(f, tirx.PrimFunc)}
        self._lowering = HookLowering(ns, self._target, self._options)
        self._kernels = KernelTable({gv.name_hint for gv in mod.get_global_vars()} - {gv.name_hint for gv in owned})
        self._names: dict[Any, str] = {}  # global variable of a PrimFunc -> its name in the table
        self._library: tvm.runtime.Module | None = None
        self._all_together: Failure | None = None

    def run(self) -> None:
        """Lower the regions, and build the PrimFuncs where the namespace does that itself."""
        self._lowering.run(self._regions, self.mod.__getitem__)
        self.failures.update(self._lowering.failures)
        if self.failures:
            return
        for user, kernels in self._users().items():
            for gv, func in kernels.items():
                hint = user.name_hint if len(kernels) == 1 else f"{user.name_hint}_{gv.name_hint}"
                self._names[gv] = self._kernels.add(func, hint)
        if self.ns.hooks is not None and self.ns.hooks.builds_apart and self._names:
            self._build(self.ns.hooks)

    def _users(self) -> dict[Any, Mapping[Any, tirx.PrimFunc]]:
        """Region, or PrimFunc that was there before → the PrimFuncs that it needs."""
        given = {gv: {gv: f} for gv, f in self._primfuncs.items()}
        return {**{gv: lowered.kernels for gv, lowered in self._lowering.done.items()}, **given}

    def _build(self, hooks: TargetHooks) -> None:
        """All PrimFuncs at once; where that fails, one by one, to know whose fault it is."""
        functions = self._kernels.functions
        try:
            self._library = build_apart(hooks, functions, self._target, self._options)
            return
        except Exception as error:
            together = error
        broken: dict[str, Failure] = {}
        for name, func in functions.items():
            try:
                build_apart(hooks, {name: func}, self._target, self._options)
            except Exception as error:
                broken[name] = Failure("codegen", describe(error))
        if not broken:
            self._all_together = Failure("codegen", f"all functions of the module together: {describe(together)}")
            broken = dict.fromkeys(functions, self._all_together)
        for user, kernels in self._users().items():
            failure = next((broken[self._names[gv]] for gv in kernels if self._names[gv] in broken), None)
            if failure is not None:
                self.failures[user] = failure

    # ---------------------------------------------------------------- what fails
    def without_failures(self) -> tvm.IRModule:
        """The module partitioned again around what failed, with the reasons in its log."""
        regions = [gv for gv in self.failures if gv in self._regions]
        mod = self.mod
        for gv, failure in self.failures.items():
            if gv in self._primfuncs:  # TVM's lowering takes it as it is
                mod = with_functions(mod, {gv: mod[gv].without_attr("Codegen")})
                name = gv.name_hint
                entry = Entry(name, name, "tirx.PrimFunc", self.ns.name, failure.stage, failure.reason)
                mod = with_entries(mod, [entry])
        return partition_module(dissolve_regions(mod, regions), self._attempt, RegionPolicy()) if regions else mod

    def _attempt(self, ns: Namespace, func: relax.Function) -> Failure | None:
        if ns is not self.ns:
            return make_region(ns, func, get_target_options(self.mod, ns.name))
        if self._all_together is not None:
            return self._all_together
        gv = tvm.ir.GlobalVar("trial")
        trial = func.with_attr({"Codegen": ns.name, "global_symbol": "trial"})
        others = {g: f for g, f in self.mod.functions.items() if codegen_of(f) != ns.name}
        stage = _Stage(tvm.IRModule({**others, gv: trial}, attrs=self.mod.attrs), ns, self._build_target)
        stage.run()
        return stage.failures.get(gv)

    # ---------------------------------------------------------------- what works
    def assemble(self) -> tvm.IRModule:
        """The module without regions of this namespace, but for those that are left to its codegen."""
        callees: dict[Any, Any] = dict(self._names)
        gone = {*self._lowering.done, *self._primfuncs}
        functions = {gv: f for gv, f in self.mod.functions.items() if gv not in gone}
        if self._library is None:
            kernels = {name: global_var(name, func) for name, func in self._kernels.functions.items()}
            callees = {gv: kernels[name] for gv, name in self._names.items()}
            functions.update((gv, opaque(self._kernels.functions[name])) for name, gv in kernels.items())
        given = {gv: callees[gv] for gv in self._primfuncs}
        functions.update((gv, redirect_calls(f, given)) for gv, f in functions.items() if is_host_function(f))
        bodies = {gv: redirect_calls(lowered.body, callees) for gv, lowered in self._lowering.done.items()}
        mod = tvm.IRModule(functions, attrs=self.mod.attrs, global_infos=self.mod.global_infos)
        mod = inline_regions(mod, bodies)
        if self._library is None:
            return mod
        others = mod.attrs["external_mods"] if mod.attrs and "external_mods" in mod.attrs else []
        return mod.with_attr("external_mods", [*others, self._library])
