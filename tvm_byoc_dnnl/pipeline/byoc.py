"""The stage that builds the regions, each namespace by its route; a region that fails goes back to TVM. And a second
form of a model in which TVM computes what vendors' compilers have got, for when a device fails.

    main           = f(region_0(x))       on the device
    byoc_fallback  = f(calls of region_0)     by TVM, from the same constants

The constants lie in a library once, as data that is read when it is needed.

The ``byoc`` pipeline: regions by their codegens, the rest by TVM's CPU lowering, with the schedules that the user
has tuned and a safe plan of memory.

TVM's plan takes memory that one branch of an If gave back for a tensor of the other branch, or of what follows: where
the first one did not run, there is no such memory, and the process ends.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu

from ..core.compilation import Fact, raise_failures, read_log, with_facts
from ..core.errors import ByocError, InputError, NativeLibraryError, UnsupportedError, one_of
from ..core.verdict import BrokenRegions, Failure
from ..ir.fingerprint import content_key
from ..ir.functions import flatten_region, inline_functions
from ..ir.native_loop import KeepRounds, LowerLoops, refuse_native
from ..ir.order import functions_in_order
from ..ir.relax_utils import (
    bindings_in,
    bindings_of,
    codegen_of,
    composite_of,
    free_name,
    global_var,
    is_host_function,
    is_op_call,
    with_functions,
)
from ..ir.tvm_compat import dtype_of
from ..ir.walker import Substitute
from ..partitioning.passes import partition_again
from ..vendors.codegen import OUTPUTS, Terms, Times
from ..vendors.codegen import attempt as route_attempt
from ..vendors.hook_route import opaque
from ..vendors.namespace import Namespace
from ..vendors.namespaces import find_namespace, get_target_options, registered, with_options
from ..vendors.portable import install_codegen, source_namespaces
from ..whole import Expand
from . import PIPELINE
from .guards import LEGALIZATIONS, CheckSizes
from .host_code import AnchorHostCode, DropSequenceMarks, StartReductions
from .memory import ALLOCATION, GrowCaches, OwnWeights, OwnWeightsUnlessSource
from .metadata import attach_kernels, attach_metadata, kernel_names

_logger = logging.getLogger("tvm_byoc_dnnl")


def build_regions(
    mod: tvm.IRModule, *, strict: bool = False, times: Times | None = None
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """The module with the regions that can be built as functions, and the same one with these regions built.

    One namespace after the other, by their names. What cannot be built is partitioned again around the calls that are
    to blame, and then all are built again: others may have got what it lost. With ``strict``, `UnsupportedError` lists
    these calls instead. A region that cannot be source as asked becomes a module, with a note in the log.
    `NativeLibraryError` if a library is missing: that is no fault of a region.
    """
    notes: dict[str, dict[str, str]] = {}
    mod, built = _built(mod, notes, times, strict=strict)
    return mod, with_facts(built, [fact for name, refusals in notes.items() for fact in _facts(name, refusals, strict)])


def settle_regions(mod: tvm.IRModule, *, dry_run: bool = False) -> tvm.IRModule:
    """The regions that `build_regions` would build in the end, as regions; calls that cannot be built went back before.

    A namespace without its library keeps its regions, and in a ``dry_run`` so does one with a compiler of its own.
    """
    with tvm.target.Target("llvm"):
        return _built(mod, {}, needs_all=False, dry_run=dry_run)[0]


def _built(
    mod: tvm.IRModule,
    notes: dict[str, dict[str, str]],
    times: Times | None = None,
    *,
    strict: bool = False,
    needs_all: bool = True,
    dry_run: bool = False,
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """See `build_regions`; ``notes`` gets what is no source. Without ``needs_all``, regions without a library stay."""
    built, done = mod, set[str]()
    while owners := {codegen_of(f) for f in built.functions.values()} - done - {""}:
        name = min(owners)
        ns, notes[name] = find_namespace(name) or Namespace(name), {}
        done.add(name)
        if dry_run and ns.route.compiles:
            continue
        try:
            install_codegen(ns)
            options = _options(mod, ns)
            built = ns.route.build(built, options, Terms(times, notes[name]))
        except NativeLibraryError:
            if needs_all:
                raise
        except BrokenRegions as broken:
            built = mod = _without(mod, ns, broken)
            done.clear()  # other compilers may have got calls that this one lost
            notes.clear()
            if strict:
                raise_failures(read_log(mod))
    return mod, built


def _options(mod: tvm.IRModule, ns: Namespace) -> dict[str, Any]:
    return get_target_options(mod, ns.name) if find_namespace(ns.name) else {}


def _without(mod: tvm.IRModule, ns: Namespace, broken: BrokenRegions) -> tvm.IRModule:
    """The module without regions, or parts of regions, that cannot be built, and with the reasons in its log."""
    regions = [gv for gv in broken.failures if isinstance(mod[gv], relax.Function)]
    for gv, failure in broken.failures.items():
        if gv not in regions:  # TVM's lowering takes a PrimFunc as it is
            mod = with_functions(mod, {gv: mod[gv].without_attr("Codegen")})
            name = gv.name_hint
            mod = with_facts(mod, [Fact(name, name, "tirx.PrimFunc", ns.name, failure.stage, failure.reason)])

    def attempt(other: Namespace, region: relax.Function) -> Failure | None:
        if other.name != ns.name:
            return route_attempt(other.route, region, _options(mod, other))
        return broken.together or route_attempt(ns.route, region, _options(mod, ns), fully=True)

    return partition_again(mod, regions, attempt) if regions else mod


def _facts(name: str, refusals: Mapping[str, str], strict: bool) -> list[Fact]:
    """Notes that regions are modules although source was asked for; a region stands for its calls."""
    if refusals and strict:
        lines = "".join(f"\n  {symbol}: {reason}" for symbol, reason in refusals.items())
        raise UnsupportedError(
            f"{len(refusals)} region(s) cannot be source and strict=True forbids to make modules of them:{lines}"
        )
    for symbol, reason in refusals.items():
        _logger.warning("%s is a module, not source as asked: %s", symbol, reason)
    return [
        Fact(symbol, symbol, "region", name, "output", f"is a module, not source: {reason}")
        for symbol, reason in refusals.items()
    ]


#: how long a model stays with TVM after a failure → the name of its second form
FALLBACK_FUNCTIONS = {True: "byoc_fallback", "once": "byoc_fallback_once"}


def with_host_form(mod: tvm.IRModule, fallback: bool | str) -> tvm.IRModule:
    """The partitioned module with a second form of ``main``, if that calls regions of vendors' compilers."""
    bodies = {
        gv: flatten_region(f).without_attr("Codegen")
        for gv, f in mod.functions.items()
        if (ns := find_namespace(codegen_of(f))) and ns.route.compiles
    }
    hosts = {gv: f for gv, f in mod.functions.items() if is_host_function(f) and gv not in bodies}
    read = {gv: set(relax.analysis.all_global_vars(f)) for gv, f in hosts.items()}
    reaching = {gv for gv, others in read.items() if others & bodies.keys()}
    while more := {gv for gv, others in read.items() if others & reaching} - reaching:
        reaching |= more
    main = next((gv for gv in reaching if gv.name_hint == "main"), None)
    if main is None:
        return mod
    taken, form = {gv.name_hint for gv in mod.get_global_vars()}, FALLBACK_FUNCTIONS[fallback]
    copies, functions = {}, {}
    for gv in sorted(reaching, key=lambda gv: gv.name_hint):
        name = form if gv is main else free_name(f"{gv.name_hint}_host", taken, 0)
        func = relax.utils.copy_with_new_vars(inline_functions(mod[gv], bodies))
        functions[gv] = func.with_attr("global_symbol", form) if gv is main else func.without_attr("global_symbol")
        copies[gv] = global_var(name, functions[gv])
    renamed = Substitute(copies)
    made = tvm.IRModule({copies[gv]: renamed.function(f) for gv, f in functions.items()})
    passes = [relax.transform.ConvertToDataflow(min_size=1), relax.transform.CanonicalizeBindings()]
    tidy = tvm.transform.Sequential(passes)(made)
    return with_functions(mod, {copies[gv]: tidy[copies[gv].name_hint] for gv in functions})


