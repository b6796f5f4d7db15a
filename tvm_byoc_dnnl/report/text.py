"""The report for a terminal.

Numbers for people; and how results look at a prompt and in a notebook: one line, and a page or a text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..partitioning.report_data import CallReport, Candidate, RegionReport, ReportData
from ..vendors.namespaces import HOST


def quantity(value: int, unit: str = "") -> str:
    """Three digits and a decimal prefix: ``4.09 G``; of 0 and of small numbers, the number."""
    number = float(value)
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5 or prefix == "P":
            break
        number /= 1000
    digits = f"{number:.0f}" if not prefix or abs(number) >= 99.95 else f"{number:.3g}"
    return f"{digits} {prefix}{unit}".strip()


def percent(share: float) -> str:
    """A share as text; less than all is never printed as 100 %, more than nothing never as 0 %."""
    text = f"{share:.1%}" if 0.0005 <= share < 0.9995 else f"{share:.0%}"
    if share < 1 and text == "100%":
        text = ">99.9%"
    if share > 0 and text == "0%":
        text = "<0.1%"
    return text.replace("%", " %")


def count(number: int, noun: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def milliseconds(seconds: float) -> str:
    """Three digits: ``7.01 ms``."""
    return f"{1e3 * seconds:.3g} ms"


class Shown:
    """A result with a short ``repr``; a notebook shows its page, or its text where it has none."""

    def _said(self) -> str:
        raise NotImplementedError

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` as JSON text."""
        shown: Any = self
        return json.dumps(shown.to_dict(), indent=indent)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._said()}>"

    def __str__(self) -> str:
        shown: Any = self
        return shown.to_text()

    def _repr_html_(self) -> str:
        shown: Any = self
        if not hasattr(self, "to_html"):
            return f"<pre>{escape(shown.to_text())}</pre>"
        return f'<iframe srcdoc="{escape(shown.to_html())}" style="width: 100%; height: 40em; border: 0"></iframe>'


_MAX_REGIONS = 20
_MAX_NODES = 5


