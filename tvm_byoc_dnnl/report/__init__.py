"""explain: from a model to a `Report`, with advice from its numbers, and the patterns that preparing hides."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import tvm

from ..api import DEFAULT_COMPILER, partition
from ..core.compilation import compiling
from ..core.errors import ArtifactError, InputError, UnsupportedError, renamed
from ..core.files import write_text
from ..frontends import to_relax
from ..graph.cost import RegionPolicy, with_names
from ..ir.relax_utils import codegen_of, composite_of, is_host_function, ops_of
from ..partitioning import PartitionGraph
from ..partitioning.account import account_of, notes_of
from ..partitioning.annotate import AnnotateExternalCompiler, compilers_of
from ..partitioning.report_data import CallReport, Candidate, NearMiss, RegionReport, ReportData, Totals, Worth
from ..pipeline.metadata import read_account
from ..pipeline.regions import settle_regions
from ..runtime.native import NativeRunner
from ..runtime.runner import Runner, described
from ..tuning import placement_for
from ..tuning.database import choices_of
from ..tuning.plans import CallTimes, known_times, times_of
from ..vendors import Namespace
from ..vendors.namespaces import HOST, check_arguments, namespace, with_options, with_precision
from .html import render_html
from .measured import is_compiled
from .text import Shown, count, milliseconds, percent, render_text

__all__ = ["CallReport", "Candidate", "NearMiss", "RegionReport", "Report", "Totals", "explain"]


class Report(Shown, ReportData):
    """Shows which call runs where, and why: the data is `ReportData`; the methods print it."""

    def to_text(self, *, width: int = 110, color: bool = False, every_call: bool = False) -> str:
        """The report for a terminal.

        Parameters
        ----------
        width : int
            Columns.
        color : bool
            Use the terminal's colours.
        every_call : bool
            List all calls, not only those that stay with TVM.
        """
        return render_text(self, width=width, color=color, every_call=every_call)

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """One self-contained page: the graph, regions coloured, reasons on hover; also written to ``path``."""
        page = render_html(self)
        if path is not None:
            write_text(path, page)
        return page

    def _said(self) -> str:
        of = f"{self.model}, " if self.model else ""
        totals = self.totals
        return f"{of}{totals.offloaded_calls} of {totals.calls} calls in {count(totals.regions, 'region')}"


_SHARE = 0.01  # of all FLOPs or bytes: a smaller share is not worth a sentence
_SMALL_OPS, _SMALL_FLOPS = 2, 100_000
_MAX = 8
_NOISE = 0.02  # a smaller difference of measured times says nothing
#: operators that answer a NaN with a bound
_BOUNDS = ("relax.nn.relu", "relax.clip", "relax.maximum", "relax.minimum")
_PRODUCTS = ("relax.matmul", "relax.nn.conv")


#: the share of a run that it is about, an estimate by which advice is ordered, and the line
_Advice = Iterator[tuple[float, str]]


def advise(report: ReportData) -> list[str]:
    """Advice on a report: what makes it uncertain, then what gains most, then what has no gain in time."""
    found = sorted((advice for rule in _RULES for advice in rule(report)), key=lambda advice: -advice[0])
    return [line for _, line in found[:_MAX]]


def _symbols(report: ReportData) -> _Advice:
    if report.symbols:
        yield (
            0,
            f"Symbolic dims count as 1 here: {', '.join(report.symbols)}. Fixing them (`shapes=`, `--shape`) gives "
            "true numbers, and plans that are made when the model is loaded, not at the first call of each shape.",
        )


def _unasked(report: ReportData) -> _Advice:
    for name in report.unasked:
        yield (
            math.inf,
            f"The library of {name} could not be asked on this machine, so its implementations and reorders are "
            "unknown, and calls may be listed that it would refuse: `tvm-byoc doctor` says what is missing.",
        )


def _not_worth_it(report: ReportData) -> _Advice:
    for worth in report.worth:
        gain = 1 - worth.seconds_without / worth.seconds if worth.seconds else 0
        if gain > _NOISE:
            yield (
                gain,
                f"{worth.compiler} costs more than it brings: by the order of priority the regions take "
                f"{milliseconds(worth.seconds)}, and without it {milliseconds(worth.seconds_without)} "
                f"({percent(gain)} less). Leave it out, or let `tune` choose its calls.",
            )


def _host_work(report: ReportData) -> _Advice:
    groups: dict[str, list[CallReport]] = defaultdict(list)
    for call in report.host_calls():
        groups[call.label].append(call)
    for label, calls in groups.items():
        flops = sum(call.flops for call in calls) / max(report.totals.flops, 1)
        share = max(flops, _share_of_bytes(calls, report))
        if share >= _SHARE:
            work = f"{percent(flops)} of the FLOPs and {percent(_share_of_bytes(calls, report))} of the bytes"
            yield share, f"{label}: {count(len(calls), 'call')} with {work} stay with TVM. {_why(calls)}"


def _bridges(report: ReportData) -> _Advice:
    """Host calls that read from and feed one compiler: without them, regions would be one."""
    readers: dict[int, list[CallReport]] = defaultdict(list)
    for call in report.calls:
        for source in call.inputs:
            readers[source].append(call)
    bridges: dict[tuple[str, str], list[CallReport]] = defaultdict(list)
    for call in report.host_calls():
        before = {report.calls[i].compiler for i in call.inputs} - {None}
        after = {c.compiler for c in readers[call.id]} - {None}
        for compiler in sorted(str(c) for c in before & after):
            bridges[compiler, call.label].append(call)
    for (compiler, label), calls in bridges.items():
        share = _share_of_bytes(calls, report)
        yield (
            share,
            f"{label} stands between regions of {compiler} {count(len(calls), 'time')}: data cross these borders in "
            f"plain layout, {percent(share)} of the bytes. {_why(calls)}",
        )


def _small_regions(report: ReportData) -> _Advice:
    small = [r for r in report.regions if r.ops <= _SMALL_OPS * r.uses and r.flops <= _SMALL_FLOPS * r.uses]
    if len(small) > 1:
        names = ", ".join(r.name for r in small[:4]) + (" …" if len(small) > 4 else "")
        share = sum(r.ops for r in small) / report.totals.calls
        yield (
            share,
            f"{len(small)} of {len(report.regions)} regions hold at most {_SMALL_OPS} small calls ({names}), "
            f"{percent(share)} of all: calling them may cost more than they save.",
        )


def _reorders(report: ReportData) -> _Advice:
    total, calls = report.totals.reorders or 0, report.totals.offloaded_calls
    if total > calls:
        worst = max(report.regions, key=lambda r: r.reorders or 0)
        yield (
            total / (total + calls),
            f"{total} reorders for {count(calls, 'offloaded call')}; most in {worst.name} ({worst.reorders}): its "
            f"operators want different layouts, and {percent(total / (total + calls))} of the steps only copy.",
        )


def _hidden_nan(report: ReportData) -> _Advice:
    """Bounds in regions with products, of which they may become a part."""
    keeping = {name for name, options in report.options.items() if options.get("keep_nan")}
    multiplying = {c.region for c in report.calls if c.compiler and c.op.startswith(_PRODUCTS)}
    calls = [c for c in report.calls if c.op in _BOUNDS and c.onnx_node and c.region in multiplying]
    calls = [c for c in calls if c.compiler not in keeping]
    if calls:
        yield (
            0,
            f"NaN: {count(len(calls), 'call')} ({', '.join(sorted({c.label for c in calls}))}) may turn a NaN into a "
            "number behind a product, where ONNX Runtime passes it on; docs/numerics.md has an option.",
        )


_RULES: Sequence[Callable[[ReportData], _Advice]] = (
    _unasked,
    _not_worth_it,
    _host_work,
    _bridges,
    _reorders,
    _small_regions,
    _symbols,
    _hidden_nan,
)


def _share_of_bytes(calls: Sequence[CallReport], report: ReportData) -> float:
    return sum(call.bytes for call in calls) / max(sum(call.bytes for call in report.calls), 1)


def _why(calls: Sequence[CallReport]) -> str:
    reasons = Counter(reason for call in calls for reason in call.reasons).most_common(1)
    return f"Why: {reasons[0][0]}." if reasons else ""


def rewritten_patterns(
    mod: tvm.IRModule, namespaces: Sequence[Namespace], calls: Sequence[CallReport]
) -> Iterator[str]:
    """For patterns whose matches in ``mod`` preparing has all undone; ``calls`` are of the partitioned module."""
    gone = _ops(mod) - {call.op for call in calls}
    matched = {call.pattern for call in calls}
    lost = {
        f"{ns.name}.{pattern.name}": sorted(gone & set(re.findall(r"relax\.[\w.]+", str(pattern.pattern))))
        for ns in namespaces
        if not ns.is_ours
        for pattern in ns.patterns.values()
        if f"{ns.name}.{pattern.name}" not in matched
    }
    lost = {name: ops for name, ops in lost.items() if ops}
    if not lost:
        return
    annotated = AnnotateExternalCompiler([ns.name for ns in namespaces], prepare=False)(mod)
    found = [composite_of(f) for f in annotated.functions.values()]
    for name, ops in lost.items():
        if name in found:
            places = count(found.count(name), "place")
            yield (
                f"{name} matches {places} of the model as imported and none as prepared, which rewrites "
                f"{', '.join(ops)}: write the pattern for the prepared form, or give prepare=False to partition and "
                "compile."
            )


def _ops(mod: tvm.IRModule) -> set[str]:
    return {op for f in mod.functions.values() if is_host_function(f) for op in ops_of(f)}


@renamed(placement="place")
@compiling()
def explain(
    model: Any,
    compiler: str | Sequence[str] | None = DEFAULT_COMPILER,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    *,
    policy: RegionPolicy | None = None,
    exclude: Sequence[str] = (),
    force: Sequence[str] = (),
    place: Mapping[str, str] | None = None,
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
    policy, exclude, force, place, shapes, precision, weights, activations, int8, options, dry_run
        As in `compile` and `partition`.
    output : str
        With ``"source"``, say also which regions would stay modules, and why.
    database : path-like, optional
        File of times that `tune` has written: without ``place`` it places the calls as in `compile`, and each
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
    check_arguments(compiler=compiler, shapes=shapes, options=options, output=output, database=database)
    check_arguments(policy=policy, exclude=exclude, force=force, place=place, dry_run=dry_run)
    policy = with_names(policy, exclude, force)
    if is_compiled(model):
        return _of_compiled(model, shapes)
    chosen = {"precision": precision, "weights": weights, "activations": activations, "int8": int8}
    options = with_precision(compiler, options, chosen)
    mod = to_relax(model, shapes=shapes)
    report = _of_module(mod, compiler, options, policy, place, database, dry_run, output)
    report.model = Path(model).name if isinstance(model, (str, PathLike)) else ""
    return report


def _of_module(
    imported: tvm.IRModule,
    compiler: str | Sequence[str] | None,
    options: Mapping[str, Mapping[str, Any]] | None,
    policy: RegionPolicy | None,
    placement: Mapping[str, str] | None,
    database: str | PathLike[str] | None,
    dry_run: bool,
    output: str,
) -> Report:
    mod, asked, times = imported, _asked(imported, compiler), None
    if not any(codegen_of(f) for f in mod.functions.values()):
        mod = with_options(mod, options)
        if any(composite_of(f) for f in mod.functions.values()):
            mod = PartitionGraph(policy=policy, dry_run=dry_run)(mod)
        else:
            if database is not None:
                placement = placement or placement_for(mod, asked, database)
                times = times_of(mod, asked, placement, database)
            mod = partition(mod, compiler, policy=policy, place=placement, dry_run=dry_run)
    mod = settle_regions(mod, dry_run=dry_run)
    report = Report(**vars(account_of(mod, asked, times=known_times(mod, choices_of(placement)))))
    if times is not None:
        _add_times(report, times)
    for region in report.regions if not dry_run else ():
        ns = namespace(region.compiler)
        region.notes = notes_of(ns, mod[region.name], report.options.get(ns.name, {}))
    for region in report.regions if output == "source" else ():
        own = report.options.get(region.compiler, {})
        try:
            namespace(region.compiler).route.source(mod[region.name], region.name, own)
        except UnsupportedError as error:
            region.source_refusal = " ".join(str(error).split())
    report.advice = [*rewritten_patterns(imported, [namespace(name) for name in asked], report.calls), *advise(report)]
    return report


def _add_times(report: Report, times: CallTimes) -> None:
    for call in report.calls:
        known = times.regions.get(call.name, {})
        candidates = [*call.candidates, *([Candidate(HOST)] if HOST in known else [])]
        call.candidates = [
            replace(c, seconds=known[c.compiler].seconds, calls=known[c.compiler].calls) if c.compiler in known else c
            for c in candidates
        ]
    if times.default is not None:
        report.worth = [Worth(compiler, times.default, without) for compiler, without in times.without.items()]


def _of_compiled(model: Any, shapes: Mapping[str, Any] | None) -> Report:
    if shapes:
        raise InputError("`shapes` fixes the inputs of an ONNX model; a compiled model has its own: leave it out")
    runner = model if isinstance(model, (Runner, NativeRunner)) else described(model)
    account = read_account(runner.module)
    if account is None:
        raise ArtifactError(
            "this compiled model does not say what runs where: it was built without the pipeline 'byoc', or by an "
            "earlier version of tvm-byoc-dnnl; give the model that it was built from"
        )
    report = Report(**vars(account))
    report.model = Path(model).name if isinstance(model, (str, PathLike)) else ""
    report.advice = advise(report)
    return report


def _asked(mod: tvm.IRModule, compiler: str | Sequence[str] | None) -> list[str]:
    default = [compiler] if isinstance(compiler, str) else compiler
    functions = [f for f in mod.functions.values() if is_host_function(f)]
    return list(dict.fromkeys(name for f in functions for name in compilers_of(f, default)))
