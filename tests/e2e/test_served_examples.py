"""examples/serve and examples/ray, started as a user starts them (``make test-examples``; else skipped)."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WEIGHTS = 4096 * 8192 * 4  # bytes


def need(*modules: str) -> None:
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing and not os.environ.get("REQUIRE_EXAMPLES"):
        pytest.skip(f"needs {', '.join(missing)}: make test-examples installs them")
    assert not missing


def export(path: Path, shape: tuple, build) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(build(x))
        builder.emit_func_output(out)
    byoc.compile(builder.get()).export_library(str(path))


def ask(port: int, path: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=30) as answer:
        return answer.read()


def savez(**arrays: np.ndarray) -> bytes:
    written = io.BytesIO()
    np.savez(written, **arrays)
    return written.getvalue()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The port of a service with two workers, and what its model multiplies by."""
    need("fastapi", "uvicorn")
    tmp_path = tmp_path_factory.mktemp("service")
    weight = np.random.default_rng(0).standard_normal((4096, 8192), dtype="float32")
    export(tmp_path / "model.so", (16, 4096), lambda x: relax.op.matmul(x, relax.const(weight)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = str(EXAMPLES / "serve" / "app.py")
    process = subprocess.Popen([sys.executable, program, str(tmp_path / "model.so"), "--port", str(port)])
    end = time.monotonic() + 60
    while True:
        try:
            ask(port, "/health")
            break
        except OSError:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.2)
    yield port, weight
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


def workers(port: int) -> dict[int, int]:
    """Memory of their own, by process."""
    answers = [json.loads(ask(port, "/health")) for _ in range(60)]
    return {a["pid"]: a["own_bytes"] for a in answers}


def test_workers_answer_and_share_the_weights(service) -> None:
    port, weight = service
    x = np.random.default_rng(1).standard_normal((16, 4096), dtype="float32")
    for _ in range(12):
        with np.load(io.BytesIO(ask(port, "/predict", savez(x=x)))) as outputs:
            (y,) = outputs.values()
        np.testing.assert_allclose(y, x @ weight, rtol=1e-3, atol=1e-2)
    own = workers(port)
    print({pid: f"{size / 2**20:.0f} MB of its own" for pid, size in own.items()}, f"weights {WEIGHTS / 2**20:.0f} MB")
    assert len(own) == 2
    assert max(own.values()) < WEIGHTS / 2


@pytest.mark.parametrize(("body", "status"), [(b"no arrays", 400), (savez(x=np.zeros((1, 1), "float32")), 422)])
def test_a_bad_request_is_refused_with_a_reason(service, body: bytes, status: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(service[0], "/predict", body)
    assert refused.value.code == status
    assert json.loads(refused.value.read())["detail"]


def test_a_worker_that_dies_is_replaced(service) -> None:
    port, _ = service
    first = next(iter(workers(port)))
    os.kill(first, signal.SIGKILL)
    time.sleep(1)
    now = workers(port)
    assert first not in now and len(now) == 2


@pytest.mark.parametrize("batch", [4, "open"])
def test_images_are_classified_with_ray(tmp_path: Path, batch) -> None:
    """Nine images of one colour each; the model says which colour is the brightest."""
    need("ray", "PIL")
    from PIL import Image
    from tvm import tirx

    shape = (tirx.Var("N", "int64") if batch == "open" else batch, 3, 32, 32)
    export(tmp_path / "model.so", shape, lambda x: relax.op.mean(x, axis=[2, 3]))
    (tmp_path / "images").mkdir()
    for i in range(9):
        pixels = np.zeros((40, 50, 3), "uint8")
        pixels[..., i % 3] = 255
        Image.fromarray(pixels).save(tmp_path / "images" / f"{i}.png")
    command = [sys.executable, EXAMPLES / "ray" / "classify.py", "model.so", str(tmp_path / "images"), "result"]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(tmp_path / "result").to_pylist()
    assert {Path(r["path"]).stem: r["class"] for r in rows} == {str(i): i % 3 for i in range(9)}
    assert all(0.5 < r["score"] <= 1 for r in rows)
