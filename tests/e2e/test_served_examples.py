"""The server and examples/ray, started as a user starts them (``make test-examples``; else skipped)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc

from .serving import Service, ask, infer_body

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WEIGHTS = 4096 * 8192 * 4  # bytes


def need(*modules: str) -> None:
    if not os.environ.get("REQUIRE_EXAMPLES"):
        pytest.skip("make test-examples runs it")
    assert not [m for m in modules if importlib.util.find_spec(m) is None]


def export(path: Path, shape: tuple, build) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(build(x))
        builder.emit_func_output(out)
    byoc.compile(builder.get()).export_library(str(path))


def own_memory(process: int) -> int:
    """Bytes of a process that no other one shares."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def test_workers_answer_and_share_the_weights(tmp_path: Path) -> None:
    need("starlette", "uvicorn", "prometheus_client")
    weight = np.random.default_rng(0).standard_normal((4096, 8192), dtype="float32")
    export(tmp_path / "model.so", (16, 4096), lambda x: relax.op.matmul(x, relax.const(weight)))
    service = Service(tmp_path / "model.so", "--workers", "2")
    x = np.random.default_rng(1).standard_normal((16, 4096), dtype="float32")
    for _ in range(12):
        status, answer = ask(service.address, "/v2/models/model/infer", infer_body(x))
        assert status == 200
        got = np.array(answer["outputs"][0]["data"], "float32").reshape(16, 8192)
        np.testing.assert_allclose(got, x @ weight, rtol=1e-3, atol=1e-2)
    own = {process: own_memory(process) for process in service.workers()}
    print({pid: f"{size / 2**20:.0f} MB of its own" for pid, size in own.items()}, f"weights {WEIGHTS / 2**20:.0f} MB")
    assert service.end() == 0
    assert len(own) == 2
    assert max(own.values()) < WEIGHTS / 2


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
