"""explain: from a model to a `Report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import tvm

from ..api.compile import DEFAULT_COMPILER, partition
from ..api.precision import with_precision
from ..calls.account import account_of
from ..calls.model import Candidate, Worth
from ..core.compilation import compiling, knowing
from ..core.errors import ArtifactError, InputError, UnsupportedError
from ..core.expected import check_types
from ..frontends import to_relax
from ..ir.relax_utils import codegen_of, composite_of, is_host_function
from ..partitioning.annotate.passes import compilers_of
from ..partitioning.passes import PartitionGraph
from ..pipeline.library_file import is_library
from ..pipeline.metadata import read_account
from ..pipeline.regions import settle_regions
from ..regions.policy import RegionPolicy
from ..runtime.runner import Runner, load
from ..tuning.candidates import known_times
from ..tuning.placement import choices_of
from ..tuning.times import Times, times_of
from ..tuning.tune import placement_for
from ..vendors.blobs import to_be_described
from ..vendors.codegen.extern import check_output
from ..vendors.namespaces import HOST, namespace
from ..vendors.target_options import with_options
from .advice import advise
from .report import Report
from .rewritten import rewritten_patterns


@compiling()
def explain(
    model: Any,
    compiler: str | Sequence[str] | None = DEFAULT_COMPILER,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    *,
    policy: RegionPolicy | None = None,
    placement: Mapping[str, str] | None = None,
    precision: str = "float32",
    weights: str | None = None,
    activations: str | None = None,
    int8: str = "exact",
    options: Mapping[str, Mapping[str, Any]] | None = None,
    output: str = "module",
    database: str | PathLike[str] | None = None,
    dry_run: bool = False,
) -> Report:
    """Find which call runs where, and why: regions are built as `compile` builds them, and those that fail are undone.

    Parameters
    ----------
    model : IRModule, onnx.ModelProto, torch.export.ExportedProgram, Executable, Module, Runner or path
        A model, or a module that is annotated or partitioned already, which the arguments of these steps do not
        change. Of what is compiled (what `compile` and `load` return, and a library's path), the report is what the
        build has noted; the other arguments have no effect, and how a library runs the calls of its regions is not
        known.
    compiler : str or sequence of str, optional
        Whom to ask, in order of priority; ``None`` reads the functions' attribute ``compiler``.
    policy, shapes, placement, precision, weights, activations, int8, options, dry_run
        As in `compile` and `partition`.
    output : str
        With ``"source"``, say also which regions would stay modules, and why.
    database : path-like, optional
        File of times that `tune` has written: without a ``placement`` it places the calls as in `compile`, and each
        call shows the times of its candidates.

    Returns
    -------
    Report
        Data first; ``to_text()``, ``to_json()`` and ``to_html()`` render it.

    Raises
    ------
    ValueError
        If a compiler is not registered.
    InputError, UnsupportedError, ArtifactError
        If the model cannot be imported or loaded, was built without the pipeline ``"byoc"``, or ``output`` is unknown.
    """
    check_output(output)
    check_types(compiler, shapes=shapes, policy=policy, placement=placement, options=options)
    if _is_compiled(model):
        return _of_compiled(model, shapes)
    chosen = {"precision": precision, "weights": weights, "activations": activations, "int8": int8}
    mod = to_relax(model, shapes=shapes)
    report = _of_module(mod, compiler, options, chosen, policy, placement, database, dry_run, output)
    report.model = Path(model).name if isinstance(model, (str, Path)) else ""
    return report


def _of_module(
    imported: tvm.IRModule,
    compiler: str | Sequence[str] | None,
    options: Mapping[str, Mapping[str, Any]] | None,
    chosen: Mapping[str, str | None],
    policy: RegionPolicy | None,
    placement: Mapping[str, str] | None,
    database: str | PathLike[str] | None,
    dry_run: bool,
    output: str,
) -> Report:
    """The report of a module, which is annotated and partitioned where it is not yet."""
    mod, asked, times = imported, _asked(imported, compiler), None
    if not any(codegen_of(f) for f in mod.functions.values()):
        mod = with_options(mod, with_precision(compiler, options, chosen))
        if any(composite_of(f) for f in mod.functions.values()):
            mod = PartitionGraph(policy=policy, dry_run=dry_run)(mod)
        else:
            if database is not None:
                placement = placement or placement_for(mod, asked, database)
                times = times_of(mod, asked, placement, database)
            mod = partition(mod, compiler, policy=policy, placement=placement, dry_run=dry_run)
    mod = settle_regions(mod, dry_run=dry_run)
    with knowing(times=known_times(mod, choices_of(placement))):
        report = Report(**vars(account_of(mod, asked)))
    if times is not None:
        _add_times(report, times)
    for region in report.regions if output == "source" else ():
        try:
            namespace(region.compiler).route.source(mod[region.name], region.name)
        except UnsupportedError as error:
            region.source_refusal = " ".join(str(error).split())
    report.advice = [*rewritten_patterns(imported, [namespace(name) for name in asked], report.calls), *advise(report)]
    return report


def _add_times(report: Report, times: Times) -> None:
    for call in report.calls:
        known = times.regions.get(call.name, {})
        candidates = [*call.candidates, *([Candidate(HOST)] if HOST in known else [])]
        call.candidates = [
            replace(c, seconds=known[c.compiler].seconds, calls=known[c.compiler].calls) if c.compiler in known else c
            for c in candidates
        ]
    if times.default is not None:
        report.worth = [Worth(compiler, times.default, without) for compiler, without in times.without.items()]


def _is_compiled(model: Any) -> bool:
    if isinstance(model, (str, Path)):
        return is_library(Path(model))
    return isinstance(model, (Runner, tvm.runtime.Executable, tvm.runtime.Module))


def _of_compiled(model: Any, shapes: Mapping[str, Any] | None) -> Report:
    """The report that the build has noted in a compiled model."""
    if shapes:
        raise InputError("`shapes` fixes the inputs of an ONNX model; a compiled model has its own: leave it out")
    is_path = isinstance(model, (str, Path))
    with to_be_described():
        runner = load(model) if is_path else model if isinstance(model, Runner) else Runner(model)
        account = read_account(runner.module)
    if account is None:
        raise ArtifactError(
            "this compiled model does not say what runs where: it was built without the pipeline 'byoc', or by an "
            "earlier version of tvm-byoc-dnnl; give the model that it was built from"
        )
    report = Report(**vars(account))
    report.model = Path(model).name if is_path else ""
    report.advice = advise(report)
    return report


def _asked(mod: tvm.IRModule, compiler: str | Sequence[str] | None) -> list[str]:
    default = [compiler] if isinstance(compiler, str) else compiler
    functions = [f for f in mod.functions.values() if is_host_function(f)]
    return list(dict.fromkeys(name for f in functions for name in compilers_of(f, default)))
