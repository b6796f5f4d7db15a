"""verify finds the wrong call, alone or in company; profile accounts for every primitive."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_byoc_dnnl as byoc
from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl.cli import main
from tvm_byoc_dnnl.report.measured import Instrument, Names, StepTime
from tvm_byoc_dnnl.report.profile import Profile, _medians, profile
from tvm_byoc_dnnl.report.verify import verify
from tvm_byoc_dnnl.runtime.comparison import gap
from tvm_byoc_dnnl.testing.conformance.patterns import quantised_cases
from tvm_byoc_dnnl.vendors.namespaces import namespace


@I.ir_module
class Net:
    @R.function
    def main(x: R.Tensor((2, 8, 6, 6), "float32"), w: R.Tensor((8, 8, 3, 3), "float32")):
        with R.dataflow():
            a = R.nn.conv2d(x, w, padding=[1, 1, 1, 1])
            b = R.nn.relu(a)
            s = R.sign(b)
            c = R.add(b, s)
            d = R.tanh(c)
            e = R.nn.softmax(d, axis=1)
            R.output(e)
        return e


@pytest.fixture
def broken(monkeypatch):
    """Let one lowering of dnnl's emit something else."""
    ns = namespace("dnnl")

    def break_op(op, lowering):
        monkeypatch.setitem(ns.lowerings, op, lowering)

    return break_op


def test_a_right_model_is_right():
    report = verify(Net)
    assert report.ok
    assert [r.region for r in report.regions] == ["dnnl_0", "dnnl_1"]
    assert all(r.gap < 1e-5 and r.culprit is None for r in report.regions)
    assert "ok" in report.to_text()


@I.ir_module
class Flat:
    @R.function
    def main(x: R.Tensor(("n", 3, 4), "float32")):
        n = T.int64()
        with R.dataflow():
            a = R.nn.relu(x)
            b = R.reshape(a, R.shape([n, 12]))
            y = R.tanh(b)
            R.output(y)
        return y


def test_a_region_that_is_told_an_open_shape(broken):
    x = np.linspace(-2, 2, 60, dtype="float32").reshape(5, 3, 4)
    assert verify(Flat, [x]).ok
    broken("relax.tanh", lambda g, call: g.eltwise(g.value(call.args[0]), "logistic"))
    (wrong,) = verify(Flat, [x]).regions
    assert wrong.culprit == "y" and wrong.gap > 0.1


def test_a_wrong_operator_is_found_by_name(broken):
    broken("relax.tanh", lambda g, call: g.eltwise(g.value(call.args[0]), "logistic"))
    report = verify(Net)
    assert not report.ok
    good, bad = report.regions
    assert good.culprit is None
    assert (bad.culprit, bad.pattern, bad.alone) == ("d", "dnnl.relax.tanh", True)
    assert json.loads(report.to_json())["ok"] is False
    assert verify(Net, policy=report.policy).ok


# ---------------------------------------------------------------- beside ONNX Runtime
def two_layers() -> onnx.ModelProto:
    helper, rng = onnx.helper, np.random.default_rng(0)
    weights = [rng.standard_normal((8, 8), dtype="float32"), np.full(8, 0.5, "float32")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Tanh", ["s"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["i"], axis=1),
    ]
    outputs = [helper.make_tensor_value_info("y", 1, [4, 8]), helper.make_tensor_value_info("i", 7, [4, 1])]
    inputs = [helper.make_tensor_value_info("x", 1, [4, 8])]
    constants = [onnx.numpy_helper.from_array(w, n) for w, n in zip(weights, "wb")]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, constants), opset_imports=[helper.make_opsetid("", 17)]
    )


