"""Regions back into plain calls: composites into their region, regions into the functions that call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax

from ..relax_utils import is_host_function

__all__ = ["flatten_region", "inline_functions", "inline_regions"]


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


def inline_functions(func: relax.Function, bodies: Mapping[Any, relax.Function]) -> relax.Function:
    """``func`` with every call of the functions in ``bodies`` replaced by the body, without dataflow blocks.

    ``Function.inline_functions`` would leave the callee's symbols in types that are written out, as those of
    ``call_tir`` are; here they become the caller's.
    """
    inliner = _Inliner({gv: _without_dataflow(body) for gv, body in bodies.items()})
    while not bodies.keys().isdisjoint(relax.analysis.all_global_vars(func)):
        func = inliner.visit_expr(_without_dataflow(func))
    return func


def inline_regions(mod: tvm.IRModule, bodies: Mapping[Any, relax.Function]) -> tvm.IRModule:
    """Replace every call of a region by a body, in all functions of the host, and drop the regions.

    Parameters
    ----------
    mod : IRModule
        The module.
    bodies : mapping of GlobalVar to Function
        Region → what to put in place of a call, not necessarily what is in ``mod``.
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


@relax.expr_functor.mutator
class _Inliner(relax.PyExprMutator):
    def __init__(self, bodies: Mapping[Any, relax.Function]) -> None:
        super().__init__()
        self._bodies = bodies

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if call.op not in self._bodies:
            return call
        func = relax.utils.copy_with_new_vars(self._bodies[call.op])
        body = func.bind_params(dict(zip(func.params, call.args, strict=True))).body
        for block in body.blocks:  # bound one by one: the type of a SeqExpr forgets the symbols of its surroundings
            for binding in block.bindings:
                self.builder_.emit_normalized(binding)
        return body.body
