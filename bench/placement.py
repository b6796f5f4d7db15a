"""Placement by measurement on networks: ``python -m bench.placement NETWORK... --database FILE``.

For each network: `tune`, then the default placement, the one that was found, and each compiler alone, timed as whole
models in turns. The search stops after ``--budget``; a further run goes on with the times in the database.
"""

from __future__ import annotations

import json
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
from tvm_byoc_dnnl.testing.bench import find_model
from tvm_byoc_dnnl.tuning.database import choices_of
from tvm_byoc_dnnl.tuning.plans import Planner, prepared
from tvm_byoc_dnnl.tuning.tune import race_apart, seconds_of

_FAR = 3.0  # what takes so many times longer than the default placement is timed once, and not in turns
#: those of Collage's table
NETWORKS = ("bert_base", "mobilenet_v2", "resnet50", "gpt2_prefill", *COLLAGE)


def network(name: str) -> tvm.IRModule:
    """A network of the zoo or of `COLLAGE`, or one of the light ones, with fixed sizes."""
    if name in COLLAGE:
        return byoc.to_relax(COLLAGE[name]())
    if name not in ZOO:
        return byoc.to_relax(find_model(name).read())
    return byoc.to_relax(zoo_model(name).model, shapes=zoo_model(name).shapes or None)


def measured(name: str, compilers: Sequence[str], budget_s: float, rounds: int, database: Path) -> dict[str, Any]:
    """The times of one network in seconds."""
    mod = network(name)
    started = time.perf_counter()
    placement = byoc.tune(mod, compilers, budget=budget_s, database=database, progress=click.echo)
    tuned_s = time.perf_counter() - started
    names = [c for c in compilers if c != "tvm"]
    planner = Planner(prepared(mod, names), names)
    default = planner.default()
    ways: dict[str, Mapping[str, str]] = {"default": default, "tuned": placement}
    ways |= {name: planner.in_order([name]) for name in names}
    keys = {way: (frozenset(p.items()), choices_of(p) is not None) for way, p in ways.items()}
    models = {
        key: (planner.partitioned(None if ways[way] is default else ways[way]), choices_of(ways[way]))
        for way, key in keys.items()
    }
    once = dict(zip(models, map(seconds_of, race_apart([*models.values()], "llvm", 1)), strict=True))
    near = [key for key in models if once[key] <= _FAR * once[keys["default"]]]
    finals = race_apart([models[key] for key in near], "llvm", rounds)
    times = once | dict(zip(near, map(seconds_of, finals), strict=True))
    seconds = {way: times[key] for way, key in keys.items()}
    same = keys["tuned"] == keys["default"]
    owners = Counter(placement.values())
    chooses = placement.choices is not None
    row = {"network": name, "search_s": tuned_s, "owners": dict(owners), "same": same, "chooses": chooses}
    return {**row, "seconds": seconds}


@click.command(context_settings={"show_default": True})
@click.argument("networks", nargs=-1)
@click.option("--compilers", default="dnnl,openvino,litert", help="In order of priority; TVM is asked in any case.")
@click.option("--budget", default=120.0, help="Seconds of the search for each network.")
@click.option("--rounds", default=15, help="Turns of the last comparison.")
@click.option("--database", type=click.Path(path_type=Path), default=Path("build/placement.jsonl"))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Add each network's line to this file.")
def main(
    networks: tuple[str, ...], compilers: str, budget: float, rounds: int, database: Path, json_file: Path | None
) -> None:
    """Tune NETWORKS, and compare with the default placement and with each compiler alone."""
    gains = []
    for name in networks or NETWORKS:
        row = measured(name, compilers.split(","), budget, rounds, database)
        seconds = row["seconds"]
        single = min(s for way, s in seconds.items() if way not in ("default", "tuned"))
        gains.append((seconds["default"] / seconds["tuned"], single / seconds["tuned"]))
        shown = ", ".join(f"{way} {1e3 * s:.2f} ms" for way, s in seconds.items())
        click.echo(f"{name}: {shown}; {row['owners']}; search {row['search_s']:.0f} s")
        click.echo(
            f"{name}: {gains[-1][0]:.3f} of the default placement, {gains[-1][1]:.3f} of the best single compiler"
        )
        if json_file is not None:
            with json_file.open("a") as file:
                file.write(json.dumps(row) + "\n")
    for what, values in zip(
        ("the default placement", "the best single compiler"), zip(*gains, strict=True), strict=True
    ):
        click.echo(f"geometric mean, against {what}: {statistics.geometric_mean(values):.3f}")


if __name__ == "__main__":
    main(prog_name="python -m bench.placement")