def notice_forgotten_steps() -> None:
    """Let ``tvm.compile`` say which step is missing, for which TVM has no place."""
    build = tvm.relax.build
    if hasattr(build, "__wrapped__"):
        return

    @functools.wraps(build)
    def checked_build(mod: Any, *args: Any, **kwargs: Any) -> Any:
        functions = mod.functions.values() if isinstance(mod, tvm.IRModule) else ()
        unfinished = _annotated_only(functions)
        if unfinished:
            _logger.warning("%s", unfinished)
        try:
            return build(mod, *args, **kwargs)
        except ByocError:
            raise
        except Exception as error:
            owners = sorted({owner for f in functions if find_namespace(owner := codegen_of(f))})
            if owners and _name(kwargs.get("relax_pipeline")) != PIPELINE:
                raise InputError(
                    f"the module has regions of {', '.join(owners)}, which this pipeline does not build: use "
                    f'tvm.compile(mod, target, relax_pipeline="{PIPELINE}"), or run relax.transform.RunCodegen() '
                    "before a pipeline of your own"
                ) from error
            if unfinished:  # TVM does not compile every composite function: not those with tensors inside
                raise InputError(unfinished) from error
            raise

    tvm.relax.build = checked_build


def _name(pipeline: Any) -> str:
    return pipeline if isinstance(pipeline, str) else str(getattr(getattr(pipeline, "info", None), "name", ""))


