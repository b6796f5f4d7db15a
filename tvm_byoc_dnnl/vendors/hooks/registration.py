"""Target hooks: a vendor's own way from regions to PrimFuncs, and from PrimFuncs to a runtime module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from ...core.vendor_code import calling, expect
from ...ir.relax_utils import codegen_of
from ...regions.failure import describe
from ...regions.inline import flatten_region
from ..namespace import TargetHooks, TirToRuntime
from ..namespaces import claim_namespace
from ..registry import check_options
from ..target_options import known_target
from .lowering import REFUSED_ATTR
from .primfunc_call import call_primfunc, with_body
from .route import HookRoute


def register_target_hooks(
    compiler: str,
    relax_to_tir: tvm.transform.Pass | Sequence[tvm.transform.Pass] | None = None,
    tir_to_runtime: TirToRuntime | None = None,
    tir_passes: Sequence[tvm.transform.Pass] | None = None,
    *,
    target: str | Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    override: bool = False,
) -> TargetHooks:
    """Register how the regions of ``compiler`` become PrimFuncs, and these a runtime module.

    The hooks run in the ``byoc`` pipeline just above TVM's lowering, once per namespace, in the order of the names.
    Regions that they refuse, or fail at, go back to TVM with the reason.

    Parameters
    ----------
    compiler : str
        Name of the namespace.
    relax_to_tir : Pass or sequence of Pass, optional
        Gets a module of this namespace's regions only, and leaves in the place of each a PrimFunc (see
        `calling.call_primfunc` for its parameters), or a Relax function that calls PrimFuncs by ``call_tir``.
        By default each region is translated to one unscheduled PrimFunc (`translate_to_te`).
    tir_to_runtime : callable, optional
        ``tir_to_runtime(mod, target)``: a runtime module with one function per PrimFunc of ``mod``, called by its
        global symbol with inputs and results. By default TVM's own code generator for ``target``.
    tir_passes : sequence of Pass, optional
        The TIR passes that run before ``tir_to_runtime``, in place of TVM's default pipeline; ``[]`` for none.
    target : str or dict, optional
        The target for which the PrimFuncs are made and lowered, one that TVM knows; the build's target by default.
    options : mapping, optional
        Options of the namespace and their defaults, whose types are the types of the options. A user sets them by
        ``compile(..., options=...)`` or `set_target_options`, a hook reads them by `get_target_options`.
    override : bool
        Replace an earlier registration, also another package's, instead of raising ``ValueError``.

    Raises
    ------
    TypeError, ValueError
        If something is no hook or no target, there are hooks already, or the namespace is another package's.

    Notes
    -----
    With none of ``tir_to_runtime``, ``tir_passes`` and ``target`` the PrimFuncs go on through TVM's lowering.
    """
    who = f"register_target_hooks({compiler!r})"
    if tir_to_runtime is not None and not callable(tir_to_runtime):
        raise TypeError(
            f"{who}: tir_to_runtime is {tir_to_runtime!r}; expected a function (IRModule, Target) -> Module"
        )
    if target is not None:
        known_target(target, who)
    hooks = TargetHooks(
        _as_pass(relax_to_tir, f"{who}: relax_to_tir") or for_each_region(_translate),
        tir_to_runtime,
        _as_pass(tir_passes, f"{who}: tir_passes"),
        target,
        dict(options or {}),
    )
    ns = claim_namespace(compiler, override)
    check_options(who, options or {}, ns.codegen_options)
    if ns.hooks is not None and not override:
        raise ValueError(f"{compiler!r} has target hooks already; pass override=True to replace them")
    ns.hooks, ns.kernels = hooks, HookRoute(ns)
    return hooks


def _as_pass(passes: Any, what: str) -> tvm.transform.Pass | None:
    if passes is None or isinstance(passes, tvm.transform.Pass):
        return passes
    items = list(passes) if isinstance(passes, Sequence) and not isinstance(passes, str) else [passes]
    for item in items:
        if not isinstance(item, tvm.transform.Pass):
            raise TypeError(f"{what} has {item!r}; expected TVM passes (tvm.transform.module_pass makes one)")
    return tvm.transform.Sequential(items)


def _translate(region: relax.Function, builder: relax.BlockBuilder) -> relax.Expr:
    from ...te import translate_to_te  # not at import: most users never need it

    graph = translate_to_te((builder.get(), region), tvm.target.Target.current(allow_none=False))
    return graph.call(builder, region.params)


def for_each_region(lower: Callable[[relax.Function, relax.BlockBuilder], Any]) -> tvm.transform.Pass:
    """A ``relax_to_tir`` pass out of a function that lowers one region.

    Parameters
    ----------
    lower : callable
        ``lower(region, builder)`` returns a PrimFunc, or a call in terms of ``region.params``, such as
        ``TEGraph.call(builder, region.params)``; ``builder`` takes the PrimFuncs and has those that the region calls.
        A region for which it raises is refused with that reason; the others go on.
    """

    @tvm.transform.module_pass(opt_level=0, name="ForEachRegion")
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        builder = relax.BlockBuilder(mod)
        for gv, func in mod.functions.items():
            if isinstance(func, relax.Function) and codegen_of(func):
                try:
                    with calling("the function of for_each_region"):
                        builder.update_func(gv, _lowered(lower, gv, func, builder))
                except Exception as error:
                    builder.update_func(gv, refuse_region(func, error))
        return builder.get()

    return run


def _lowered(lower: Any, gv: Any, region: relax.Function, builder: relax.BlockBuilder) -> relax.Function:
    who = "the function of for_each_region"
    result = expect(lower(region, builder), (relax.Expr, tirx.PrimFunc), who, "a PrimFunc, or a call of one")
    if isinstance(result, tirx.PrimFunc):
        callee = builder.add_func(result.without_attr("global_symbol"), f"{gv.name_hint}_kernel")
        result = call_primfunc(region, callee, result)
    return with_body(region, result)


def refuse_region(region: relax.Function, why: str | Exception) -> relax.Function:
    """``region`` with a note for the pipeline that it cannot be lowered and must go back to TVM.

    Parameters
    ----------
    region : relax.Function
        The region, as ``relax_to_tir`` got it.
    why : str or Exception
        The reason.
    """
    return region.with_attr(REFUSED_ATTR, why if isinstance(why, str) else describe(why))


@tvm.transform.module_pass(opt_level=0, name="InlineComposites")
def _inline_composites(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    regions = {gv: flatten_region(f) for gv, f in mod.functions.items() if codegen_of(f)}
    return tvm.IRModule({**dict(mod.functions.items()), **regions}, attrs=mod.attrs, global_infos=mod.global_infos)


def InlineComposites() -> tvm.transform.Pass:
    """Pass: regions without composite functions inside, for a ``relax_to_tir`` that works on plain operators."""
    return _inline_composites
