"""The ``byoc`` pipeline: regions by their codegens, the rest by TVM's CPU lowering, with the schedules that the user
has tuned and a safe plan of memory; and what ``tvm.compile`` says where a step before it was forgotten.

TVM's plan takes memory that one branch of an If gave back for a tensor of the other branch, or of what follows: where
the first one did not run, there is no such memory, and the process ends.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu

from ..core.entries import content_key
from ..core.errors import ByocError, InputError, one_of
from ..ir.native_loop import KeepRounds, LowerLoops, refuse_native
from ..ir.order import functions_in_order
from ..ir.relax_utils import (
    bindings_in,
    bindings_of,
    codegen_of,
    composite_of,
    is_host_function,
    is_op_call,
    with_functions,
)
from ..ir.tvm_compat import dtype_of
from ..vendors.codegen import OUTPUTS, Times
from ..vendors.hook_route import opaque
from ..vendors.namespaces import find_namespace, registered, with_options
from ..vendors.portable import source_namespaces
from ..whole.table import Expand
from . import PIPELINE
from .guards import LEGALIZATIONS, CheckSizes
from .host_code import AnchorHostCode, DropSequenceMarks, StartReductions
from .memory import ALLOCATION, AttendPages, GrowCaches, OwnWeights, OwnWeightsUnlessSource
from .metadata import attach_kernels, attach_metadata, kernel_names
from .regions import build_regions

_logger = logging.getLogger("tvm_byoc_dnnl")


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
    found = {gv: opaque(f) for gv, f in functions.items() if _has_short_dims(f) or _has_sizes_of_others(f)}
    # FuseTIR would take the parameters from private functions that only dims of other parameters read, such as `n + 2`.
    private = {gv: f for gv, f in mod.functions.items() if is_host_function(f) and not _is_kept(f)}
    found |= {gv: f.with_attr("global_symbol", gv.name_hint) for gv, f in private.items()}
    return with_functions(mod, found)


def _is_kept(func: relax.Function) -> bool:
    """Whether it is public, or fused already."""
    return bool(func.attrs) and ("global_symbol" in func.attrs or "Primitive" in func.attrs)


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
                *([] if is_source else [AttendPages]),
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
