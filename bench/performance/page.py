"""The generated part of docs/performance.md, one table over all CPUs, and a page of each CPU in docs/performance/,
with a picture: the times of the engines, divided by ours, as bars.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tvm_byoc_dnnl.testing.bench.engines import ENGINES

from ..torch_compile import TORCH_ENGINES
from . import GROUPS

__all__ = ["BEGIN", "END", "draw", "page_of", "ratios", "write"]

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_OURS = "byoc"


def page_of(page: Path, machine: Mapping[str, Any]) -> Path:
    """The page of a machine's own, in a folder beside the one over all of them; its picture has the same name."""
    limited = " limited" if machine.get("limited") else ""
    name = re.sub(r"[^a-z0-9]+", "-", f"{machine['cpu']} {machine['isa']}{limited}".lower()).strip("-")
    return page.with_suffix("") / f"{name}.md"


def _engines(machine: Mapping[str, Any]) -> list[str]:
    found = dict.fromkeys(e["engine"] for m in machine["models"].values() for e in m["engines"] if not e["failure"])
    return [name for name in ENGINES if name in found and name != _OURS]


def _of(model: Mapping[str, Any], engine: str) -> Mapping[str, Any] | None:
    return next((e for e in model["engines"] if e["engine"] == engine and not e["failure"]), None)


def ratios(machine: Mapping[str, Any], engine: str, what: str = "ms", base: str = _OURS) -> dict[str, float]:
    """Model → an engine's time divided by the base's; ``what`` is ``ms`` or ``first_result_s``."""
    found = {}
    for name, model in machine["models"].items():
        ours, theirs = _of(model, base), _of(model, engine)
        if ours is not None and theirs is not None:
            a, b = (e[what]["median"] if what == "ms" else e[what] for e in (theirs, ours))
            found[name] = a / b
    return found


def _mean(found: Mapping[str, float], names: Sequence[str]) -> str:
    """The geometric mean over some models, where all of them were measured."""
    known = [found[name] for name in names if name in found]
    return f"{statistics.geometric_mean(known):.2f}" if len(known) == len(names) else "—"


def _bold(text: str) -> str:
    return text if text == "—" else f"**{text}**"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    yield from (f"| {' | '.join(row)} |\n" for row in rows)
    yield "\n"


