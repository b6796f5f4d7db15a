"""What dnnl chooses from for one operation: measured, kept in the database, and obeyed by `compile`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tvm_byoc_dnnl.tuning.database import Database, Timing
from tvm_byoc_dnnl.tuning.plans import measure_candidates
from tvm_byoc_dnnl.vendors.namespaces import namespace
from tvm_byoc_dnnl.vendors.portable import PortableCodegen

pytestmark = pytest.mark.native

X = np.random.default_rng(0).standard_normal((1, 64, 14, 14)).astype("float32")


def network() -> tvm.IRModule:
    """Two equal convolutions, with ReLU, and a third one of another size."""
    builder = tvm.relax.BlockBuilder()
    rng = np.random.default_rng(1)
    x = tvm.relax.Var("x", tvm.relax.TensorType(X.shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: Any = x
            for channels in (64, 64, 32):
                weights = rng.standard_normal((channels, 64, 3, 3)).astype("float32") / 24
                value = builder.emit(tvm.relax.op.nn.conv2d(value, tvm.relax.const(weights), padding=1))
                value = builder.emit(tvm.relax.op.nn.relu(value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("times") / "times.jsonl"
    measured(path)
    return path


def measured(path: Path) -> int:
    """What `tune` does at its end."""
    lines: list[str] = []
    return measure_candidates(byoc.partition(network(), "dnnl"), Database(path), math.inf, lines.append)


def rewritten(path: Path, to: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """The file with its entries of candidates changed."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    to.write_text("".join(json.dumps(change(e) if "candidates" in e else e) + "\n" for e in entries))
    return to


def implementations(ex: Any) -> list[str]:
    return [s.implementation for s in byoc.profile(ex, repeat=1, warmup=0).steps if s.kind == "convolution"]


def preferring(wanted: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Winograd's algorithm is the fastest by these times, or the slowest."""

    def change(entry: dict[str, Any]) -> dict[str, Any]:
        names = entry["candidates"]
        times = {n: [1e-6 if n.startswith("winograd") == wanted else 1e-3, model] for n, (_, model) in names.items()}
        return {**entry, "candidates": times}

    return change


def test_each_workload_is_measured_once_and_its_candidates_have_times(tuned):
    entries = [e for line in tuned.read_text().splitlines() if "candidates" in (e := json.loads(line))]
    assert [e["workload"].split(" ")[0] for e in entries] == ["convolution"] * 2
    assert len({e["workload"] for e in entries}) == 2
    for entry in entries:
        assert len(entry["candidates"]) >= 2
        assert all(0 < seconds < 1 and 0 < model < 1 for seconds, model in entry["candidates"].values())
        assert entry["engine"].startswith("oneDNN 3.") and entry["engine"].endswith(("thread", "threads"))
    before = tuned.read_text()
    assert measured(tuned) == 0
    assert tuned.read_text() == before


@pytest.mark.parametrize("wanted", [True, False], ids=["winograd", "direct"])
def test_compile_chooses_by_the_times_also_after_loading(tuned, tmp_path, wanted):
    path = rewritten(tuned, tmp_path / "times.jsonl", preferring(wanted))
    ex = byoc.compile(network(), "dnnl", database=path)
    assert [name.startswith("winograd") for name in implementations(ex)] == [wanted] * 3
    ex.export_library(tmp_path / "model.so")
    loaded = byoc.load(tmp_path / "model.so")
    assert [name.startswith("winograd") for name in implementations(loaded)] == [wanted] * 3
    assert_right(loaded(X), byoc.Runner(byoc.compile(network(), "dnnl"))(X))
    told = [call.implementation or "" for call in byoc.explain(network(), "dnnl", database=path).calls]
    assert {name.startswith("winograd") for name in told} == {wanted}


@pytest.mark.parametrize("faster", [True, False], ids=["faster", "slower"])
def test_a_model_chooses_by_the_times_only_where_the_whole_is_faster(tuned, tmp_path, monkeypatch, faster):
    usual = implementations(byoc.compile(network(), "dnnl"))
    other = not usual[0].startswith("winograd")
    path = rewritten(tuned, tmp_path / "times.jsonl", preferring(other))

    def race(models: Any, *_: Any) -> list[Timing]:
        assert models[0][1] is None and all(times for _, times in models[1:])  # by default it chooses without times
        return [Timing(0.5 if (choices is not None) == faster else 1.0, 0.0, True) for _, choices in models]

    monkeypatch.setattr("tvm_byoc_dnnl.tuning.race_apart", race)
    found = byoc.tune(network(), "dnnl", budget=60, database=path)
    assert found.seconds == 0.5 and (found.choices is not None) == faster
    for how in ({"placement": found}, {"database": path}):
        chosen = implementations(byoc.compile(network(), "dnnl", **how))
        if faster:
            assert [name.startswith("winograd") for name in chosen] == [other] * 3
        else:
            assert chosen == usual
    assert ("choices" in repr(found)) == faster  # the key of a cache of models


def test_times_of_another_library_machine_or_number_of_threads_are_ignored(tuned, tmp_path):
    usual = implementations(byoc.compile(network(), "dnnl"))
    graph = tmp_path / "times.jsonl"
    other = not usual[0].startswith("winograd")
    for key, value in (("engine", "oneDNN 9.9.9, sse41, 64 threads"), ("setting", {"cpu": "z80", "threads": 1})):

        def change(entry: dict[str, Any], key: str = key, value: Any = value) -> dict[str, Any]:
            changed = {**entry[key], **value} if isinstance(value, dict) else value
            return {**preferring(other)(entry), key: changed}

        path = rewritten(tuned, graph, change)
        assert implementations(byoc.compile(network(), "dnnl", database=path)) == usual


def test_a_graph_with_wrong_times_is_refused():
    codegen = namespace("dnnl").codegen
    assert isinstance(codegen, PortableCodegen) and codegen.measure_candidates is not None
    document = {
        "format": "tvm_byoc_dnnl.graph",
        "version": 2,
        "name": "g",
        "tensors": [{"name": "x", "dtype": "float32", "shape": [1]}],
        "inputs": [{"tensor": 0}],
        "constants": [],
        "nodes": [],
        "outputs": [0],
    }
    measure = tvm.get_global_func("tvm_byoc_dnnl.MeasureCandidates")
    for times, message in (
        ({"setting": "s"}, "workloads"),
        ({"setting": "s", "workloads": {"w": {"c": [1]}}}, r"got 1 numbers, expected \[seconds, model\]"),
        ({"setting": "s", "workloads": {"w": {"c": [1, -1]}}}, "expected numbers above 0"),
    ):
        with pytest.raises(Exception, match=message):
            measure("dnnl", json.dumps({**document, "times": times}), 0)
    assert json.loads(measure("dnnl", json.dumps(document), 0))["workloads"] == {}
