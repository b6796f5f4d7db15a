"""The server and examples/ray, started as a user starts them (``make test-examples``; else skipped)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.tuning.database import _FORMAT, Database, setting_of

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

    def classify(*more: str) -> subprocess.CompletedProcess[str]:
        made = [*map(str, command), *more]
        return subprocess.run(made, cwd=tmp_path, text=True, capture_output=True, timeout=300)

    def rows() -> dict[str, int]:
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(tmp_path / "result").to_pylist()
        assert all(0.5 < r["score"] <= 1 for r in found) and len({r["path"] for r in found}) == len(found)
        return {Path(r["path"]).stem: r["class"] for r in found}

    done = classify()
    assert done.returncode == 0, done.stderr[-3000:]
    assert rows() == {str(i): i % 3 for i in range(9)}
    refused = classify()
    assert refused.returncode == 1 and "expected --resume or --overwrite" in refused.stderr
    assert "every image has a result" in classify("--resume").stdout
    pixels = np.zeros((40, 50, 3), "uint8")
    pixels[..., 1] = 255
    Image.fromarray(pixels).save(tmp_path / "images" / "9.png")
    assert classify("--resume").returncode == 0
    assert rows() == {**{str(i): i % 3 for i in range(9)}, "9": 1}


# ---------------------------------------------------------------- what needs no Ray
def nodes() -> Any:
    spec = importlib.util.spec_from_file_location("nodes", EXAMPLES / "ray" / "nodes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_differences_of_nodes_are_named() -> None:
    same = {"python": "3.12.1", "numpy": "2.1"}
    find = nodes().differences
    assert find({"a": same, "b": same}) == []
    assert find({"a": same, "b": {**same, "numpy": "2.0"}, "c": same}) == ["numpy: 2.1 on a, c; 2.0 on b"]
    assert find({"a": same, "b": {"python": "3.12.1"}}) == ["numpy: 2.1 on a; none on b"]
    assert nodes().software()["apache-tvm"].startswith("0.2")


def test_what_is_left() -> None:
    assert nodes().left(["b", "a", "c"], ["c", "x"]) == ["a", "b"]


def test_databases_of_several_cpus_are_one(tmp_path: Path) -> None:
    """`Database` reads the times of each, and those that were measured last."""
    files = []
    for index, cpu in enumerate(["zen", "lake", "zen"]):
        setting = replace(setting_of("dnnl"), cpu=cpu)
        time = {"seconds": 1.0 + index, "spread": 0.0, "blocks": 3, "quiet": True}
        line = {"format": _FORMAT, "compiler": "dnnl", "workload": "w", "setting": asdict(setting), "time": time}
        files.append(json.dumps(line).encode() + b"\n" + (b'{"format": 1, "cut' if index == 0 else b""))
    path = tmp_path / "times.jsonl"
    path.write_bytes(nodes().merged(files))
    times = {key[2].cpu: timing.seconds for key, timing in Database(path)._times.items()}
    assert times == {"zen": 3.0, "lake": 2.0}


def test_manifests_name_options_and_addresses_that_exist() -> None:
    from tvm_byoc_dnnl import cli
    from tvm_byoc_dnnl.serve import Metrics
    from tvm_byoc_dnnl.serve.models import Models
    from tvm_byoc_dnnl.serve.rest import Rest

    text = "".join((EXAMPLES / "serve" / name).read_text() for name in ("Dockerfile", "kubernetes.yaml"))
    options = set(re.findall(r"\"(--[a-z-]+)\"", text))
    assert options and options <= {name for param in cli.cli.commands["serve"].params for name in param.opts}
    addresses = set(re.findall(r"path: (/[\w/]+)", text))
    assert len(addresses) == 3 and addresses <= {r.path for r in Rest(Models([], Metrics())).routes()} | {"/metrics"}
