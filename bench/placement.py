"""Placement by measurement on networks: ``python -m bench.placement NETWORK... --database FILE``.

For each network: `tune`, then the default placement, the one that was found, and each compiler alone, timed as whole
models in turns. The search stops after ``--budget``; a further run goes on with the times in the database.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import onnx

import tvm_byoc_dnnl as byoc
from bench.zoo import ZOO, zoo_model
from tvm_byoc_dnnl.testing.bench import find_model
from tvm_byoc_dnnl.tuning.costs import callable_of
from tvm_byoc_dnnl.tuning.measure import race
from tvm_byoc_dnnl.tuning.plans import Planner, prepared

_EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "openvino_backend" / "src"
_FAR = 3.0  # what takes so many times longer than the default placement is timed once, and not in turns
NETWORKS = ("squeezenet", "densenet121", "resnet50", "inception_v1", "resnet18", "mobilenet_v2", "bert_base")


def _with_openvino() -> None:
    """Register the example, whether it is installed or not."""
    if "openvino" not in byoc.compilers():
        sys.path.insert(0, str(_EXAMPLE))
        importlib.import_module("tvm_byoc_openvino").register()


def _model(name: str) -> onnx.ModelProto:
    return zoo_model(name).model if name in ZOO else find_model(name).read()


def measured(name: str, compilers: Sequence[str], budget_s: float, rounds: int, database: Path) -> dict[str, Any]:
    """The times of one network in seconds."""
    mod = byoc.to_relax(_model(name))
    started = time.perf_counter()
    placement = byoc.tune(mod, compilers, budget_s=budget_s, database=database, progress=click.echo)
    tuned_s = time.perf_counter() - started
    names = [c for c in compilers if c != "tvm"]
    planner = Planner(prepared(mod, names), names)
    default = planner.default()
    placements = {"default": default, "tuned": dict(placement), **{c: planner.in_order([c]) for c in names}}
    models = {frozenset(p.items()): None if p is default else p for p in placements.values()}
    calls = {key: callable_of(planner.partitioned(each), "llvm") for key, each in models.items()}
    once = {key: race([call], 1)[0].seconds for key, call in calls.items()}
    near = [key for key in calls if once[key] <= _FAR * once[frozenset(default.items())]]
    times = once | dict(zip(near, (t.seconds for t in race([calls[key] for key in near], rounds)), strict=True))
    seconds = {way: times[frozenset(p.items())] for way, p in placements.items()}
    same = placement == default
    owners = Counter(placement.values())
    return {"network": name, "search_s": tuned_s, "owners": dict(owners), "same": same, "seconds": seconds}


@click.command(context_settings={"show_default": True})
@click.argument("networks", nargs=-1)
@click.option("--compilers", default="dnnl,openvino,ccompiler", help="In order of priority; TVM is asked in any case.")
@click.option("--budget", default=120.0, help="Seconds of the search for each network.")
@click.option("--rounds", default=15, help="Turns of the last comparison.")
@click.option("--database", type=click.Path(path_type=Path), default=Path("build/placement.jsonl"))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Add each network's line to this file.")
def main(
    networks: tuple[str, ...], compilers: str, budget: float, rounds: int, database: Path, json_file: Path | None
) -> None:
    """Tune NETWORKS, and compare with the default placement and with each compiler alone."""
    _with_openvino()
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
