"""The route by target hooks and fused operators; regions that they do not change go to the namespace's codegen. Equal
PrimFuncs of a namespace are kept once, and become one runtime module.

    region (Relax)  --relax_to_tir-->  call_tir of PrimFuncs   --(tir_passes, tir_to_runtime)-->  call_dps_packed
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import StructuralKey

from ..core.errors import UnsupportedError
from ..core.own_process import apart
from ..core.verdict import BrokenRegions, Failure, Reject, all_or_each, calling, describe, run_pass
from ..ir.functions import inline_regions
from ..ir.relax_utils import codegen_of, external_modules, free_name, global_var, is_host_function, is_op_call
from ..ir.walker import rewrite_calls
from . import Namespace, TargetHooks
from .c_source import c_module, lower_tir
from .codegen import Route, Terms, check_sources, missing_functions
from .hook_lowering import HookLowering
from .namespaces import OPTIONS_ATTR


def _hook_target(hooks: TargetHooks | None, target: tvm.target.Target) -> tvm.target.Target:
    own = tvm.target.Target(hooks.target) if hooks is not None and hooks.target is not None else target
    if own.host is not None:
        return own
    return own.with_host(own if "cpu" in own.keys else target)


def _generate(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    kind = str(target.kind.name)
    if kind == "c":
        return c_module(mod, target)
    generator = tvm.get_global_func(f"target.build.{kind}", allow_missing=True)
    if generator is None:
        raise UnsupportedError(f"this TVM has no code generator for target {kind!r}; register a tir_to_runtime hook")
    return generator(mod, target)


def _check(library: Any, functions: Iterable[str]) -> None:
    """Raise `UnsupportedError` for what cannot be run and exported, `RuntimeError` for C that does not compile."""
    if not isinstance(library, tvm.runtime.Module):
        raise UnsupportedError(f"tir_to_runtime returned {library!r}; expected a runtime Module")
    exportable = library.is_binary_serializable() or library.is_compilation_exportable()
    if not exportable or library.kind == "library":  # a shared library that is loaded only claims to be
        raise UnsupportedError(
            f"tir_to_runtime returned a module of kind {library.kind!r} that cannot be exported; expected one that is "
            "serializable, or source or an object to be linked"
        )
    check_sources([library])
    if missing := missing_functions(library, functions):
        raise UnsupportedError(f"the module that tir_to_runtime returned has no function {', '.join(missing)}")


#: the pattern kind by which FuseOps knows a function that it must not change
_OPAQUE = 8


class KernelTable:
    """PrimFuncs by name; one that equals an earlier one gets its name. The names in ``taken`` are not free."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.functions: dict[str, tirx.PrimFunc] = {}
        self._taken = set(taken)
        self._names: dict[StructuralKey, str] = {}

    def add(self, func: tirx.PrimFunc, hint: str) -> str:
        func = func.without_attr("global_symbol").without_attr("Codegen")
        if (key := StructuralKey(func)) in self._names:
            return self._names[key]
        name = free_name(hint, self._taken)
        self.functions[name] = func
        self._names[key] = name
        return name


