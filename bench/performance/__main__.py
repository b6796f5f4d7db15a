"""Measure this package beside its peers, and write docs/performance.md: ``python -m bench.performance [MODEL ...]``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import onnx

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.report.measured import Roof, StepTime, roof
from tvm_byoc_dnnl.testing.bench import choose_engines, run
from tvm_byoc_dnnl.testing.bench.engines import Engine
from tvm_byoc_dnnl.testing.bench.measure import Settings

from . import LIMIT, MODELS, Entry, entry, keep, load, machine, without_samples
from .page import draw, page_of, write

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
_LAYERS = 4


def _measure(each: Entry, chosen: Mapping[str, Engine], settings: Settings, limit: Roof | None, file: Path) -> bool:
    """Measure a model and keep the results at once: a run that is stopped loses none. Whether an engine failed."""
    comparisons = run([each.model], chosen, settings, inputs_of=each.inputs_of)
    result = without_samples(comparisons, settings)
    where = machine(result)
    if limit is not None:
        where["roof"] = {"gflops": round(limit.gflops, 1), "gbytes": round(limit.gbytes, 1)}
        result["models"][0]["roofline"] = _roofline(each, limit)
    keep(file, where, result["models"])
    return any(c.failures for c in comparisons)


def _roofline(each: Entry, limit: Roof) -> dict:
    model = each.model.read()
    with TemporaryDirectory() as folder:
        path = str(Path(folder, "model.onnx"))
        onnx.save(model, path)
        return _layers(path, list(each.inputs_of(model).values()), limit)


def _name(step: StepTime) -> str:
    what = " + ".join(op.removeprefix("relax.").removeprefix("nn.") for op in step.source) or step.kind
    shape = step.layouts[-1].rpartition(":")[2] if step.layouts else ""
    return f"{what} → {shape}" if shape else what


def _layers(path: str, inputs: Any, limit: Roof) -> dict[str, Any]:
    """The layers of a model that lose most time against the roof, and the sums over all of them."""
    report = byoc.profile(byoc.compile(path), inputs, repeat=10)
    rows = []
    for step in report.steps:
        size = step.bytes
        least = limit.seconds(step.flops, size)
        names = {"layer": _name(step), "implementation": step.implementation}
        numbers = {
            "ms": step.seconds * 1e3,
            "gflop": step.flops / 1e9,
            "mbytes": size / 1e6,
            "roof_ms": least * 1e3,
        }
        rows.append((names, numbers))
    rows.sort(key=lambda row: row[1]["roof_ms"] - row[1]["ms"])
    return {
        "ms": sum(numbers["ms"] for _, numbers in rows),
        "roof_ms": sum(min(numbers["roof_ms"], numbers["ms"]) for _, numbers in rows),
        "layers": [{**names, **{k: round(v, 4) for k, v in numbers.items()}} for names, numbers in rows[:_LAYERS]],
    }


@click.command(context_settings={"show_default": True})
@click.argument("models", nargs=-1)
@click.option("--engines", default="byoc,onnxruntime,openvino,mnn", help="Those that are not installed are left out.")
@click.option("--rounds", default=6, help="Turns of each engine.")
@click.option("--repeats", default=8, help="A disturbed turn is run again, at most so many times.")
@click.option("--loads", default=5, help="Fresh processes of each engine; the first result is their median.")
@click.option("--threads", default=Settings().threads, help="Threads of each engine.")
@click.option(
    "--page",
    default=_PAGE,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The page; the results are beside it.",
)
@click.option("--roofline/--no-roofline", default=True, help="Profile the layers too.")
@click.option("--render", is_flag=True, help="Measure nothing: write the page and pictures from the results.")
def main(
    models: tuple[str, ...],
    engines: str,
    rounds: int,
    repeats: int,
    loads: int,
    threads: int,
    page: Path,
    roofline: bool,
    render: bool,
) -> None:
    """Measure MODELS, or the usual ones, and write the page.

    Results of other CPUs and models stay as they are, and those of a model are kept as soon as it is measured. With
    ONEDNN_MAX_CPU_ISA set, only this package is measured, since the other engines know no such limit; the results make
    a section of their own. `python -m bench.without_isa avx512` hides AVX-512 from all of them.
    """
    file = page.with_suffix(".json")
    failed = False
    if not render:
        try:
            entries = [entry(name) for name in models or MODELS]
            chosen = choose_engines(["byoc"] if os.environ.get(LIMIT) else engines.split(","))
        except InputError as error:
            raise click.UsageError(str(error)) from error
        settings = Settings(threads=threads, rounds=rounds, repeats=repeats, loads=loads)
        limit = roof(threads) if roofline else None
        for each in entries:
            failed |= _measure(each, chosen, settings, limit, file)
    machines = load(file)
    write(page, machines)
    for each_machine in machines:
        if each_machine["models"] and not each_machine.get("limited"):
            draw(each_machine, page_of(page, each_machine).with_suffix(".svg"))
    sys.exit(failed)


if __name__ == "__main__":
    main(prog_name="python -m bench.performance")