def render_text(report: ReportData, *, width: int = 110, color: bool = False, every_call: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    sections: list[Callable[[ReportData], Iterable[RenderableType]]] = [
        _summary,
        _regions,
        _modules,
        _host,
        _misses,
        _advice,
    ]
    if every_call:
        sections.insert(2, _calls)
    for section in sections:
        for part in section(report):
            console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _indented(part: RenderableType) -> Padding:
    return Padding(part, (0, 0, 0, 2))


def _section(title: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> list[RenderableType]:
    """A heading and a table; nothing where there are no rows. A column has a title, and is left, right or wide."""
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=any(name for name, _ in columns))
    for name, justify in columns:
        wide = justify == "wide"
        table.add_column(
            name,
            justify="right" if justify == "right" else "left",
            no_wrap=not wide,
            overflow="fold" if wide else "ellipsis",
            ratio=1 if wide else None,
        )
    for row in rows:
        table.add_row(*row)
    return [Text(f"\n{title}", style="bold"), _indented(table)] if table.rows else []


def _summary(report: ReportData) -> Iterable[RenderableType]:
    totals = report.totals
    title = f"{report.model}: " if report.model else ""
    where = ", ".join(report.compilers) or "no compiler"
    share = totals.offloaded_flops / totals.flops if totals.flops else 0.0
    yield Text.assemble(
        (title, "bold"),
        f"{totals.offloaded_calls} of {count(totals.calls, 'call')} and ",
        f"{percent(share)} of {quantity(totals.flops, 'FLOP')} go to {where}, ",
        f"in {count(totals.regions, 'region')}",
        "" if totals.reorders is None else f" with {count(totals.reorders, 'reorder')}",
    )


#: the columns of a table of regions, for a terminal and for the page
FIGURES_OF_A_REGION = ("calls", "FLOP", "bytes", "reorders")


def figures_of(region: RegionReport) -> list[str]:
    """The cells of these columns."""
    reorders = "?" if region.reorders is None else str(region.reorders)
    return [str(region.ops), quantity(region.flops), quantity(region.bytes), reorders]


def _regions(report: ReportData) -> Iterable[RenderableType]:
    largest = sorted(report.regions, key=lambda r: -r.flops)[:_MAX_REGIONS]
    shown = [r for r in report.regions if r in largest]
    columns = [("name", "left"), *((name, "right") for name in FIGURES_OF_A_REGION), ("", "wide")]
    rows = (
        (
            region.name + (f" ×{region.uses}" if region.uses > 1 else ""),
            *figures_of(region),
            _operators(c for c in report.calls if c.region == region.name),
        )
        for region in shown
    )
    yield from _section("Regions", columns, rows)
    yield from (_indented(Text(f"{region.name}: {region.notes}")) for region in shown if region.notes)
    left = len(report.regions) - len(shown)
    if left:
        yield _indented(Text(f"… and {left} smaller ones", style="dim"))


def _modules(report: ReportData) -> Iterable[RenderableType]:
    refused = [(r.name, r.source_refusal) for r in report.regions if r.source_refusal]
    return _section(f"Stay modules: {count(len(refused), 'region')}", [("", "left"), ("", "wide")], refused)


def _operators(calls: Iterable[CallReport]) -> str:
    found: dict[str, int] = {}
    for call in calls:
        found[call.label] = found.get(call.label, 0) + 1
    parts = [name + (f" ×{n}" if n > 1 else "") for name, n in sorted(found.items(), key=lambda f: -f[1])]
    return ", ".join(parts[:8]) + (f", {len(parts) - 8} more" if len(parts) > 8 else "")


def _host(report: ReportData) -> Iterable[RenderableType]:
    host = report.host_calls()
    groups: dict[tuple[str, tuple[str, ...]], list[CallReport]] = {}
    for call in host:
        groups.setdefault((call.label, tuple(call.reasons)), []).append(call)
    rows = []
    for (label, reasons), calls in sorted(groups.items(), key=lambda g: -sum(c.flops for c in g[1])):
        why = "\n".join([*(reasons or ["nobody was asked"]), *_nodes(calls)])
        rows.append((label, str(len(calls)), quantity(sum(c.flops for c in calls)), why))
    columns = [("", "left"), ("calls", "right"), ("FLOP", "right"), ("why", "wide")]
    return _section(f"Stay with TVM: {count(len(host), 'call')}", columns, rows)


def _nodes(calls: Sequence[CallReport]) -> list[str]:
    """A line with the names of the ONNX nodes, as far as there is room."""
    names = list(dict.fromkeys(call.onnx_node for call in calls if call.onnx_node))
    more = f", {len(names) - _MAX_NODES} more" if len(names) > _MAX_NODES else ""
    return [f"nodes: {', '.join(names[:_MAX_NODES])}{more}"] if names else []


def _misses(report: ReportData) -> Iterable[RenderableType]:
    groups: dict[tuple[str, str], list[CallReport]] = {}
    for call in report.calls:
        for miss in call.near_misses[:1]:
            if not _is_one_step([report.calls[i] for i in miss.calls]):
                groups.setdefault((miss.pattern, miss.reason), []).append(call)
    rows = [(found, "\n".join([f"{_operators(of)}: {why}", *_nodes(of)])) for (found, why), of in groups.items()]
    return _section("Nearly matched", [("pattern", "left"), ("calls, and what failed", "wide")], rows)


def _is_one_step(calls: Sequence[CallReport]) -> bool:
    """Whether several calls run as one primitive, which is all that a pattern could have gained."""
    return len(calls) > 1 and calls[0].step is not None and len({(c.region, c.use, c.step) for c in calls}) == 1


def _calls(report: ReportData) -> Iterable[RenderableType]:
    named = any(call.onnx_node for call in report.calls)
    columns = [("", "right"), ("call", "left"), ("ONNX node", "left"), ("result", "left"), ("region", "left")]
    columns = [*(c for c in columns if named or c[0] != "ONNX node"), ("FLOP", "right"), ("runs as", "wide")]
    rows = []
    for call in report.calls:
        runs_as = ": ".join(w for w in (call.primitive, call.implementation) if w)
        node = [call.onnx_node or ""] if named else []
        why = "\n".join(filter(None, [runs_as or "; ".join(call.reasons), _others(call)]))
        where = call.region or "TVM"
        rows.append((str(call.id), call.label, *node, call.output, where, quantity(call.flops), why))
    return _section("Calls", columns, rows)


def _others(call: CallReport) -> str:
    """The compilers that would also take a call that another one has."""
    would = [c for c in call.candidates if (not c.reason or c.seconds is not None) and c.compiler != call.compiler]
    own = next((_time(c) for c in call.candidates if c.compiler == (call.compiler or HOST)), "")
    others = ", ".join(c.compiler + _time(c) for c in would if call.compiler or c.seconds is not None)
    return " ".join(filter(None, [own.strip(), f"or {others}" if others else ""]))


def _time(candidate: Candidate) -> str:
    if candidate.seconds is None:
        return ""
    return f" ({milliseconds(candidate.seconds)} for {count(candidate.calls or 1, 'call')})"


def _advice(report: ReportData) -> Iterable[RenderableType]:
    if report.advice:
        yield Text("\nAdvice", style="bold")
        for line in report.advice:
            bullet = Table.grid(padding=(0, 1))
            bullet.add_row("•", Text(line))
            yield _indented(bullet)
