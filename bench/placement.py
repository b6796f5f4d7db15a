"""Placement by measurement on networks: ``python -m bench.placement NETWORK... --database FILE``.

For each network: `tune`, whose last comparison has the default placement, each compiler alone and the best mixtures as
whole models in turns. The search stops after ``--budget``; a further run goes on with the times in the database.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import tvm

import tvm_byoc_dnnl as byoc
from bench.collage import COLLAGE
from bench.zoo import ZOO, zoo_model
from tvm_byoc_dnnl.testing.models import find_model

#: those of Collage's table
NETWORKS = ("bert_base", "mobilenet_v2", "resnet50", "gpt2_prefill", *COLLAGE)
PAGE = Path(__file__).parents[1] / "docs" / "tuning.md"
_BEGIN, _END = "<!-- placement: begin -->\n", "<!-- placement: end -->\n"


def network(name: str) -> tvm.IRModule:
    """A network of the zoo or of `COLLAGE`, or one of the light ones, with fixed sizes."""
    if name in COLLAGE:
        return byoc.to_relax(COLLAGE[name]())
    if name not in ZOO:
        return byoc.to_relax(find_model(name).read())
    return byoc.to_relax(zoo_model(name).model, shapes=zoo_model(name).shapes or None)


def measured(name: str, compilers: Sequence[str], budget_s: float, database: Path) -> dict[str, Any]:
    """The times of one network in seconds."""
    started = time.perf_counter()
    placement = byoc.tune(network(name), compilers, budget=budget_s, database=database, progress=click.echo)
    seconds = {"default": placement.default_seconds, "tuned": placement.seconds, **placement.alone_seconds}
    known = {way: s for way, s in seconds.items() if s is not None and math.isfinite(s)}
    search_s = time.perf_counter() - started
    return {"network": name, "search_s": search_s, "owners": dict(Counter(placement.values())), "seconds": known}


def gain_of(row: Mapping[str, Any]) -> float:
    """The time of the best compiler alone, divided by that of the placement; 1 where there was one candidate."""
    seconds = row["seconds"]
    alone = [s for way, s in seconds.items() if way not in ("default", "tuned")]
    return min(alone, default=1.0) / seconds.get("tuned", min(alone, default=1.0))


def table_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of a table in Markdown."""
    ways = list(dict.fromkeys(way for row in rows for way in row["seconds"] if way not in ("default", "tuned")))
    shown = ("default", *ways, "tuned")
    lines = [f"| network | {', ms | '.join(shown)}, ms | gain over the best alone | calls of the placement |"]
    lines.append("|---" * (len(shown) + 3) + "|")
    for row in rows:
        times = [f"{1e3 * row['seconds'][w]:.2f}" if w in row["seconds"] else "–" for w in shown]
        owners = ", ".join(f"{who} {count}" for who, count in row["owners"].items())
        lines.append(f"| {row['network']} | {' | '.join(times)} | {gain_of(row):.3f} | {owners} |")
    mean = statistics.geometric_mean(map(gain_of, rows))
    return [*lines, f"| geometric mean |{' |' * len(shown)} {mean:.3f} | |"]


def write_page(rows: Sequence[Mapping[str, Any]]) -> None:
    """Put the table of these rows between its marks in docs/tuning.md."""
    text = PAGE.read_text()
    before, after = text.split(_BEGIN)[0], text.split(_END)[1]
    PAGE.write_text("\n".join([f"{before}{_BEGIN}", *table_of(rows), "", f"{_END}{after}"]))


@click.command(context_settings={"show_default": True})
@click.argument("networks", nargs=-1)
@click.option("--compilers", default="dnnl,openvino,litert", help="In order of priority; TVM is asked in any case.")
@click.option("--budget", default=120.0, help="Seconds of the search for each network.")
@click.option("--database", type=click.Path(path_type=Path), default=Path("build/placement.jsonl"))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Add each network's line to this file.")
@click.option("--docs", is_flag=True, help="Measure nothing: write the lines of --output into docs/tuning.md.")
def main(
    networks: tuple[str, ...], compilers: str, budget: float, database: Path, output: Path | None, docs: bool
) -> None:
    """Tune NETWORKS, and compare with the default placement and with each compiler alone."""
    if docs:
        if output is None:
            raise click.UsageError("--docs needs --output, the file that it reads")
        lines = [json.loads(line) for line in output.read_text().splitlines()]
        write_page([*{row["network"]: row for row in lines}.values()])
        return
    rows = []
    for name in networks or NETWORKS:
        rows.append(measured(name, compilers.split(","), budget, database))
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        click.echo(f"{name}: search {rows[-1]['search_s']:.0f} s")
    click.echo("\n".join(table_of(rows)))


if __name__ == "__main__":
    main(prog_name="python -m bench.placement")
