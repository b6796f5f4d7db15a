"""A web service with several worker processes that share one copy of the packed weights.

    pip install 'tvm-byoc-dnnl[serve]'
    python examples/serve/app.py model.so --workers 2 --port 8000
    curl --data-binary @input.npz http://localhost:8000/predict -o output.npz

The body of a request is what numpy.savez writes: the inputs by name. So is the answer: the outputs by name.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import io
import os
import signal
import socket
import sys
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response

_LARGEST = 1 << 28  # bytes of a request


def application(run: Any) -> Any:
    """The service of one model."""
    import tvm_byoc_dnnl as byoc

    app = FastAPI(title="model")

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        if int(request.headers.get("content-length", _LARGEST + 1)) > _LARGEST:
            raise HTTPException(413, f"a request has at most {_LARGEST} bytes, and says its length")
        try:
            with np.load(io.BytesIO(await request.body()), allow_pickle=False) as arrays:
                inputs = dict(arrays)
        except Exception as error:
            raise HTTPException(400, f"expected the inputs as numpy.savez writes them: {error}") from error
        try:
            outputs = await asyncio.to_thread(lambda: run.named(**inputs))
        except byoc.InputError as error:
            raise HTTPException(422, str(error)) from error
        written = io.BytesIO()
        np.savez(written, **outputs)
        return Response(written.getvalue(), media_type="application/octet-stream")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"pid": os.getpid(), "own_bytes": own_memory(), "inputs": [i.type_text for i in run.inputs]}

    return app


def own_memory() -> int:
    """Bytes of this process that no other one shares."""
    with open("/proc/self/smaps_rollup") as lines:
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def work(run: Any, listening: socket.socket) -> None:
    """Answer requests until SIGTERM."""
    for number in signal.SIGTERM, signal.SIGINT:  # those of the parent
        signal.signal(number, signal.SIG_DFL)
    uvicorn.Server(uvicorn.Config(application(run), log_level="warning")).run(sockets=[listening])


def main() -> None:
    """Load the model, fork the workers, and replace those that die."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a library that export_library has written")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    # Each worker gets its share of the cores; OpenMP reads this once, when the package is imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // arguments.workers)))
    import tvm_byoc_dnnl as byoc

    run = byoc.load(arguments.model)
    if all(isinstance(d, int) for tensor in run.inputs for d in tensor.shape):
        run.warm_up({})  # packs the weights here, once, before there are workers
    gc.freeze()  # else the first collection of a worker would write to, and so copy, all of Python's objects
    listening = socket.create_server(("", arguments.port), backlog=512)
    workers: set[int] = set()

    def stop(*_: Any) -> None:
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        sys.exit(0)

    while True:
        while len(workers) < arguments.workers:
            pid = os.fork()
            if pid == 0:
                work(run, listening)
                os._exit(0)
            workers.add(pid)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        workers.discard(os.wait()[0])


if __name__ == "__main__":
    main()