def opaque(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A PrimFunc that TVM's fusion does not change, unless its maker allows it: it may be scheduled already."""
    return func if func.attrs and "op_pattern" in func.attrs else func.with_attr("op_pattern", _OPAQUE)


def redirect_calls(func: relax.Function, callees: Mapping[Any, Any]) -> relax.Function:
    """``func`` with ``call_tir`` of some functions calling others; a string is a symbol in a runtime module."""
    if callees.keys().isdisjoint(relax.analysis.all_global_vars(func)):
        return func

    def redirected(_builder: Any, call: Any, _var: Any) -> Any:
        callee = callees.get(call.args[0]) if is_op_call(call) and call.op.name == "relax.call_tir" else None
        if callee is None:
            return None
        if isinstance(callee, str):
            (ty,) = call.ty_args
            types = list(ty.fields) if isinstance(ty, relax.TupleType) else ty
            return relax.op.call_dps_packed(callee, call.args[1], types)
        return relax.Call(call.op, [callee, *call.args[1:]], call.attrs, call.ty_args, call.span)

    return rewrite_calls(func, redirected)


class HookBuild(HookLowering):
    """Regions and PrimFuncs of one namespace while they are lowered and built.

    ``names`` has the names of PrimFuncs in ``kernels``. ``library`` is the runtime module of these, where the namespace
    builds them itself. ``all_together`` is the error where each can be built alone, but not all of them.
    """

    def __init__(
        self, ns: Namespace, target: tvm.target.Target, options: Mapping[str, Any], taken: Collection[str] = ()
    ) -> None:
        super().__init__(ns, _hook_target(ns.hooks, target), {ns.name: options})
        self.names: dict[Any, str] = {}
        self.kernels = KernelTable(taken)
        self.library: tvm.runtime.Module | None = None
        self.all_together: Failure | None = None

    def build(self, primfuncs: Mapping[Any, tirx.PrimFunc]) -> None:
        """Build the PrimFuncs that were lowered here, and those that the module had before."""
        users: dict[Any, Mapping[Any, tirx.PrimFunc]] = {gv: lowered.kernels for gv, lowered in self.done.items()}
        users.update((gv, {gv: func}) for gv, func in primfuncs.items())
        for user, kernels in users.items():
            for gv, func in kernels.items():
                hint = user.name_hint if len(kernels) == 1 else f"{user.name_hint}_{gv.name_hint}"
                self.names[gv] = self.kernels.add(func, hint)
        if not self.names or not (self._builds_apart or "cpu" in self.target.keys):
            return
        broken = self._build_apart()
        for user, kernels in users.items():
            failure = next((broken[self.names[gv]] for gv in kernels if self.names[gv] in broken), None)
            if failure is not None:
                self.failures[user] = failure

    @property
    def _builds_apart(self) -> bool:
        return self.ns.hooks is not None and self.ns.hooks.builds_apart

    def _build_apart(self) -> dict[str, Failure]:
        """Build the PrimFuncs. Those that go on through TVM's lowering are built once here, too, to see that it can."""
        functions = self.kernels.functions
        made, errors, together = all_or_each(list(functions), self._library_of)
        if together is None:
            self.library = made[0][1] if self._builds_apart else None
        elif not errors:
            self.all_together = Failure("codegen", f"all functions of the module together: {describe(together)}")
            return dict.fromkeys(functions, self.all_together)
        return {name: Failure("codegen", describe(error)) for name, error in errors.items()}

    def _library_of(self, names: Sequence[str]) -> tvm.runtime.Module:
        """Run the TIR passes and ``tir_to_runtime``; without hooks TVM's own passes and code generator run."""
        functions = {name: self.kernels.functions[name].with_attr("global_symbol", name) for name in names}
        mod = tvm.IRModule(functions).with_attr(OPTIONS_ATTR, self.options)
        who = "tir_passes or tir_to_runtime"
        with calling(who) if self.ns.isolate else nullcontext():
            library = apart(lambda: self._built(mod), who) if self.ns.isolate else self._built(mod)
        _check(library, names)
        return library

    def _built(self, mod: tvm.IRModule) -> Any:
        passes = self.ns.hooks.tir_passes if self.ns.hooks is not None else None
        to_runtime = self.ns.hooks.tir_to_runtime if self.ns.hooks is not None else None
        with self.target:
            mod = tirx.transform.BindTarget(self.target)(mod)
            mod = run_pass(passes, mod, "tir_passes") if passes is not None else lower_tir(mod, self.target)
            with calling("tir_to_runtime"):
                return (to_runtime or _generate)(mod, self.target)


class HookRoute(Route):
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

    def source(self, region: relax.Function, symbol: str, options: Mapping[str, Any]) -> tvm.runtime.Module:
        return self._rest.source(region, symbol, options)

    def attempt(self, region: relax.Function, options: Mapping[str, Any], *, fully: bool = False) -> Failure | None:
        made = HookBuild(self._ns, tvm.target.Target.current(allow_none=True) or tvm.target.Target("llvm"), options)
        gv = tvm.ir.GlobalVar("trial")
        made.lower({gv: region.with_attr({"Codegen": self.compiler, "global_symbol": "trial"})}, _nowhere)
        if fully and not made.failures:
            made.build({})
        if made.failures:
            return made.failures[gv]
        return None if gv in made.done else self._rest.attempt(region, options, fully=fully)

    def build(self, mod: tvm.IRModule, options: Mapping[str, Any], terms: Terms) -> tvm.IRModule:
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
        is_left = any(codegen_of(f) == self.compiler for f in mod.functions.values())
        return self._rest.build(mod, options, terms) if is_left else mod


def _nowhere(gv: Any) -> Any:
    raise Reject(f"it calls {gv.name_hint}, which stands outside of the region")


def _assembled(mod: tvm.IRModule, made: HookBuild, primfuncs: Mapping[Any, tirx.PrimFunc]) -> tvm.IRModule:
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
