"""Advice: a few sentences, made from a report's numbers, that say where to look first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from ..calls.model import CallReport, ReportData
from .formats import count, milliseconds, percent

_SHARE = 0.01  # of all FLOPs: a smaller share is not worth a sentence
_SMALL_OPS, _SMALL_FLOPS = 2, 100_000
_MAX = 8
_NOISE = 0.02  # a smaller difference of measured times says nothing
#: operators that answer a NaN with a bound
_BOUNDS = ("relax.nn.relu", "relax.clip", "relax.maximum", "relax.minimum")


def advise(report: ReportData) -> list[str]:
    """Advice on a report, most valuable first."""
    return [line for rule in _RULES for line in rule(report)][:_MAX]


def _symbols(report: ReportData) -> Iterator[str]:
    if report.symbols:
        yield (
            f"Symbolic dims count as 1 here: {', '.join(report.symbols)}. Fixing them (`shapes=`, `--shape`) gives "
            "true numbers, and plans that are made when the model is loaded instead of at the first call of each shape."
        )


def _unasked(report: ReportData) -> Iterator[str]:
    for name in report.unasked:
        yield (
            f"The library of {name} could not be asked on this machine, so its implementations and reorders are "
            "unknown, and calls may be listed that it would refuse: `tvm-byoc doctor` says what is missing."
        )


def _not_worth_it(report: ReportData) -> Iterator[str]:
    for worth in sorted(report.worth, key=lambda w: w.seconds_without - w.seconds):
        if worth.seconds_without < worth.seconds * (1 - _NOISE):
            yield (
                f"{worth.compiler} costs more than it brings: by the order of priority the regions take "
                f"{milliseconds(worth.seconds)}, and without it {milliseconds(worth.seconds_without)}. Leave it out, "
                "or let `tune` choose its calls."
            )


def _host_work(report: ReportData) -> Iterator[str]:
    groups: dict[str, list[CallReport]] = defaultdict(list)
    for call in report.host_calls():
        groups[call.label].append(call)
    for label, calls in sorted(groups.items(), key=lambda g: -_flops(g[1]))[:3]:
        share = _flops(calls) / max(report.totals.flops, 1)
        if share >= _SHARE:
            work = f"{count(len(calls), 'call')} with {percent(share)} of the FLOPs"
            yield f"{label}: {work} stay with TVM. {_why(calls)}"


def _bridges(report: ReportData) -> Iterator[str]:
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
    for (compiler, label), calls in sorted(bridges.items(), key=lambda b: -len(b[1]))[:2]:
        yield (
            f"{label} stands between regions of {compiler} {count(len(calls), 'time')}: each costs a border that data "
            f"cross in plain layout. {_why(calls)}"
        )


def _small_regions(report: ReportData) -> Iterator[str]:
    small = [r for r in report.regions if r.ops <= _SMALL_OPS * r.uses and r.flops <= _SMALL_FLOPS * r.uses]
    if len(small) > 1:
        names = ", ".join(r.name for r in small[:4]) + (" …" if len(small) > 4 else "")
        yield (
            f"{len(small)} of {len(report.regions)} regions hold at most {_SMALL_OPS} small calls ({names}): calling "
            "them may cost more than they save."
        )


def _reorders(report: ReportData) -> Iterator[str]:
    total = report.totals.reorders or 0
    if total > report.totals.offloaded_calls:
        worst = max(report.regions, key=lambda r: r.reorders or 0)
        yield (
            f"{total} reorders for {count(report.totals.offloaded_calls, 'offloaded call')}; most in {worst.name} "
            f"({worst.reorders}): its operators want different layouts."
        )


def _hidden_nan(report: ReportData) -> Iterator[str]:
    keeping = {name for name, options in report.options.items() if options.get("keep_nan")}
    calls = [c for c in report.calls if c.op in _BOUNDS and c.onnx_node and c.compiler not in keeping]
    if calls:
        yield (
            f"NaN: {count(len(calls), 'call')} ({', '.join(sorted({c.label for c in calls}))}) may turn a NaN into a "
            "number, as TVM's operators do, where ONNX Runtime passes it on; docs/numerics.md has an option."
        )


_RULES: Sequence[Callable[[ReportData], Iterator[str]]] = (
    _unasked,
    _not_worth_it,
    _host_work,
    _bridges,
    _reorders,
    _small_regions,
    _symbols,
    _hidden_nan,
)


def _flops(calls: Sequence[CallReport]) -> int:
    return sum(c.flops for c in calls)


def _why(calls: Sequence[CallReport]) -> str:
    reasons = Counter(reason for call in calls for reason in call.reasons).most_common(1)
    return f"Why: {reasons[0][0]}." if reasons else ""
