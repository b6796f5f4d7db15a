"""Load time and memory beside other engines: ``python -m bench.load [MODEL ...] [--engines ...] [--json]``.

Each engine loads the file that it is deployed with (a library, ONNX, OpenVINO's own form) in a process of its own,
which has imported everything before. Files are in the page cache: what is measured is the engine, not the disk.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from bench.load_worker import DEPLOYED
from examples.open_models import Net, encoder
from tvm_byoc_dnnl.frontends.onnx.inputs import fix_shapes
from tvm_byoc_dnnl.testing.bench.engines import ENGINES
from tvm_byoc_dnnl.testing.models import random_inputs

_MB = 1e6
_WITHIN = 1e-3  # of the largest value


def _bert_base() -> onnx.ModelProto:
    return fix_shapes(encoder(), dict.fromkeys(("input_ids", "attention_mask"), (1, 128)))


def _dense(width: int = 4096, layers: int = 16) -> onnx.ModelProto:
    """1 GB of square matrices: nothing but weights."""
    net, x = Net(0), "x"
    for _ in range(layers):
        x = net("Relu", net.dense(x, width, width))
    return net.model({"x": (onnx.TensorProto.FLOAT, (8, width))}, {"y": (x, (8, width))})


#: models that are nearly all weights
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {"bert_base": _bert_base, "dense_1gb": _dense}


def _ask(engine: str, threads: int, *arguments: str) -> dict[str, Any]:
    counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS"), str(threads))
    command = [sys.executable, "-m", "bench.load_worker", engine, str(threads), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | counts)
    if ran.returncode != 0:
        raise click.ClickException(f"{engine} failed to {arguments[0]}: {ran.stderr.strip().splitlines()[-1:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def measure(model: str, engines: list[str], threads: int, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """One record per engine: medians of times, the largest of memory."""
    proto = MODELS[model]()
    weights = sum(
        int(np.prod(w.dims)) * (4 if w.data_type == onnx.TensorProto.FLOAT else 8) for w in proto.graph.initializer
    )
    source = folder / f"{model}.onnx"
    onnx.save(proto, source)
    np.savez(folder / "inputs.npz", *random_inputs(proto, 1).values())
    del proto
    records, reference = [], None
    for engine in engines:
        path = source.with_suffix(DEPLOYED[engine])
        record = {"model": model, "engine": engine, "weights_bytes": weights, "threads": threads}
        record |= _ask(engine, threads, "build", str(source), str(path)) if path != source else {}
        output = folder / "output.npy"
        runs = [
            _ask(engine, threads, "load", str(path), str(folder / "inputs.npz"), str(output)) for _ in range(rounds)
        ]
        result = np.load(output)
        reference = result if reference is None else reference
        error = np.abs(result - reference).max() / np.abs(reference).max()
        if not error < _WITHIN:
            raise click.ClickException(f"{model}: {engine} differs from {engines[0]} by {error:.1e}")
        for field in runs[0]:
            values = [run[field] for run in runs]
            record[field] = _merged(field, values)
        records.append(record)
        if path != source:
            path.unlink()
    return records


def _merged(field: str, values: list[Any]) -> Any:
    if field.endswith("_s"):
        return statistics.median(values)
    return max(values) if field.endswith("_bytes") else values[0]


def to_table(records: list[dict[str, Any]]) -> Table:
    """As printed."""
    table = Table(caption="÷ weights: growth since the imports, divided by the bytes of the weights")
    headings = ("model", "engine", "load s", "first run s", "peak MB", "after MB", "peak ÷ weights", "after ÷ weights")
    for heading in (*headings, "build s", "build MB"):
        table.add_column(heading, justify="left" if heading in headings[:2] else "right")
    for r in records:
        grown = [(r[field] - r["imports_bytes"]) / r["weights_bytes"] for field in ("peak_bytes", "after_run_bytes")]
        built = [f"{r['build_s']:.2f}", f"{r['build_peak_bytes'] / _MB:.0f}"] if "build_s" in r else ["", ""]
        table.add_row(
            f"{r['model']} ({r['weights_bytes'] / _MB:.0f} MB)",
            f"{ENGINES[r['engine']].label} {r['version']}",
            *(f"{r[field]:.2f}" for field in ("load_s", "first_run_s")),
            *(f"{r[field] / _MB:.0f}" for field in ("peak_bytes", "after_run_bytes")),
            *(f"{g:.2f}" for g in grown),
            *built,
        )
    return table


@click.command(context_settings={"show_default": True})
@click.argument("models", nargs=-1, type=click.Choice(list(MODELS)))
@click.option("--engines", default=",".join(DEPLOYED), help="Those that are not installed are left out.")
@click.option("--threads", default=2, help="Threads of each engine.")
@click.option("--rounds", default=3, help="Processes per engine.")
@click.option("--json", "as_json", is_flag=True, help="Print the records instead of the table.")
def main(models: tuple[str, ...], engines: str, threads: int, rounds: int, as_json: bool) -> None:
    """Measure how long MODELS take to load and to run once, and in how much memory; without any, all of them."""
    chosen = engines.split(",")
    unknown = [e for e in chosen if e not in DEPLOYED]
    if unknown:
        raise click.UsageError(f"unknown engines {', '.join(unknown)}; expected some of {', '.join(DEPLOYED)}")
    chosen = [e for e in chosen if importlib.util.find_spec(ENGINES[e].requires)]
    records: list[dict[str, Any]] = []
    for name in models or MODELS:
        print(f"{name}: {', '.join(chosen)}", file=sys.stderr)
        with TemporaryDirectory() as folder:
            records += measure(name, chosen, threads, rounds, Path(folder))
    if as_json:
        print(json.dumps(records, indent=1))
    else:
        Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(to_table(records))


if __name__ == "__main__":
    main(prog_name="python -m bench.load")