def test_a_whole_model_beside_onnx_runtime(tmp_path, capsys):
    report = verify(two_layers(), against="onnxruntime")
    assert report.ok and [o.output for o in report.outputs] == ["y", "i"] and not report.regions
    assert report.to_text().count("to ONNX Runtime") == 2 and "2 outputs, all right" in repr(report)
    x = np.random.default_rng(1).standard_normal((4, 8), dtype="float32")
    assert verify(two_layers(), {"x": x}, against="onnxruntime", tolerance={"float32": 1e-4, "int64": "0 steps"}).ok
    onnx.save(two_layers(), tmp_path / "m.onnx")
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tmp_path / "m.onnx"), "--against", "onnxruntime", "--json"])
    assert ended.value.code == 0
    assert [o["output"] for o in json.loads(capsys.readouterr().out)["outputs"]] == ["y", "i"]


def test_a_compiled_library_beside_the_model_that_it_was_built_from(tmp_path, broken):
    path, file = tmp_path / "m.so", tmp_path / "m.onnx"
    onnx.save(two_layers(), file)
    byoc.compile(file).export_library(path)
    for compiled in (path, byoc.load(path), byoc.load(path, runtime="tvm"), byoc.compile(file)):
        report = verify(compiled, against=str(file))
        assert report.ok and [o.output for o in report.outputs] == ["y", "i"]
    for against in ("tvm", "onnxruntime", 3):
        with pytest.raises(byoc.InputError, match=r"compiled already.*against='model.onnx'"):
            verify(path, against=against)
    broken("relax.tanh", lambda g, call: g.eltwise(g.value(call.args[0]), "logistic"))
    byoc.compile(file).export_library(path)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(path), "--against", str(file)])
    assert ended.value.code == 1


def test_a_wrong_output_shows_the_wrong_region(broken):
    broken("relax.tanh", lambda g, call: g.eltwise(g.value(call.args[0]), "logistic"))
    report = verify(two_layers(), against="onnxruntime")
    assert not report.ok and report.outputs[0].difference and report.regions[0].pattern == "dnnl.relax.tanh"
    assert verify(two_layers(), against="onnxruntime", exclude=["relax.tanh"]).ok
    stored = report.to_dict()
    assert stored["ok"] is False and stored["outputs"][0]["difference"]


def test_a_fault_outside_of_the_regions_is_said_to_be_there(monkeypatch):
    from tvm_byoc_dnnl.report import measured

    monkeypatch.setattr(
        measured, "_session", lambda model: lambda inputs: [np.ones((4, 8), "float32"), np.ones((4, 1), "int64")]
    )
    report = verify(two_layers(), against="onnxruntime")
    assert not report.ok and not any(r.difference for r in report.regions)
    assert "the import, TVM, or rounding" in report.to_text()


@pytest.mark.parametrize(
    ("model", "engine", "message"),
    [(Net, "onnxruntime", "expected one of ONNX"), (Net, "onnxrumtime", "did you mean 'onnxruntime'")],
)
def test_against_is_checked(model, engine, message):
    with pytest.raises(byoc.InputError, match=message):
        verify(model, against=engine)


@I.ir_module
class Halves:
    @R.function
    def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((4, 8), "float32")):
        with R.dataflow():
            h = R.split(R.matmul(x, R.permute_dims(w)), 2, axis=1)
            a = R.tanh(h[0])
            b = R.multiply(R.nn.relu(h[1]), a)
            c = R.concat([a, b], axis=1)
            R.output(c)
        return c


def test_a_wrong_operator_behind_a_tuple(broken):
    broken("relax.nn.relu", lambda g, call: g.eltwise(g.value(call.args[0]), "logistic"))
    (bad,) = verify(Halves).regions
    assert (bad.pattern, bad.alone) == ("dnnl.relax.nn.relu", True)


def test_a_wrong_combination_is_told_from_a_wrong_operator(monkeypatch):
    ns = namespace("dnnl")
    right = ns.functions.optimize

    def wrong_when_fused(graph):
        graph = right(graph)
        for step in graph.nodes:
            step.post_ops = [replace(p, alg="tanh") if p.alg == "relu" else p for p in step.post_ops]
        return graph

    monkeypatch.setattr(ns.functions, "optimize", wrong_when_fused)
    bad = verify(Net).regions[0]
    assert (bad.culprit, bad.alone) == ("b", False)


