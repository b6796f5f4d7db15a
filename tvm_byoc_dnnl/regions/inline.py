"""Inlining: calls of composites, of regions and of helper functions are replaced by the bodies of the functions.

`dissolve_regions` undoes partitioning so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import StructuralKey

from ..ir.relax_utils import global_var, is_host_function, with_functions
from ..ir.walker import Substitute
from .blocks import dataflow_blocks

__all__ = ["Body", "dissolve_regions", "flatten_region", "inline_calls", "inline_functions", "inline_regions"]


@dataclass(frozen=True)
class Body:
    """The replacement of a call: the body of ``func``, in which ``callees`` may have other global variables."""

    func: relax.Function
    callees: Mapping[Any, Any] = field(default_factory=dict)


def _no_local_functions(func: relax.Function) -> Any:
    raise ValueError(f"a body to inline has a local function that nothing takes over:\n{func}")


def inline_calls(
    func: relax.Function, bodies: Mapping[Any, Body], lift: Callable[[relax.Function], Any] = _no_local_functions
) -> relax.Function:
    """Replace calls by bodies.

    Parameters
    ----------
    func : relax.Function
        The caller.
    bodies : mapping of Var to Body
        Variable that holds the result of a call in a dataflow block → what to put in its place. The last call of the
        body is bound to that variable, the others keep the names that they have in the body where those are free.
    lift : callable, optional
        ``lift(function) -> GlobalVar``: makes a local function of a body (a region's composite) a global one.
    """
    return _Inliner(func, lambda binding: bodies.get(binding.var), lift, relax.DataflowVar).function(func)


def inline_functions(func: relax.Function, bodies: Mapping[Any, relax.Function]) -> relax.Function:
    """``func`` with every call of the functions in ``bodies`` replaced by the body, without dataflow blocks.

    ``Function.inline_functions`` would leave the callee's symbols in types that are written out, as those of
    ``call_tir`` are; here they become the caller's.
    """
    plain = {gv: Body(_without_dataflow(body)) for gv, body in bodies.items()}
    while not bodies.keys().isdisjoint(relax.analysis.all_global_vars(func)):
        func = _without_dataflow(func)
        func = _Inliner(func, lambda b: plain.get(getattr(b.value, "op", None)), _no_local_functions).function(func)
    return func


def flatten_region(
    func: relax.Function, composite: Callable[[relax.Function], relax.Function] = lambda f: f
) -> relax.Function:
    """A region without local functions: each call of a composite is replaced by the composite's body.

    Parameters
    ----------
    func : relax.Function
        The region.
    composite : callable
        What to take instead of a composite function.
    """
    region = tvm.ir.GlobalVar("region")
    lifted = relax.transform.LambdaLift()(tvm.IRModule({region: func}))
    composites = {gv: composite(f) for gv, f in lifted.functions.items() if gv != region}
    return inline_functions(lifted[region], composites)


def inline_regions(mod: tvm.IRModule, bodies: Mapping[Any, relax.Function]) -> tvm.IRModule:
    """Replace every call of a region by a body, in all functions of the host, and drop the regions.

    Parameters
    ----------
    mod : IRModule
        The module.
    bodies : mapping of GlobalVar to Function
        Region → the function that replaces a call; it may differ from the one in ``mod``.
    """
    if not bodies:
        return mod
    functions = {gv: f for gv, f in mod.functions.items() if gv not in bodies}
    functions.update((gv, inline_functions(f, bodies)) for gv, f in functions.items() if is_host_function(f))
    mod = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.CanonicalizeBindings()(relax.transform.ConvertToDataflow(min_size=1)(mod))


def _without_dataflow(func: relax.Function) -> relax.Function:
    # A body of several blocks cannot stand inside a dataflow block.
    return relax.transform.ToNonDataflow()(tvm.IRModule({"main": func}))["main"]


class _Inliner(Substitute):
    """Puts bodies in the place of bindings, their variables as ``kind``."""

    def __init__(
        self,
        func: relax.Function,
        body_of: Callable[[Any], Body | None],
        lift: Callable[..., Any],
        kind: Any = relax.Var,
    ) -> None:
        super().__init__({})
        self._body_of = body_of
        self._lift = lift
        self._kind = kind
        self._builder = relax.BlockBuilder()
        self._taken = {v.name for v in relax.analysis.all_vars(func)}

    def bindings(self, binding: Any) -> Iterable[Any]:
        body = None if isinstance(binding, relax.MatchCast) else self._body_of(binding)
        if body is None:
            yield from super().bindings(binding)
            return
        args = [self.of(a) for a in binding.value.args]
        func = relax.utils.copy_with_new_vars(body.func)
        seq = func.bind_params(dict(zip(func.params, args, strict=True))).body  # the symbols in their types, too
        for old, new in body.callees.items():
            self.put(old, new)
        result = seq.body
        is_bound = False
        for inner in [b for block in seq.blocks for b in block.bindings]:
            if isinstance(inner.value, relax.Function):
                self.put(inner.var, self._lift(inner.value))
                continue
            is_result = inner.var.same_as(result)
            is_bound = is_bound or is_result
            var = binding.var if is_result else self._kind(self._free_name(inner.var.name), inner.var.ty)
            self.put(inner.var, var)
            yield from super().bindings(inner)
        if not is_bound:
            yield relax.VarBinding(binding.var, self._builder.normalize(self.of(result)))

    def _free_name(self, name: str) -> str:
        number, free = 0, name
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        self._taken.add(free)
        return free


def dissolve_regions(mod: tvm.IRModule, regions: Sequence[Any]) -> tvm.IRModule:
    """Undo the partitioning of some regions: the functions that called them call their composites instead."""
    lifted: dict[Any, Any] = {}
    taken = {gv.name_hint for gv in mod.get_global_vars()}
    seen: dict[StructuralKey, Any] = {}

    def lift(composite: relax.Function) -> Any:
        new = global_var(next(n for k in count() if (n := f"composite_{k}") not in taken), composite)
        gv = seen.setdefault(StructuralKey(composite), new)
        if gv is new:
            taken.add(gv.name_hint)
            lifted[gv] = composite
        return gv

    calls: dict[Any, dict[Any, Body]] = {}
    for host, block in dataflow_blocks(mod):
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call) and binding.value.op in regions:
                calls.setdefault(host, {})[binding.var] = Body(mod[binding.value.op])
    hosts = {host: inline_calls(mod[host], bodies, lift) for host, bodies in calls.items()}
    kept = {gv: f for gv, f in mod.functions.items() if gv not in regions}
    mod = tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)
    return with_functions(mod, {**lifted, **_tidied(hosts)})


def _tidied(functions: Mapping[Any, relax.Function]) -> dict[Any, relax.Function]:
    """Functions without the tuples in which regions returned their results."""
    names = [gv.name_hint for gv in functions]
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(names)]
    tidy = tvm.transform.Sequential(passes)(tvm.IRModule(functions))
    return {gv: tidy[gv.name_hint] for gv in functions}
