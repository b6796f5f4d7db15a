"""profile, verify, tune and serve: how the time is spent, whether the numbers are right, who should get which call, and
answers to requests over the network.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ..core.errors import InputError
from ..core.files import write_text
from ..core.machine import progress
from ..pipeline.executable import is_library
from ..runtime.comparison import as_tolerances
from .build import read_arrays
from .common import (
    ALL_THREADS,
    AS_JSON,
    EXISTING_FILE,
    NEW_FILE,
    NEW_FOLDER,
    PLACE,
    SHAPE,
    THREADS,
    Build,
    check_outputs,
    model_options,
    precision_options,
    say,
)

_INPUTS = click.option(
    "--inputs", type=EXISTING_FILE, help="Arrays by name, as numpy.savez writes them.  [default: random]"
)


def _inputs(path: Path | None) -> dict[str, Any] | None:
    return None if path is None else read_arrays(path)


@click.command(short_help="Show how a model's time is spent, primitive by primitive.")
@model_options
@PLACE
@precision_options
@_INPUTS
@click.option(
    "--repeat", type=click.IntRange(1), default=20, show_default=True, help="Counted calls; medians are shown."
)
@THREADS
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Rows of the table.")
@AS_JSON
@click.option("--html", "html_file", type=NEW_FILE, help="Write a page: timeline, roofline, the graph by time.")
@click.option("--trace", type=NEW_FILE, help="Write a trace for chrome://tracing or Perfetto.")
def profile(
    build: Build,
    inputs: Path | None,
    repeat: int,
    threads: int | None,
    top: int,
    as_json: bool,
    html_file: Path | None,
    trace: Path | None,
) -> None:
    """Show how the time of one call of MODEL is spent: primitives, layouts, TVM's calls, overhead.

    A model is compiled first; a library that was compiled before (model.so) is measured as it is.

    \b
      tvm-byoc profile model.onnx
      tvm-byoc profile model.so
      tvm-byoc profile model.onnx --html times.html
      tvm-byoc profile model.onnx --trace trace.json --top 5
    """
    from ..api import compile
    from ..report.profile import profile as measure
    from ..runtime import load

    check_outputs(trace, html_file)
    arrays, model = _inputs(inputs), build.model
    with progress(f"preparing {model.name}") as show:
        if is_library(model.path):
            ex = load(model.path, threads=threads)
        else:
            ex = compile(model.load(), build.compiler, **build.settings, threads=threads)
        show("measuring")
        report = measure(ex, arrays, repeat=repeat, roof=html_file is not None)
        if html_file is not None:
            show("drawing")
            if report.account is not None:
                report.account.model = model.name
            report.to_html(html_file)
    if html_file is not None:
        say(f"wrote {html_file}")
    if trace is not None:
        write_text(trace, report.to_chrome_trace())
        say(f"wrote {trace}")
    click.echo(report.to_json() if as_json else report.to_text(top))


def _tolerance(given: Sequence[str]) -> float | dict[str, float] | None:
    """One number for all dtypes, or one for each that is named."""
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        try:
            return float(given[0])
        except ValueError:
            pass
    return as_tolerances(dict(value.partition("=")[::2] for value in given))


@click.command(short_help="Compare every region with TVM, and find the call that is wrong.")
@model_options
@PLACE
@precision_options
@_INPUTS
@click.option("--tolerance", "tolerances", multiple=True, metavar="[DTYPE=]NUMBER",
              help="Largest gap: a share of the largest value, of all or of DTYPE, or steps as in 'int8=1 step'. "
              "May be repeated.  [default: by dtype]")  # fmt: skip
@click.option("--against", default="tvm", show_default=True, metavar="ENGINE",
              help="Compare with tvm, region by region, or the whole model with onnxruntime; a compiled library with "
              "ONNX Runtime's outputs of this ONNX file.")  # fmt: skip
@ALL_THREADS
@AS_JSON
def verify(build: Build, inputs: Path | None, tolerances: Sequence[str], against: str, as_json: bool) -> int:
    """Run every region of MODEL by its compiler and by TVM alone on the same inputs; exit status 1 where they differ.

    \b
      tvm-byoc verify model.onnx
      tvm-byoc verify model.onnx --inputs in.npz --tolerance 1e-4
      tvm-byoc verify model.onnx --compiler my_npu --tolerance 'int8=1 step'
      tvm-byoc verify model.onnx --against onnxruntime
      tvm-byoc verify model.so --against model.onnx
    """
    from ..report.verify import verify as compare

    arrays, model = _inputs(inputs), build.model
    with progress(f"comparing {model.name} with {against}; large models take a while"):
        how = {**build.settings, "tolerance": _tolerance(tolerances), "against": against}
        report = compare(model.load(), arrays, compiler=build.compiler, **how)
    click.echo(report.to_json() if as_json else report.to_text())
    return 0 if report.ok else 1


def _measure_machine(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value:
        return
    from ..tuning.plans import measure_machine

    with progress("measuring this machine") as show:
        for found in measure_machine(show):
            click.echo(found)
    context.exit()


@click.command(short_help="Find by measurement which compiler should get which call.")
@model_options
@precision_options
@click.option("--database", type=NEW_FILE, required=True, help="The file of times; made, or extended.")
@click.option(
    "--budget", type=click.FloatRange(min=0, min_open=True), default=120.0, show_default=True, metavar="SECONDS",
    help="Time for the search.",
)  # fmt: skip
@click.option(
    "--machine", is_flag=True, is_eager=True, expose_value=False, callback=_measure_machine,
    help="Measure this machine instead, some minutes without other work, for the choices of all models to come.",
)  # fmt: skip
@ALL_THREADS
@AS_JSON
def tune(build: Build, database: Path, budget: float, as_json: bool) -> None:
    """Find by measurement which of the compilers, or TVM, should get which call of MODEL on this machine.

    Every time that is measured is kept in the database, also when you stop the search with Ctrl-C. With --machine
    alone, the description of the machine is measured by which implementations are chosen without a search.

    \b
      tvm-byoc tune model.onnx --compiler acme,other --database times.jsonl
      tvm-byoc compile model.onnx --compiler acme,other --database times.jsonl -o model.so
    """
    from ..tuning import tune as search

    if build.settings["policy"] is not None:
        raise InputError("tune decides for itself what is worth a region; leave out --exclude, --force, --max-regions")
    check_outputs(database)
    with progress(f"partitioning {build.model.name}") as show:
        settings = {name: value for name, value in build.settings.items() if name != "policy"}
        found = search(build.model.load(), build.compiler, budget=budget, database=database, progress=show, **settings)
    names = ("seconds", "default_seconds", "alone_seconds", "tried", "measured")
    numbers = {n: getattr(found, n) for n in names}
    say(f"{found.tried} placements compared, {found.measured} regions measured; kept in {database}")
    if as_json:
        click.echo(json.dumps({"placement": dict(found), **numbers}, indent=1))
        return
    for name, calls in sorted(Counter(found.values()).items(), key=lambda item: -item[1]):
        click.echo(f"{name:12s} {calls} calls")
    if found.seconds is None:
        click.echo("the default placement is the best that was found")
    elif found.default_seconds is None:
        click.echo(f"{1e3 * found.seconds:.3f} ms; with the default placement the model hung or crashed")
    else:
        click.echo(f"{1e3 * found.seconds:.3f} ms, by default {1e3 * found.default_seconds:.3f} ms")
    if found.choices is not None:
        click.echo("inside of the libraries: the implementations that were measured as the fastest")


# ---- serve ------------------------------------------------------------------------------------------

_NEEDED = ("starlette", "uvicorn", "prometheus_client")
_SECONDS = click.FloatRange(0, min_open=True)


@click.command(short_help="Serve models over HTTP and gRPC: the Open Inference Protocol.")
@click.argument("models", nargs=-1, required=True, metavar="MODEL…")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 is all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 is a free one.")
@click.option("--grpc-port", type=click.IntRange(0, 65535), help="Answer gRPC, too, at this port; 0 is a free one.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True,
              help="Processes, which share the packed weights.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1),
              help="Threads of each call; each worker makes as many calls at once as its cores allow.  "
              "[default: all cores of a worker]")  # fmt: skip
@click.option("--max-batch", "most_rows", type=click.IntRange(1), default=1, show_default=True,
              help="Join requests into calls of so many rows, where the first dim of a model is open.")  # fmt: skip
@click.option("--max-delay", type=click.FloatRange(0), default=0.0, show_default=True,
              help="Milliseconds that a request waits for others to join it.")  # fmt: skip
@click.option("--queue", "places", type=click.IntRange(1), default=64, show_default=True,
              help="Requests of a model that may wait in each worker; further ones get 429.")  # fmt: skip
@click.option("--timeout", type=_SECONDS, default=30.0, show_default=True, help="Seconds until a request gets 504.")
@click.option("--max-request", "largest", type=click.IntRange(1), default=1 << 28, show_default=True,
              help="Bytes that a request may have.")  # fmt: skip
@click.option("--reload", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Seconds between two looks at the files, to load new ones; 0: only at SIGHUP.")  # fmt: skip
@SHAPE
@click.option("--cache-dir", type=NEW_FOLDER, help="Folder of compiled models, for those that are not compiled yet.")
def serve(
    models: Sequence[str], threads: int | None, workers: int, grpc_port: int | None, max_delay: float, **others: Any
) -> int:
    """Serve each MODEL under its file's name; NAME=PATH gives it another.

    A MODEL is a compiled library, an .onnx file, or a language model: a folder or a .gguf file, as for generate.

    \b
      tvm-byoc serve resnet50.so
      tvm-byoc serve images=resnet50.so texts=bert.so --workers 2 --threads 1 --max-batch 16
      curl localhost:8000/v2/models/resnet50

    It speaks the Open Inference Protocol (as KServe and Triton do), with JSON or binary tensors; for texts, OpenAI's
    /v1/completions and /v1/chat/completions; /metrics is for Prometheus. --shape prepares a size before the first
    request. It needs: pip install 'tvm-byoc-dnnl[serve]'.
    """
    needed = (*_NEEDED, *(("grpc",) if grpc_port is not None else ()))
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise InputError(f"serve needs {', '.join(missing)}: pip install 'tvm-byoc-dnnl[serve]'")
    cores = max(1, len(os.sched_getaffinity(0)) // workers)
    threads = min(threads or cores, cores)
    os.environ.setdefault("OMP_NUM_THREADS", str(cores))  # read once, when OpenMP is loaded
    from ..serve.models import Settings, Source
    from ..serve.workers import Options, Supervisor

    of_server = {name: others.pop(name) for name in ("host", "port", "largest", "reload")}
    settings = Settings(threads=threads, calls=cores // threads, delay=max_delay / 1e3, **others)
    options = Options(workers=workers, grpc_port=grpc_port, settings=settings, **of_server)
    return Supervisor([Source.parse(text) for text in models], options, say).run()