def _annotated_only(functions: Any) -> str:
    """The advice for a module with composite functions of ours, "" for any other."""
    owners = [composite_of(f).partition(".")[0] for f in functions]
    ours = sorted({owner for owner in owners if find_namespace(owner)})
    if not ours:
        return ""
    return (
        f"the module is annotated for {', '.join(ours)}, but not partitioned: all of it stays with TVM; apply "
        "PartitionGraph() behind AnnotateExternalCompiler, or call partition(), which does both"
    )


notice_forgotten_steps()


@tvm.transform.module_pass(opt_level=0, name="KeepFromFusion")
def _keep_from_fusion(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    functions = {gv: f for gv, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    found = {gv: f for gv, f in functions.items() if _has_short_dims(f) or _has_sizes_of_others(f)}
    return with_functions(mod, {gv: opaque(f) for gv, f in found.items()}) if found else mod


def _has_short_dims(func: tvm.tirx.PrimFunc) -> bool:
    # FuseTIR insists on equal buffers where two functions meet, and those that LegalizeOps makes have dims of int64.
    return any(dtype_of(dim.ty) != "int64" for p in func.params for dim in getattr(p, "shape", ()))


def _has_sizes_of_others(func: tvm.tirx.PrimFunc) -> bool:
    # FuseTIR would define a symbol twice that a function takes as a number and that is not a dim of its tensors.
    own = [dim for p in func.params for dim in getattr(p, "shape", ()) if isinstance(dim, tvm.tirx.Var)]
    return any(not hasattr(p, "shape") and not any(p.same_as(v) for v in own) for p in func.params)


def _to_kernels(target: tvm.target.Target) -> tvm.transform.Pass:
    """Pass: TVM's calls become calls of fused PrimFuncs, with a note of the calls that each of these runs."""
    legalize = [
        relax.transform.LegalizeOps(LEGALIZATIONS),
        *cpu.library_dispatch_passes(target),
        CheckSizes,
        _keep_from_fusion,
        relax.transform.AnnotateTIROpPattern(),
    ]

    @tvm.transform.module_pass(opt_level=0, name="ToKernels")
    def lower(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        legal = tvm.transform.Sequential(legalize)(mod)
        fused = functions_in_order(relax.transform.FuseOps()(legal))
        lowered = relax.transform.RewriteDataflowReshape()(relax.transform.FuseTIR()(fused))
        return attach_kernels(lowered, kernel_names(mod, legal, fused, lowered))

    return lower


def _target_of(mod: tvm.IRModule) -> tvm.target.Target:
    """The target that ``tvm.compile`` sets, or the module's own, which TVM's backend of torch.compile sets."""
    target = tvm.target.Target.current(allow_none=True) or (mod.attrs or {}).get("target")
    if target is None:
        raise InputError("the pipeline `byoc` needs a target; run it by tvm.compile, or inside of `with target:`")
    return target


def byoc_pipeline(
    *,
    strict: bool = False,
    output: str = "module",
    host_code: bool = True,
    times: Times | None = None,
) -> tvm.transform.Pass:
    """The pipeline of ``tvm.compile(mod, "llvm", relax_pipeline="byoc")``.

    Parameters
    ----------
    strict : bool
        Raise for a region that a codegen or a target hook cannot compile, instead of giving it back to TVM.
    output : str
        ``"source"`` sets the option of this name for every namespace that has it: regions are C source, to be compiled
        with `source_options` by ``export_library`` or ``jit``.
    host_code : bool
        Keep code of TVM's in the executable also where it has nothing to compute; without, the executable is one for
        `ByocExecutable`, which removes TVM's empty C source.
    times : Times, optional
        ``times(codegen, graph)``: the known times of the candidates in a graph, which `tune` has measured.

    Raises
    ------
    InputError
        If ``output`` is neither.
    """
    one_of("output", output, OUTPUTS)

    @tvm.transform.module_pass(opt_level=0, name="byoc")
    def pipeline(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        target = _target_of(mod)
        if output == "source":
            mod = with_options(mod, {ns.name: {"output": output} for ns in registered() if ns.route.makes_source})
        if source_namespaces(mod):
            refuse_native(mod)
        regions, mod = build_regions(mod, strict=strict, times=times)
        is_source = bool(source_namespaces(mod))
        mod = attach_metadata(mod, regions)  # after all that may write to the log
        return tvm.transform.Sequential(
            [
                Expand,
                KeepRounds,
                _to_kernels(target),
                apply_schedules,
                DropSequenceMarks,
                StartReductions,
                OwnWeightsUnlessSource if is_source else OwnWeights,
                *([AnchorHostCode] if host_code else []),
                *cpu.dataflow_lower_passes(target),
                LowerLoops,
                GrowCaches,
                *(_careful(p) if p.info.name == _PLAN else p for p in cpu.finalize_passes(target)),
            ]
        )(mod)

    return pipeline


def _database() -> Any | None:
    """The database of the `with` around this call; there is none before its module is imported."""
    module = sys.modules.get("tvm.s_tir.meta_schedule")
    return None if module is None else module.Database.current()


@tvm.transform.module_pass(opt_level=0, name="ApplySchedules")
def apply_schedules(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    return mod if _database() is None else relax.transform.MetaScheduleApplyDatabase()(mod)


def name_of_schedules() -> str:
    """A short name for these schedules, so that their times are told from others; empty without any."""
    database = _database()
    if database is None:
        return ""
    try:
        records = sorted(str(record.as_json()) for record in database.get_all_tuning_records())
    except Exception:  # a database that is a function has no records
        return f"schedules of {type(database).__name__}"
    return f"{len(records)} schedules {content_key([repr(records)])[:8]}"


_PLAN = "StaticPlanBlockMemory"


def _careful(plan: tvm.transform.Pass) -> tvm.transform.Pass:
    """The pass that plans memory, which leaves functions with a branch that allocates alone."""

    @tvm.transform.module_pass(opt_level=0, name=_PLAN)
    def careful(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        kept = {gv: f for gv, f in mod.functions.items() if is_host_function(f) and _has_allocating_branch(f)}
        return with_functions(plan(mod), kept)

    return careful


def _has_allocating_branch(func: relax.Function) -> bool:
    branches = (value for _, value in bindings_of(func) if isinstance(value, relax.If))
    inside = (binding.value for branch in branches for binding in bindings_in(branch))
    return any(is_op_call(value) and value.op.name == ALLOCATION for value in inside)
