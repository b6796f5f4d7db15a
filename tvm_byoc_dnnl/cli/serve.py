"""serve: answer requests over the network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from ..core.errors import InputError
from .common import NEW_FOLDER, SHAPE, Shapes, say

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
@click.option("--max-batch", type=click.IntRange(1), default=1, show_default=True,
              help="Join requests into calls of so many rows, where the first dim of a model is open.")  # fmt: skip
@click.option("--max-delay", type=click.FloatRange(0), default=0.0, show_default=True,
              help="Milliseconds that a request waits for others to join it.")  # fmt: skip
@click.option("--queue", type=click.IntRange(1), default=64, show_default=True,
              help="Requests of a model that may wait in each worker; further ones get 429.")  # fmt: skip
@click.option("--timeout", type=_SECONDS, default=30.0, show_default=True, help="Seconds until a request gets 504.")
@click.option("--max-request", type=click.IntRange(1), default=1 << 28, show_default=True,
              help="Bytes that a request may have.")  # fmt: skip
@click.option("--reload", type=click.FloatRange(0), default=5.0, show_default=True,
              help="Seconds between two looks at the files, to load new ones; 0: only at SIGHUP.")  # fmt: skip
@SHAPE
@click.option("--cache-dir", type=NEW_FOLDER, help="Folder of compiled models, for those that are not compiled yet.")
def serve(
    models: Sequence[str],
    host: str,
    port: int,
    grpc_port: int | None,
    workers: int,
    threads: int | None,
    max_batch: int,
    max_delay: float,
    queue: int,
    timeout: float,
    max_request: int,
    reload: float,
    shapes: Shapes,
    cache_dir: Path | None,
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

    settings = Settings(
        threads=threads,
        calls=cores // threads,
        most_rows=max_batch,
        delay=max_delay / 1e3,
        places=queue,
        timeout=timeout,
        shapes=shapes,
        cache_dir=cache_dir,
    )
    options = Options(host, port, grpc_port, workers, max_request, reload, settings)
    return Supervisor([Source.parse(text) for text in models], options, say).run()