def test_gap_sees_what_is_not_a_number():
    one = np.array([1.0, 2.0])
    assert gap([one], [one]) == 0
    assert gap([np.array([1.0, np.nan])], [one]) == float("inf")
    assert gap([np.array([np.inf, 1.0])], [np.array([np.inf, 1.0])]) == 0
    assert gap([np.array([np.inf, 1.0])], [np.array([-np.inf, 1.0])]) == float("inf")


def test_profile_accounts_for_regions_and_for_tvm():
    report = profile(byoc.compile(Net), repeat=3, warmup=1)
    kinds = {(s.region, s.kind) for s in report.steps}
    assert {("dnnl_0", "convolution"), ("dnnl_1", "softmax")} <= kinds
    assert any(s.region == "tvm" for s in report.steps)
    (conv,) = (s for s in report.steps if s.kind == "convolution")
    assert conv.flops == 2 * (2 * 8 * 6 * 6) * 8 * 9
    assert conv.gflops_per_second > 0
    assert 0 < report.tvm_share < 1
    assert report.to_dict()["repeat"] == 3
    trace = json.loads(report.to_chrome_trace())["traceEvents"]
    assert len(trace) == len(report.steps)
    assert "one call" in report.to_text(top=1)


def overlaps(report):
    """Bars of one row of the trace that stand on each other."""
    rows = {}
    for event in json.loads(report.to_chrome_trace())["traceEvents"]:
        rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    return [(a, b) for row in rows.values() for a, b in zip(sorted(row), sorted(row)[1:]) if b[0] < a[1] - 1e-6]


def test_packed_integers_keep_their_dtype_and_their_dims():
    """Weights with a zero point need a kernel of ours, which packs them: a profile says what they were."""
    (case,) = [
        c
        for c in quantised_cases("relax.nn.conv2d")
        if "weights without a sign" in c.what and "(16, 8, 3, 3)" in c.what
    ]
    steps = profile(byoc.compile(tvm.IRModule({"main": case.main.with_attr("global_symbol", "main")})), repeat=1).steps
    (step,) = [s for s in steps if s.kind == "convolution"]
    assert step.layouts[1] == "u8:packed:16x8x3x3"
    assert step.flops == 2 * (2 * 16 * 6 * 5) * 8 * 9
    assert step.dtypes == "u8"
    assert replace(step, layouts=["f32:a:4", "s32:a:1", "u8:a:4"]).dtypes == "f32 → u8"
    assert f"{'convolution':<20} {'u8':<9} " in Profile(steps).to_text()


def test_the_bars_of_the_trace_do_not_overlap():
    fast, slow = [[StepTime("tvm", k, "", [], t, start=s) for k, t, s in run] for run in (
        [("a", 1.0, 0.0), ("b", 5.0, 1.5)],
        [("a", 3.0, 0.0), ("b", 3.5, 3.5)],
    )]  # fmt: skip
    steps = _medians([fast, slow, slow[:1]])
    assert [s.seconds for s in steps] == [2.0, 4.25]
    assert not overlaps(Profile(steps))


def test_calls_that_call_others_are_no_bars_of_their_own():
    instrument = Instrument({}, Names(None, {}), [])
    instrument.start()
    for symbol, before in [
        ("outer", True),
        ("inner", True),
        ("inner", False),
        ("outer", False),
        ("last", True),
        ("last", False),
    ]:
        instrument(None, symbol, before, None)
    assert [s.kind for s in instrument.steps] == ["inner", "last"]
    assert not overlaps(Profile(instrument.steps))


def test_profile_measures_what_is_running(tmp_path, capsys):
    ex = byoc.compile(Net)
    ex.export_library(tmp_path / "net.so")
    runner = byoc.load(tmp_path / "net.so")
    report = profile(runner, repeat=3, warmup=1)
    assert {("dnnl_0", "convolution"), ("dnnl_1", "softmax")} <= {(s.region, s.kind) for s in report.steps}
    assert not overlaps(report)
    with pytest.raises(SystemExit) as exit_:
        main(["profile", str(tmp_path / "net.so"), "--repeat", "2", "--json"])
    assert exit_.value.code == 0
    assert {"convolution", "softmax"} <= {s["kind"] for s in json.loads(capsys.readouterr().out)["steps"]}


