"""Measuring: the arithmetic, and engines that fail in every way."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from tests.unit import fake_engines
from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.runtime.comparison import gap
from tvm_byoc_dnnl.testing.bench import Load, Throughput, _table, choose_engines, measure_throughput, run, to_json
from tvm_byoc_dnnl.testing.bench.engines import ENGINES, Engine
from tvm_byoc_dnnl.testing.bench.measure import Comparison, Measurement, Settings, Spread, _Contestant, _Probe, compare
from tvm_byoc_dnnl.testing.models import Model, find_model, random_inputs, saved

FAKES = {
    "right": "",
    "refuses": "ValueError: this model is not for me",
    "dies": "process ended with status 7 in `load`",
    "dies later": "process ended with status 7 in `time`",
    "wrong": "outputs differ by",
    "nan": "outputs differ by inf",
    "wrong shape": "outputs differ by inf",
}
QUICK = Settings(threads=1, rounds=3, block_ms=1, rest_ms=0)


def fake(behaviour: str, **fields: int) -> Engine:
    return Engine(fake_engines.loader, behaviour, "numpy", {"behaviour": behaviour}, **fields)


@pytest.fixture(scope="module")
def relu() -> onnx.ModelProto:
    kind = TensorProto.FLOAT, [2, 3]
    node = helper.make_node("Relu", ["x"], ["y"])
    value = [helper.make_tensor_value_info(name, *kind) for name in "xy"]
    graph = helper.make_graph([node], "relu", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 100.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0)


def test_ratio_is_formed_round_by_round() -> None:
    slow = Measurement("slow", "", blocks=[[2, 2, 900], [20, 20, 20]])
    fast = Measurement("fast", "", blocks=[[1, 1, 1], [10, 10, 10], [1, 1, 1]])
    assert slow.ratio(fast) == Spread(2, 2, 2)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([[1.0, -4.0]], 0.0),
        ([[1.0, -3.0]], 0.25),
        ([[1.0, math.nan]], math.inf),
        ([[1.0]], math.inf),
        ([[1.0, -4.0], [1.0]], math.inf),
    ],
    ids=["same", "differs", "nan", "shape", "number of outputs"],
)
def test_difference_is_a_share_of_the_largest_value(got: list, expected: float) -> None:
    assert gap([np.array(g, "float32") for g in got], [np.array([1, -4], "float32")]) == expected


def test_a_noisy_machine_is_told() -> None:
    assert Comparison("m", [], Spread(1.0, 0.99, 1.05)).quiet
    assert not Comparison("m", [], Spread(1.0, 0.9, 1.3)).quiet


def test_every_failure_is_that_engines_own(relu: onnx.ModelProto, tmp_path: Path) -> None:
    path = str(tmp_path / "relu.onnx")
    onnx.save(relu, path)
    inputs = {"x": np.array([[-1, 0, 1], [2, 3, 4]], "float32")}
    steps: list[float] = []
    result = compare(
        "relu",
        path,
        inputs,
        {name: fake(name) for name in FAKES},
        QUICK,
        progress=lambda what, share: steps.append(share),
    )
    results = {m.engine: m for m in result.measurements}
    for name, reason in FAKES.items():
        failure = results[name].failure
        assert failure.startswith(reason), name
        assert bool(failure) == bool(reason), name
        assert "\n" not in failure
    right = results["right"]
    assert [len(block) > 0 for block in right.blocks] == [True] * QUICK.rounds
    assert right.version == "1.0"
    assert right.error == 0
    assert steps == sorted(steps)
    assert 0 <= steps[-1] < 1


def test_table_and_json(
    relu: onnx.ModelProto, tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    engines = {"right": fake("right"), "few": fake("right", max_rounds=1), "wrong": fake("wrong")}
    measured = run([Model("relu", lambda: relu)], engines, QUICK)
    out = capfd.readouterr().out
    assert "median [quartiles]" in out
    assert "relu, wrong: outputs differ by" in out
    assert "a library that prints" not in out, "standard output is for results only"
    (model,) = json.loads(json.dumps(to_json(measured, QUICK)))["models"]
    right, few, wrong = model["engines"]
    assert right["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert len(right["blocks_ms"]) == QUICK.rounds
    assert len(few["blocks_ms"]) == 1
    assert wrong["failure"].startswith("outputs differ")
    assert "ratio" not in wrong


def test_a_failed_baseline_leaves_no_ratio() -> None:
    good = Measurement("good", "Good", first_results=[(1.0, {})], blocks=[[1.0]])
    bad = Measurement("bad", "Bad", failure="does not load")
    entry = to_json([Comparison("m", [bad, good], Spread(1, 1, 1))], QUICK)["models"][0]["engines"][1]
    assert entry["ratio"] is None


@pytest.mark.parametrize(("seconds", "median"), [([2.0], 2.0), ([3.0, 1.0, 2.0], 2.0), ([4.0, 3.0, 1.0, 2.0], 2.0)])
def test_the_first_result_is_that_of_the_median_process(seconds: list[float], median: float) -> None:
    each = Measurement("e", "E", first_results=[(s, {"load": s / 2}) for s in seconds])
    assert (each.first_result_s, each.stages_s) == (median, {"load": median / 2})


def test_first_results_are_of_fresh_processes(relu: onnx.ModelProto, capfd: pytest.CaptureFixture) -> None:
    run([Model("relu", lambda: relu)], {"one load": fake("one load")}, replace(QUICK, loads=3), as_json=True)
    (each,) = json.loads(capfd.readouterr().out)["models"][0]["engines"]
    assert each["failure"] is None, "the engine refuses a second load in the same process"
    assert len(each["first_results_s"]) == 3
    assert each["first_result_s"] == pytest.approx(sorted(each["first_results_s"])[1], abs=1e-4)


@pytest.mark.parametrize(("samples", "repeated", "disturbed"), [([9, 9, 1, 9, 1, 1], 2, 0), ([9] * 20, 3, 1)])
def test_a_disturbed_block_is_run_again(
    monkeypatch: pytest.MonkeyPatch, samples: list[int], repeated: int, disturbed: int
) -> None:
    steps = []
    monkeypatch.setattr("time.sleep", lambda seconds: steps.append("rest"))

    class Process:
        def time(self, warm_up: int, count: int) -> list[float]:
            steps.append("run")
            return [1.0] * count

    class Work:
        def time(self, warm_up: int, count: int) -> list[float]:
            steps.append("probe")
            return [float(samples.pop(0))]

    probe = _Probe(Work())  # type: ignore[arg-type]
    probe.samples.append(1.0)
    each = _Contestant("e", fake("right"), replace(QUICK, repeats=3))
    each._process = Process()  # type: ignore[assignment]
    each.turn(0, probe)
    assert (each.result.repeated, each.result.disturbed, len(each.result.blocks)) == (repeated, disturbed, 1)
    assert steps == ["rest", "probe", "rest", "run", "probe"] * (1 + repeated), "the probe's threads sleep in a run"


def test_unknown_names_are_input_errors() -> None:
    with pytest.raises(InputError, match="no engine `tensorflow`; there are: byoc"):
        choose_engines(["byoc", "tensorflow"])
    with pytest.raises(
        InputError, match=r"no model `nothing.onnx`; expected an .onnx file, a compiled library or one of: resnet50"
    ):
        find_model("nothing.onnx")


def test_engines_that_are_not_installed_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(ENGINES, "absent", Engine(fake_engines.loader, "Absent", "no_such_module"))
    assert list(choose_engines(["absent", "onnxruntime"])) == ["onnxruntime"]
    assert "absent: left out, `no_such_module` is not installed" in capsys.readouterr().err


def test_throughput_counts_every_request(relu: onnx.ModelProto, capsys: pytest.CaptureFixture) -> None:
    load = Load(threads=1, rounds=2, seconds=0.05)
    engines = {"byoc": ENGINES["byoc"], "right": fake("right"), "wrong": fake("wrong")}
    results = measure_throughput([Model("relu", lambda: relu)], engines, [load], as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["results"][0]["streams"] == load.clients >= 1
    by_engine = {r.engine: r for r in results}
    assert "outputs differ" in by_engine["wrong"].failure
    for name in ("right", "byoc"):
        found, entry = by_engine[name], next(e for e in data["results"] if e["engine"] == name)
        assert len(found.rates) == 2
        assert entry["requests"] == len(found.latencies_ms) >= 2 * load.clients
        assert 0 < entry["p50_ms"] <= entry["p95_ms"] <= entry["p99_ms"] <= max(found.latencies_ms) + 1e-3
    Console(width=120).print(_table(results))
    table = capsys.readouterr().out
    assert "requests/s" in table
    assert "p99, ms" in table
    assert Throughput("m", "e", "E", load, latencies_ms=[float(i) for i in range(101)]).percentile(95) == 95


@pytest.mark.parametrize(("axis", "rows"), [(0, 2), (1, 30), (-1, 30)])
def test_made_up_integers_choose_rows_that_a_table_has(axis: int, rows: int) -> None:
    gather, table = node("Gather", ["t", "i"], ["y"], axis=axis), np.ones((2, 30), "float32")
    model = onnx_model([gather], {"i": (50,)}, {"t": table}, dtypes={"i": TensorProto.INT64})
    values = random_inputs(model)["i"]
    assert values.min() == 0 and values.max() == min(rows, 10) - 1


def test_rows_of_a_batch() -> None:
    """As many of what was given, again and again; and shapes that leave the rows open."""
    made = onnx_model([node("Relu", ["x"], ["y"])], {"x": ("n", "w")})
    x = np.array([[1, 2], [3, 4]], "float32")
    ((_, given, _),) = saved([Model("m", lambda: made)], {}, {"x": x}, batch=3)
    np.testing.assert_array_equal(given["x"], [[1, 2], [3, 4], [1, 2]])
    ((_, drawn, _),) = saved([Model("m", lambda: made)], {"x": ["n", 5]}, batch=3)
    assert drawn["x"].shape == (3, 5)
