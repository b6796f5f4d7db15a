"""Target hooks: a vendor's own way from regions to PrimFuncs, and from PrimFuncs to a runtime module. Fused operators:
a subgraph that becomes one PrimFunc, with a compute and a schedule of the user's own.

pattern                          compute, schedule               program
softmax(matmul(q, k))      ──>   attention(q, k, v)       ──>    call_tir(attention, q, k, v)
  matmul v                       in one kernel
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax import dpl

from ..core.errors import ArgumentTypeError, InputError, reloading, takes
from ..core.verdict import calling, describe, expect
from ..ir.functions import flatten_region
from ..ir.relax_utils import codegen_of
from . import FusedOp, TargetHooks, TirToRuntime
from .hook_lowering import REFUSED_ATTR, call_primfunc, with_body
from .hook_route import HookRoute
from .namespaces import claim_namespace, known_target
from .registry import check_functions, check_options, register_pattern


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
    Regions that they refuse, or fail at, go back to TVM with the reason. With none of ``tir_to_runtime``,
    ``tir_passes`` and ``target`` the PrimFuncs go on through TVM's lowering.

    Parameters
    ----------
    relax_to_tir : Pass or sequence of Pass, optional
        Gets a module of this namespace's regions only, and leaves in the place of each a PrimFunc (see
        `lowering.call_primfunc` for its parameters), or a Relax function that calls PrimFuncs by ``call_tir``.
        By default each region is translated to one unscheduled PrimFunc (`translate_to_te`).
    tir_to_runtime : callable, optional
        ``tir_to_runtime(mod, target)``: a runtime module with one function per PrimFunc of ``mod``, called by its
        global symbol with inputs and results. By default TVM's own code generator for ``target``.
    tir_passes : sequence of Pass, optional
        The TIR passes that run before ``tir_to_runtime``, in place of TVM's default pipeline; ``[]`` for none.
    target : str or dict, optional
        The target for which the PrimFuncs are made and lowered, one that TVM knows; the build's target by default.
    options : mapping, optional
        Options of the namespace, declared as for `register_codegen`. A user sets them by
        ``compile(..., options=...)`` or `set_target_options`, a hook reads them by `get_target_options`.
    compiler, override
        As in `register_annotate_compiler`.

    Raises
    ------
    TypeError, ValueError
        If something is no hook or no target, there are hooks already, or the namespace is another package's.
    """
    who = f"register_target_hooks({compiler!r})"
    if tir_to_runtime is not None and not callable(tir_to_runtime):
        raise ArgumentTypeError(
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
    if ns.hooks is not None and not (override or reloading()):
        raise InputError(f"{compiler!r} has target hooks already; pass override=True to replace them")
    ns.hooks, ns.kernels = hooks, HookRoute(ns)
    return hooks


def _as_pass(passes: Any, what: str) -> tvm.transform.Pass | None:
    if passes is None or isinstance(passes, tvm.transform.Pass):
        return passes
    items = list(passes) if isinstance(passes, Sequence) and not isinstance(passes, str) else [passes]
    for item in items:
        if not isinstance(item, tvm.transform.Pass):
            raise ArgumentTypeError(f"{what} has {item!r}; expected TVM passes (tvm.transform.module_pass makes one)")
    return tvm.transform.Sequential(items)


def _translate(region: relax.Function, builder: relax.BlockBuilder) -> relax.Expr:
    from ..te import translate_to_te  # not at import: most users never need it

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


@takes(region=relax.Function)
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


_OUTPUT = "output_{}"  # how the pattern's annotations call the further outputs


def register_fused_op(
    compiler: str,
    name: str,
    pattern: Any,
    compute: Callable[..., Any] | None = None,
    schedule: Callable[[Any], Any] | None = None,
    *,
    annotations: Mapping[str, Any] | None = None,
    outputs: Sequence[Any] = (),
    check: Callable[[Mapping[str, Any]], Any] | None = None,
    example: Callable[[], tvm.IRModule] | None = None,
    override: bool = False,
    extend: bool = False,
) -> FusedOp:
    """Replace each match of a pattern by one operator with its own compute and schedule.

    TVM lowers the resulting PrimFunc, or the ``tir_to_runtime`` hook of the namespace where it has one. A match is
    refused if one of its intermediate results is used outside, or if one of its inputs is computed from one of its
    results, so that it could not run as one call.

    Parameters
    ----------
    compiler, name : str
        Namespace, which needs nothing else, and a name unique in it.
    pattern : tvm.relax.dpl.DFPattern
        What to find. Its root is a call; every operand of every call is written out.
    compute : callable, optional
        ``compute(*inputs, **parts)`` returns the result as a ``te.Tensor``; several in the order of root and
        ``outputs``. There is one input for each leaf of the pattern (``wildcard()``, ``is_const()``), in the
        order of the pattern from left to right; a shape is passed as a list of dims. ``parts`` are the matched calls,
        for their attributes: those of ``annotations`` for which ``compute`` has a parameter of that name. By default
        the computes of the matched operators (`translate_to_te`).
    schedule : callable, optional
        ``schedule(sch)`` changes a ``tvm.s_tir.Schedule`` in place, or returns another, or a PrimFunc. A block has the
        name of its compute stage. By default nothing is scheduled.
    annotations : mapping of str to DFPattern, optional
        Parts of ``pattern`` that ``compute`` and ``check`` want to see.
    outputs : sequence of DFPattern, optional
        Parts of ``pattern``, besides its root, whose results may be used outside.
    check : callable, optional
        ``check(match) -> True | False | Reject``, as in `register_pattern`.
    example : callable, optional
        A module that the pattern matches, for the conformance kit, as in `register_pattern`.
    override, extend
        As in `register_annotate_compiler`.

    Raises
    ------
    TypeError, ValueError
        If the pattern cannot become one operator, or something is no function; the message says why.
    """
    who = f"fused op {compiler}.{name}"
    root = _unwrapped(pattern)
    if not isinstance(root, dpl.CallPattern):
        raise InputError(
            f"{who}: the root of the pattern is a {type(root).__name__}; expected a call. For several results make the "
            "call that depends on the others the root, and name the others in outputs="
        )
    check_functions(who, compute=compute, schedule=schedule)
    named = dict(annotations or {})
    parts = list(dict.fromkeys(_subpatterns(pattern, who)))
    for label, part in [*((f"annotation {n!r}", p) for n, p in named.items()), *(("output", p) for p in outputs)]:
        if part not in parts:
            raise InputError(f"{who}: {label} is {part!r}, which is not a part of the pattern")
    inputs = tuple(p for p in parts if not list(_children(p, who)))
    op = FusedOp(name, inputs, (pattern, *outputs), named, compute, schedule)
    extra = {_OUTPUT.format(i): p for i, p in enumerate(outputs, 1)}
    register_pattern(
        compiler,
        name,
        pattern,
        annotations={**named, **extra},
        check=check,
        outputs=tuple(extra),
        example=example,
        override=override,
        extend=extend,
    )
    ns = claim_namespace(compiler, extend or override)
    ns.fused_ops[name], ns.kernels = op, HookRoute(ns)
    return op


_WRAPPERS = (dpl.AttrPattern, dpl.DataTypePattern, dpl.ShapePattern, dpl.TypePattern)


def _unwrapped(pattern: Any) -> Any:
    while isinstance(pattern, _WRAPPERS):
        pattern = pattern.pattern
    return pattern


def _children(pattern: Any, who: str) -> Iterator[Any]:
    if isinstance(pattern, _WRAPPERS):
        yield pattern.pattern
    elif isinstance(pattern, dpl.CallPattern):
        if not len(pattern.args):
            raise InputError(f"{who}: a call in the pattern leaves its operands open; write one wildcard() for each")
        yield from pattern.args
    elif isinstance(pattern, (dpl.TuplePattern, dpl.UnorderedTuplePattern)):
        yield from pattern.fields
    elif isinstance(pattern, dpl.TupleGetItemPattern):
        yield pattern.tuple
    elif isinstance(pattern, (dpl.AndPattern, dpl.OrPattern, dpl.NotPattern)):
        raise InputError(
            f"{who}: the pattern contains a {type(pattern).__name__}, so that its inputs depend on what it matches; "
            "register one fused op for each alternative"
        )


def _subpatterns(pattern: Any, who: str) -> Iterator[Any]:
    yield pattern
    for child in _children(pattern, who):
        yield from _subpatterns(child, who)