def _times(
    machine: Mapping[str, Any],
    engines: Sequence[str],
    what: str,
    base: str = _OURS,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[list[str]]:
    by_engine = {name: ratios(machine, name, what, base) for name in engines}
    for name, model in machine["models"].items():
        ours = _of(model, base)
        if ours is None:
            continue
        cells = [_number(ours["ms"]["median"] if what == "ms" else ours[what])]
        for engine in engines:
            theirs = _of(model, engine)
            if theirs is None:
                cells.append("—")
                continue
            time = theirs["ms"]["median"] if what == "ms" else theirs[what]
            cells.append(f"{_number(time)} ({by_engine[engine][name]:.2f})")
        yield [f"`{name}`", *cells]
    for group, names in (groups or {}).items():
        if not set(names) <= set(machine["models"]):
            continue
        yield [f"{group}, geometric mean", "", *(_bold(_mean(by_engine[engine], names)) for engine in engines)]


def _means(machine: Mapping[str, Any], engines: Sequence[str]) -> Iterator[list[str]]:
    """The geometric means of each group of which every model was measured, beside what they are to be."""
    by_engine = {name: ratios(machine, name) for name in engines}
    for title, group in GROUPS.items():
        if not set(group.models) <= set(machine["models"]):
            continue
        cells = []
        for engine in engines:
            mean = _bold(_mean(by_engine[engine], group.models))
            target = group.targets.get(engine)
            cells.append(f"{mean} (≥ {target:.2f})" if target else mean)
        yield [title, *cells]


def _slower(machine: Mapping[str, Any], engines: Sequence[str]) -> Iterator[str]:
    """One line for each engine that is faster with some models."""
    for engine in engines:
        behind = {name: ratio for name, ratio in ratios(machine, engine).items() if ratio < 1}
        if behind:
            models = ", ".join(
                f"`{name}` ({behind[name]:.2f})" for name in sorted(behind, key=lambda name: behind[name])
            )
            yield f"* {ENGINES[engine].label} is faster with {models}.\n"


def _layers(machine: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, model in machine["models"].items():
        for row in model.get("roofline", {}).get("layers", ()):
            gflops, gbytes = (row[k] / row["ms"] if row["ms"] else 0.0 for k in ("gflop", "mbytes"))
            yield [
                f"`{name}`",
                row["layer"],
                f"`{row['implementation']}`",
                f"{row['ms']:.3f}",
                _number(1e3 * gflops),
                _number(gbytes),
                f"{row['roof_ms']:.3f}",
                f"{row['roof_ms'] / row['ms']:.0%}" if row["ms"] else "—",
            ]


def _sums(machine: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, model in machine["models"].items():
        if sums := model.get("roofline"):
            share = sums["roof_ms"] / sums["ms"]
            yield [f"`{name}`", f"{sums['ms']:.2f}", f"{sums['roof_ms']:.2f}", f"{share:.0%}"]


def _torch_section(measured: Mapping[str, Any]) -> Iterator[str]:
    """torch.compile with this package, beside the same network ahead of time and beside PyTorch's own ways."""
    ours, *others = TORCH_ENGINES
    labels = {name: engine.label for name, engine in TORCH_ENGINES.items()}
    yield "## torch.compile\n\n"
    yield f"{measured['threads']} threads, {measured['date']}; PyTorch {measured['versions'][ours]}.\n\n"
    yield f"Milliseconds of one call; in brackets the time divided by that of `{labels[ours]}`.\n\n"
    yield from _table(
        ["network", *labels.values()], _times(measured, others, "ms", ours, {"all": list(measured["models"])})
    )


def _processes(machine: Mapping[str, Any]) -> str:
    """Of how many processes the first results are."""
    engines = (e for m in machine["models"].values() for e in m["engines"] if not e["failure"])
    counts = {len(e.get("first_results_s", [0])) for e in engines}
    if counts == {1}:
        return "of one process each"
    return "medians of " + " or ".join(map(str, sorted(counts))) + " processes each"


def _overview(page: Path, machines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every network on every CPU: the engines' times divided by ours."""
    shown = [machine for machine in machines if _engines(machine)]
    if shown:
        yield from _ratios_of_all(page, shown)
    for machine in machines:
        if machine not in shown:
            yield f"Of this package alone: [{machine['cpu']}, {machine['isa']}]({_link(page, machine)}).\n\n"


def _ratios_of_all(page: Path, shown: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    engines = [name for name in ENGINES if any(name in _engines(machine) for machine in shown)]
    by_machine = [{name: ratios(machine, name) for name in engines} for machine in shown]
    models = dict.fromkeys(name for machine in shown for name in machine["models"])

    def cell(found: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
        cells = [_mean(found[engine], names) for engine in engines]
        return " · ".join(cells) if set(cells) != {"—"} else ""

    yield f"Times of {', '.join(ENGINES[name].label for name in engines)}, in this order, divided by ours.\n\n"
    head = ["model", *(f"[{m['cpu']}, {m['isa']}]({_link(page, m)})" for m in shown)]
    rows = [[f"`{name}`", *(cell(found, [name]) for found in by_machine)] for name in models]
    rows += [[f"**{title}**", *(cell(found, group.models) for found in by_machine)] for title, group in GROUPS.items()]
    yield from _table(head, iter(rows))
    yield "A group's row has geometric means, where every model of the group was measured.\n\n"


def _link(page: Path, machine: Mapping[str, Any]) -> str:
    return page_of(page, machine).relative_to(page.parent).as_posix()


def _section(machine: Mapping[str, Any], picture: str) -> Iterator[str]:
    engines = _engines(machine)
    labels = [ENGINES[name].label for name in engines]
    versions = ", ".join(f"{ENGINES[n].label} {v}" for n, v in machine["versions"].items() if n in ENGINES)
    yield f"# {machine['cpu']}, {machine['isa']}\n\n"
    yield "`make docs-performance` writes this page; [Performance](../performance.md) says how it is measured.\n\n"
    python = f"; Python {machine['python']}" if "python" in machine else ""
    yield f"{machine['threads']} threads, {machine['date']}; {versions}{python}.\n\n"
    if machine.get("limited"):
        yield (
            "A limited run: this CPU has more instructions, which `ONEDNN_MAX_CPU_ISA` forbids to oneDNN and to our "
            "kernels. The other engines cannot be limited so, and were not measured: our own times, and how near the "
            "layers come to what these instructions can do.\n\n"
        )
    if machine.get("hidden"):
        yield (
            "This CPU has AVX-512, and none of the engines sees it: each was measured as on a CPU with AVX2 only "
            "(`python -m bench.without_isa avx512`).\n\n"
        )
    if engines:
        yield f"![The engines' times, divided by ours]({picture})\n\n"
    head = ["model", "tvm-byoc-dnnl", *labels]
    yield "Milliseconds of one call" + ("; in brackets the time divided by ours.\n\n" if engines else ".\n\n")
    yield from _table(head, _times(machine, engines, "ms"))
    if means := list(_means(machine, engines)) if engines else []:
        yield "Geometric means of these ratios; in brackets what this package aims at.\n\n"
        yield from _table(["models", *labels], iter(means))
    if slower := list(_slower(machine, engines)):
        yield "".join(slower) + "\n"
    yield f"Seconds from the ONNX file to the first result, {_processes(machine)}; "
    yield "the engines, ours too, and TVM are imported before.\n\n"
    yield from _table(head, _times(machine, engines, "first_result_s"))
    failures = [
        f"{ENGINES[e['engine']].label}, `{name}`: {e['failure']}"
        for name, model in machine["models"].items()
        for e in model["engines"]
        if e["failure"] and e["engine"] in ENGINES
    ]
    if failures:
        yield "Not measured, because an engine refused the model or its outputs were wrong:\n\n"
        yield "".join(f"* {line}\n" for line in failures) + "\n"
    disturbed = [n for n, m in machine["models"].items() if any(e.get("blocks_disturbed") for e in m["engines"])]
    if disturbed:
        yield f"Not all blocks could be measured on a quiet machine: {', '.join(f'`{n}`' for n in disturbed)}.\n\n"
    if "roof" in machine:
        peak = machine["roof"]
        yield (
            f"This CPU multiplies matrices of float32 (by NumPy) at {peak['gflops']:.0f} GFLOP/s and reads memory at "
            f"{peak['gbytes']:.0f} GB/s. A layer's roof is the time of its operations at the one rate or of its bytes "
            "at the other, whichever is longer; bytes that are in a cache already take less. Layers that are faster "
            "by Winograd's algorithm, or by parts of bfloat16 on AMX, count as at their roof.\n\n"
        )
        yield from _table(["model", "all layers, ms", "roof, ms", "share"], _sums(machine))
        yield "<details><summary>The layers that lose most time against their roofs</summary>\n\n"
        yield from _table(
            ["model", "layer", "implementation", "ms", "GFLOP/s", "GB/s", "roof, ms", "share"], _layers(machine)
        )
        yield "</details>\n\n"
    if "torch" in machine:
        yield from _torch_section(machine["torch"])


def write(page: Path, machines: Sequence[Mapping[str, Any]]) -> None:
    """Replace what stands between the two marks of a page, and write the page of each machine."""
    head, _, rest = page.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    page.write_text(f"{head}{BEGIN}\n\n{''.join(_overview(page, machines))}{END}{tail}")
    for machine in machines:
        own = page_of(page, machine)
        own.parent.mkdir(exist_ok=True)
        own.write_text("".join(_section(machine, own.with_suffix(".svg").name)))


def draw(machine: Mapping[str, Any], file: Path) -> None:
    """Write the picture of one machine."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "tvm-byoc-dnnl", "svg.fonttype": "none", "font.size": 9})
    by_engine = {name: found for name in ENGINES if name != "byoc" and (found := ratios(machine, name))}
    models = list(machine["models"])
    height = 0.8 / max(len(by_engine), 1)
    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.36 * len(models)), layout="constrained")
    for number, (name, found) in enumerate(by_engine.items()):
        known = [i for i, model in enumerate(models) if model in found]
        places = [i - 0.4 + (number + 0.5) * height for i in known]
        axes.barh(places, [found[models[i]] for i in known], height, label=ENGINES[name].label)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(models)), models)
    axes.invert_yaxis()
    axes.set_xlabel("time ÷ ours (right of 1: this package is faster)")
    axes.set_title(f"{machine['cpu']}, {machine['isa']}, {machine['threads']} threads")
    axes.legend(loc="lower right")
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