def test_profile_names_the_onnx_nodes_of_each_step(tmp_path):
    def block(k, before):
        return [
            onnx.helper.make_node("Conv", [before, "w"], [f"c{k}"], f"block{k}/conv", pads=[1, 1, 1, 1]),
            onnx.helper.make_node("Relu", [f"c{k}"], [f"r{k}"], f"block{k}/act"),
            onnx.helper.make_node("Tan", [f"r{k}"], [f"s{k}"], f"block{k}/tan"),
            onnx.helper.make_node("Sin", [f"s{k}"], [f"t{k}"], f"block{k}/sin"),
        ]

    w = onnx.numpy_helper.from_array(np.ones((4, 4, 3, 3), "float32") / 36, "w")
    shape = [onnx.TensorProto.FLOAT, [1, 4, 8, 8]]
    ends = [onnx.helper.make_tensor_value_info(name, *shape) for name in ("x", "t1")]
    graph = onnx.helper.make_graph([*block(0, "x"), *block(1, "t0")], "g", ends[:1], ends[1:], [w])
    ex = byoc.compile(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    ex.export_library(tmp_path / "net.so")
    for model in (ex, byoc.load(tmp_path / "net.so")):
        report = profile(model, repeat=1, warmup=1)
        named = [s.calls for s in report.steps if s.kind == "convolution"]
        assert named == [["block0/conv", "block0/act"], ["block1/conv", "block1/act"]]  # one region, used twice
        assert "block0/conv, block0/act" in report.to_text()
        kernels = [s.calls for s in report.steps if s.region == "tvm"]
        assert kernels == [["block0/tan", "block0/sin"], ["block1/tan", "block1/sin"]]  # one kernel, used twice
        assert "block1/tan, block1/sin" in report.to_text()
    assert {s.region for s in report.steps} == {"dnnl_0", "tvm"}


def test_names_are_unknown_where_control_flow_leaves_a_use_of_a_region_out():
    instrument = Instrument({}, Names(None, {}), [])
    instrument.start()
    instrument._region("dnnl_0", {"steps": [{"kind": "eltwise", "seconds": 1.0, "calls": [0]}]}, 0.0)
    instrument.steps[0].calls = ["of another use"]
    instrument.finish()
    assert instrument.steps[0].calls == []


def test_profile_needs_inputs_where_shapes_are_open():
    @I.ir_module
    class Open:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")):
            with R.dataflow():
                y = R.nn.softmax(x)
                R.output(y)
            return y

    ex = byoc.compile(Open)
    with pytest.raises(byoc.InputError, match=r"input 'x' has shape \['n', 4\], which is not fixed"):
        profile(ex)
    assert profile(ex, {"x": np.ones((3, 4), "float32")}, repeat=1).steps


@pytest.fixture
def model(tmp_path):
    path, weights = tmp_path / "model.onnx", np.full((8, 4, 3, 3), 0.1, "float32")
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["y"])]
    onnx.save(onnx_model(nodes, {"x": (1, 4, 9, 9)}, {"w": weights}), path)
    return path


def test_the_command_line_profiles(model, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["profile", str(model), "--repeat", "2", "--trace", str(tmp_path / "t.json"), "--top", "1"])
    assert exit_.value.code == 0
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "one call" in capsys.readouterr().out


def test_the_command_line_verifies_and_tells_by_its_status(model, broken, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["verify", str(model), "--json"])
    assert exit_.value.code == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    broken("relax.nn.relu", lambda g, call: g.eltwise(g.value(call.args[0]), "tanh"))
    with pytest.raises(SystemExit) as exit_:
        main(["verify", str(model)])
    assert exit_.value.code == 1
    assert "first wrong call" in capsys.readouterr().out
