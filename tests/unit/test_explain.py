"""explain: every call accounted for, with its owner or every reason why it has none."""

import json
import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import relax, te, tirx
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc
from tests.harness import no_code
from tests.unit.importing import module, onnx_model
from tvm_byoc_dnnl.graph import Constant, Tensor
from tvm_byoc_dnnl.graph.cost import RegionPolicy
from tvm_byoc_dnnl.report import explain
from tvm_byoc_dnnl.vendors import Description
from tvm_byoc_dnnl.vendors.namespaces import namespace

nn = relax.op.nn


def const(*shape):
    return relax.const(np.random.default_rng(0).standard_normal(shape, dtype="float32"))


def convnet(bb, x):
    conv = bb.emit(nn.conv2d(x, const(8, 3, 3, 3), padding=1))
    act = bb.emit(nn.relu(conv))
    scan = bb.emit(relax.op.cumsum(act, axis=1))
    both = bb.emit(relax.op.add(scan, act))
    return nn.softmax(bb.emit(relax.op.reshape(both, (1, 8 * 256))))


@pytest.fixture
def picky():
    """A compiler without a library: it takes two ops of four, and says why not more."""
    name = "picky"

    @byoc.register_annotate_compiler(name, "relax.nn.conv2d")
    def conv2d(attrs, args):
        stride = int(attrs.strides[0])
        return stride == 1 or byoc.Reject(f"stride {stride}")

    byoc.register_annotate_compiler(name, ["relax.nn.relu"])
    byoc.register_codegen(name, no_code)
    yield name
    byoc.unregister_compiler(name)


def test_what_cannot_be_built_is_not_offloaded(picky):
    """The same attempts as `compile`: a codegen that raises, one that returns nothing, and none at all."""
    mod = module(lambda bb, x: nn.relu(x), (4,))
    assert explain(mod, picky).totals.offloaded_calls == 1

    def raising(functions, options, constants):
        raise RuntimeError("no silicon")

    for codegen, reason in ((raising, "no silicon"), (lambda *_: None, "returned None")):
        byoc.register_codegen(picky, codegen, override=True)
        report = explain(mod, picky)
        assert report.totals.offloaded_calls == 0
        assert reason in report.calls[0].reasons[0]
    byoc.register_annotate_compiler("codeless", ["relax.nn.relu"])
    try:
        report = explain(mod, "codeless")
    finally:
        byoc.unregister_compiler("codeless")
    assert report.totals.offloaded_calls == 0
    assert "has registered no codegen" in report.calls[0].reasons[0]


def test_options_reach_the_codegen(picky):
    mod, seen = module(lambda bb, x: nn.relu(x), (4,)), []

    def codegen(functions, options, constants):
        seen.append(int(options["cores"]))
        return no_code(functions, options, constants)

    byoc.register_codegen(picky, codegen, options={"cores": 1}, override=True)
    explain(mod, picky, options={picky: {"cores": 4}})
    assert set(seen) == {4}
    with pytest.raises(byoc.InputError, match="has no option 'speed'"):
        explain(mod, picky, options={picky: {"speed": 4}})


def by_op(report):
    return {c.op: c for c in report.calls}


def test_every_call_has_an_owner_or_a_reason():
    report = explain(module(convnet, (1, 3, 16, 16)))
    calls = by_op(report)
    assert [c.op for c in report.calls] == [
        "relax.nn.conv2d",
        "relax.nn.relu",
        "relax.cumsum",
        "relax.add",
        "relax.reshape",
        "relax.nn.softmax",
    ]
    assert [c.region for c in report.calls] == ["dnnl_0", "dnnl_0", None, "dnnl_1", "dnnl_1", "dnnl_1"]
    assert calls["relax.cumsum"].compiler is None
    assert calls["relax.cumsum"].reasons == ["dnnl: 'dnnl' does not take relax.cumsum: oneDNN has no scan"]
    assert all(c.reasons == [] for c in report.calls if c.compiler)
    assert calls["relax.add"].inputs == [2, 1]
    assert calls["relax.nn.conv2d"].output == "float32[1, 8, 16, 16]"
    assert "padding=(1, 1, 1, 1)" in calls["relax.nn.conv2d"].attrs


def test_numbers_add_up():
    report = explain(module(convnet, (1, 3, 16, 16)))
    totals, regions = report.totals, report.regions
    assert totals.calls == 6 and totals.offloaded_calls == 5 and totals.regions == 2
    assert totals.flops == sum(c.flops for c in report.calls)
    assert totals.offloaded_flops == sum(r.flops for r in regions) == totals.flops - by_op(report)["relax.cumsum"].flops
    assert [r.ops for r in regions] == [2, 3]
    assert by_op(report)["relax.nn.conv2d"].flops == 2 * 8 * 16 * 16 * 27
    assert by_op(report)["relax.reshape"].flops == 0
    assert regions[0].bytes == 4 * (3 * 256 + 8 * 3 * 9 + 8 * 256)  # argument, weights, result


def test_lowered_calls_say_what_they_run_as():
    calls = by_op(explain(module(convnet, (1, 3, 16, 16))))
    assert calls["relax.nn.conv2d"].primitive == calls["relax.nn.relu"].primitive == "convolution + relu"
    assert calls["relax.nn.conv2d"].step == calls["relax.nn.relu"].step
    assert calls["relax.nn.softmax"].step != calls["relax.add"].step
    assert calls["relax.cumsum"].primitive is None


def test_equal_composites_are_told_apart():
    """Equal calls share one composite function; each still has a primitive of its own."""

    def two(bb, x):
        a = bb.emit(nn.relu(bb.emit(relax.op.exp(x))))
        b = bb.emit(nn.relu(bb.emit(relax.op.sqrt(x))))
        return nn.softmax(bb.emit(relax.op.matmul(bb.emit(nn.softmax(a)), bb.emit(nn.softmax(b)))))

    steps = [c.step for c in explain(module(two, (4, 4))).calls if c.op == "relax.nn.softmax"]
    assert len(steps) == len(set(steps)) == 3


def test_json_document():
    report = explain(module(convnet, (1, 3, 16, 16)))
    document = json.loads(report.to_json())
    assert document == report.to_dict()
    assert {"op", "compiler", "region", "flops", "reasons"} <= document["calls"][0].keys()
    assert {"name", "compiler", "ops", "flops", "bytes"} <= document["regions"][0].keys()
    assert {"calls", "offloaded_calls", "flops", "offloaded_flops", "regions"} <= document["totals"].keys()
    assert document["calls"][2]["compiler"] is None and document["calls"][2]["region"] is None


def test_one_reason_per_compiler_with_the_offending_value(picky):
    def model(bb, x):
        conv = bb.emit(nn.conv2d(x, const(8, 3, 3, 3), strides=2))
        return relax.op.exp(conv)

    report = explain(module(model, (1, 3, 16, 16), dtype="float32"), [picky])
    assert by_op(report)["relax.nn.conv2d"].reasons == [f"{picky}: stride 2"]

    both = explain(module(model, (1, 3, 16, 16)), [picky, "dnnl"])
    assert both.compilers == [picky, "dnnl"]
    conv = by_op(both)["relax.nn.conv2d"]
    assert conv.compiler == "dnnl"
    assert conv.reasons == [f"{picky}: stride 2"]  # why the one with priority did not get it

    ints = explain(module(lambda bb, x: relax.op.exp(x), (4,), dtype="float64"), [picky, "dnnl"])
    (call,) = ints.calls
    assert [r.partition(": ")[0] for r in call.reasons] == [picky, "dnnl"]
    assert "float64" in call.reasons[1]


def test_a_partitioned_module_gives_the_same_report():
    mod = module(convnet, (1, 3, 16, 16))
    raw, done = explain(mod), explain(byoc.partition(mod))
    assert done.to_dict() == raw.to_dict()


def test_an_annotated_module_is_partitioned_first(picky):
    mod = byoc.AnnotateExternalCompiler(picky)(module(convnet, (1, 3, 16, 16)))
    report = explain(mod, picky)
    assert [c.region for c in report.calls][:3] == ["picky_0", "picky_0", None]


def test_without_compiler_the_functions_attribute_decides():
    mod = module(convnet, (1, 3, 16, 16))
    assert explain(mod, None).totals.offloaded_calls == 0
    assert explain(mod, None).compilers == []
    mod["main"] = mod["main"].with_attr("compiler", "dnnl")
    report = explain(mod, None)
    assert report.compilers == ["dnnl"] and report.totals.offloaded_calls == 5


def test_what_the_build_noted_is_a_reason(picky):
    """A call that is accepted but back with TVM: the build knows why."""
    note = {"function": "main", "name": "gv", "op": "relax.nn.relu", "compiler": picky, "stage": "plan", "reason": "no"}
    mod = module(lambda bb, x: nn.relu(x), (4,))
    other = module(lambda bb, x: nn.conv2d(x, const(8, 3, 3, 3)), (1, 3, 8, 8))
    mod["other"] = byoc.partition(other, picky)["main"].with_attr("Codegen", picky)  # counts as partitioned
    assert "does not say why" in explain(mod, picky).calls[0].reasons[0]
    mod = mod.with_attr("byoc_log", json.dumps([note]))
    assert explain(mod, picky).calls[0].reasons == [f"{picky}: plan: no"]
    mod = mod.with_attr("byoc_log", "not ours")
    assert "does not say why" in explain(mod, picky).calls[0].reasons[0]


def test_what_the_build_was_told_is_not_asked_again(picky):
    asked = []

    def predicate(attrs, args):
        asked.append(attrs)
        return byoc.Reject(f"answer {len(asked)}")

    byoc.register_annotate_compiler(picky, ["relax.exp"], predicate)
    mod = module(lambda bb, x: relax.op.exp(x), (4,))
    assert explain(mod, picky).calls[0].reasons == [f"{picky}: answer 1"]
    partitioned = byoc.partition(mod, picky)
    assert explain(partitioned, picky).calls[0].reasons == [f"{picky}: answer 3"]  # asked by a report of its own
    assert len(asked) == 3


def test_kernels_are_named():
    def twice(t):
        return te.compute(t.shape, lambda *i: t(*i) * 2, name="twice")

    (call,) = explain(module(lambda bb, x: bb.call_te(twice, x, primfunc_name_hint="twice"), (4,))).calls
    assert call.op == "relax.call_tir" and call.kernel == call.label == "twice"
    assert "twice" in call.reasons[0]


def test_branches_and_other_functions_count():
    bb = relax.BlockBuilder()
    x, flag = relax.Var("x", relax.TensorType((4,), "float32")), relax.Var("flag", relax.TensorType((), "bool"))
    one, two = (relax.SeqExpr([], op(x)) for op in (relax.op.exp, relax.op.sin))
    with bb.function("main", [x, flag]):
        bb.emit_func_output(bb.emit(relax.If(flag, one, two)))
    report = explain(bb.get())
    assert sorted(c.op for c in report.calls) == ["relax.exp", "relax.sin"]
    (reason,) = by_op(report)["relax.sin"].reasons
    assert reason.startswith("dnnl: 'dnnl' does not take relax.sin: ")


def test_symbolic_dims_are_named_and_count_as_one():
    n = tirx.Var("n", "int64")
    report = explain(module(lambda bb, x: relax.op.matmul(x, const(3, 5)), (n, 3)))
    assert report.symbols == ["n"]
    assert report.totals.flops == 2 * 3 * 5
    assert any("n" in line and "--shape" in line for line in report.advice)


def test_advice_is_in_the_order_of_what_it_gains():
    def model(bb, x):
        x = bb.emit(relax.op.matmul(x, const(64, 64)))
        large = bb.emit(relax.op.sin(x))
        return relax.op.add(bb.emit(relax.op.cos(bb.emit(relax.op.strided_slice(large, [0], [0], [8])))), const(1, 1))

    advice = explain(module(model, (tirx.Var("n", "int64"), 64))).advice
    shares = [[float(share) for share in re.findall(r"([\d.]+) %", line)] for line in advice]
    assert max(shares[0]) > 1 and shares[-1] == [] and advice[-1].startswith("Symbolic dims")
    assert [max(of) for of in shares if of] == sorted((max(of) for of in shares if of), reverse=True)


def test_users_of_our_own_patterns_are_not_told_how_to_write_them():
    report = explain(module(lambda bb, x: relax.op.matmul(x, bb.emit(relax.op.permute_dims(const(5, 3)))), (4, 3)))
    assert report.totals.offloaded_calls == report.totals.calls and report.advice == []


def test_calls_that_may_hide_a_nan_are_counted():
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("MatMul", ["r", "x"], ["t"])]
    nodes.append(helper.make_node("Max", ["t", "x"], ["y"]))
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (4, 4)) for name in "xy"]
    model = helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]), ir_version=8)
    (advice,) = [line for line in explain(model).advice if line.startswith("NaN: ")]
    assert advice.startswith("NaN: 2 calls (maximum, nn.relu) may turn a NaN into a number") and "numerics" in advice
    exact = explain(model, options={"dnnl": {"keep_nan": True}})
    assert not any("NaN" in line for line in exact.advice)
    assert exact.options["dnnl"]["keep_nan"] is True
    model.graph.node[1].CopyFrom(helper.make_node("Add", ["r", "x"], ["t"]))
    assert not any("NaN" in line for line in explain(model).advice)


def test_regions_that_share_a_function_are_counted_per_use():
    """Two equal chains with a call of TVM between: one function, called twice."""

    def model(bb, x):
        for _ in range(2):
            x = bb.emit(relax.op.cumsum(bb.emit(nn.relu(bb.emit(relax.op.exp(x)))), axis=0))
        return x

    report = explain(module(model, (4, 4)))
    assert report.totals.calls == 6 and report.totals.offloaded_calls == 4
    assert sum(r.ops for r in report.regions) == 4
    assert sum(r.uses for r in report.regions) == 2
    assert report.totals.offloaded_flops == sum(r.flops for r in report.regions) == 64


def test_unknown_compiler_is_an_error():
    with pytest.raises(ValueError, match="nobody"):
        explain(module(convnet, (1, 3, 16, 16)), "nobody")


def test_a_vendor_with_a_broken_lowering_does_not_break_the_report(picky):
    @byoc.register_lowering(picky, "relax.tanh")
    def tanh(g, call):
        raise RuntimeError("vendor bug")

    (call,) = explain(module(lambda bb, x: relax.op.tanh(x), (4,)), picky).calls
    assert "vendor bug" in call.reasons[0]


@pytest.mark.parametrize("by", ["lowering", "optimize"])
def test_a_graph_has_no_constant_of_its_own(monkeypatch, by):
    def exp(g, call):
        return g.binary("add", g.value(call.args[0]), g.value(relax.const([1.0])), (4,))

    def optimize(graph):
        graph.constants.append(Constant(len(graph.tensors), "one"))
        graph.tensors.append(Tensor("float32", (4,), "one"))
        return graph

    ns = namespace("dnnl")
    if by == "lowering":
        monkeypatch.setitem(ns.lowerings, "relax.exp", exp)
    else:
        monkeypatch.setattr(ns, "functions", replace(ns.functions, optimize=optimize))
    (call,) = explain(module(lambda bb, x: relax.op.exp(x), (4,))).calls
    assert "reads a value that the region has not" in call.reasons[0]


def test_a_library_that_cannot_be_asked_is_mentioned(picky):
    model = module(lambda bb, x: nn.relu(x), (4,))
    assert explain(model, picky).unasked == []  # it has nothing that could be asked
    byoc.register_namespace(picky, describe=lambda graph: None)
    report = explain(model, picky)
    assert report.unasked == [picky] and report.totals.reorders is None
    assert f"The library of {picky} could not be asked" in report.advice[0]


def test_what_a_library_says_is_shown(picky):
    @byoc.register_lowering(picky, "relax.nn.relu")
    def relu(g, call):
        return g.eltwise(g.value(call.args[0]), "relu")

    byoc.register_namespace(picky, describe=lambda graph: Description(["fast"] * len(graph.nodes), 3))
    report = explain(module(lambda bb, x: nn.relu(x), (4,)), picky)
    assert report.calls[0].implementation == "fast" and report.calls[0].primitive == "relu"
    assert report.totals.reorders == report.regions[0].reorders == 3
    assert any("3 reorders for 1 offloaded call" in line for line in report.advice)

    def broken(graph):
        raise RuntimeError("vendor bug")

    byoc.register_namespace(picky, describe=broken)
    assert explain(module(lambda bb, x: nn.relu(x), (4,)), picky).calls[0].primitive == "relu"


def test_patterns_are_named(picky):
    byoc.register_pattern(picky, "pair", is_op("relax.exp")(is_op("relax.sin")(wildcard())))
    report = explain(module(lambda bb, x: relax.op.exp(bb.emit(relax.op.sin(x))), (4,)), picky)
    assert [c.pattern for c in report.calls] == ["picky.pair"] * 2
    assert [c.near_misses for c in report.calls] == [[], []]


# ---------------------------------------------------------------- text
def test_text_for_a_terminal():
    report = explain(module(convnet, (1, 3, 16, 16)))
    text = report.to_text()
    assert text.startswith("5 of 6 calls and 98.4 % of 127 kFLOP go to dnnl, in 2 regions")
    assert "'dnnl' does not take relax.cumsum" in text
    assert "cumsum stands between regions of dnnl 1 time" in text
    assert max(map(len, text.splitlines())) <= 110
    assert "\x1b" not in text and "\x1b" in report.to_text(color=True)
    assert str(report) == text
    every = report.to_text(every_call=True)
    assert "float32[1, 2048]" in every and "float32[1, 2048]" not in text


def test_text_of_a_model_that_stays():
    text = explain(module(lambda bb, x: relax.op.sin(x), (4,))).to_text()
    assert "0 of 1 call and 0 % of 4 FLOP go to dnnl, in 0 regions" in text
    assert "Regions" not in text


def test_nothing_is_lost_in_a_narrow_terminal():
    text = explain(module(convnet, (1, 3, 16, 16))).to_text(width=60)
    assert "relax.cumsum" in "".join(line.strip() for line in text.splitlines())


def test_what_a_policy_decided_is_a_reason():
    policy, mod = RegionPolicy(exclude=["relax.nn.relu"]), module(convnet, (1, 3, 16, 16))
    for report in (explain(mod, policy=policy), explain(byoc.partition(mod, policy=policy))):
        assert by_op(report)["relax.nn.relu"].reasons == ["dnnl: policy: excluded by 'relax.nn.relu'"]


def test_a_region_that_could_not_be_built_is_a_reason(picky):
    byoc.register_codegen(picky, lambda functions, options, constants: [], override=True)
    (call,) = explain(module(lambda bb, x: nn.relu(x), (4,)), picky).calls
    assert call.compiler is None
    assert len(call.reasons) == 1 and call.reasons[0].startswith(f"{picky}: codegen: ")


# ---------------------------------------------------------------- names of ONNX nodes
def _named_model() -> onnx.ModelProto:
    """Nodes with names and without, one that is rewritten, one of several calls, and one that stays with TVM."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="stem/conv"),
        helper.make_node("BatchNormalization", ["c", "s", "s", "s", "s"], ["n"], name="stem/norm"),
        helper.make_node("HardSwish", ["n"], ["h"], name="act"),
        helper.make_node("GlobalAveragePool", ["h"], ["p"]),
        helper.make_node("CumSum", ["p", "axis"], ["y"], name="sum:0"),
    ]
    constants = {"w": np.ones((4, 3, 3, 3), "float32"), "s": np.ones(4, "float32"), "axis": np.array(1)}
    return onnx_model(nodes, {"x": (1, 3, 8, 8)}, constants)


@pytest.mark.native
def test_each_call_has_the_name_of_its_onnx_node():
    report = byoc.explain(_named_model())
    assert all(call.onnx_node for call in report.calls)
    found: dict = {}
    for call in report.calls:
        found.setdefault(call.onnx_node, []).append(call.op)
    assert "relax.nn.conv2d" in found["stem/conv"]
    assert found["sum:0"] == ["relax.cumsum"]
    assert found["p"] == ["relax.mean"]
    assert set(found) <= {"stem/conv", "stem/norm", "act", "p", "sum:0"}
    assert "nodes: sum:0" in report.to_text()
    assert "stem/conv" in report.to_text(every_call=True)
    assert "stem/conv" in report.to_html()
    assert "stem/conv" in report.to_json()


@pytest.mark.native
def test_each_use_of_a_region_names_its_own_nodes():
    nodes = []
    for i, (start, end) in enumerate([("x", "a"), ("a", "y")]):
        nodes += [
            helper.make_node("Exp", [start], [f"e{i}"], name=f"exp{i}"),
            helper.make_node("CumSum", [f"e{i}", "axis"], [end], name=f"sum{i}"),
        ]
    model = onnx_model(nodes, {"x": (4, 5)}, {"axis": np.array(1)})
    calls = [c for c in byoc.explain(model, policy=byoc.RegionPolicy()).calls if c.op == "relax.exp"]
    assert [(c.region, c.use, c.onnx_node) for c in calls] == [("dnnl_0", 0, "exp0"), ("dnnl_0", 1, "exp1")]


def test_a_relax_module_has_no_onnx_names():
    report = byoc.explain(module(lambda b, x: b.emit(relax.op.nn.relu(x)), (2, 3)))
    assert [c.onnx_node for c in report.calls] == [None]
    assert "ONNX node" not in report.to_text(every_call=True)


def test_a_verdict_is_that_of_the_options_that_the_regions_will_have():
    seen = []

    def lower(g, call):
        seen.append(g.graph.options["precision"])
        if seen[-1] == "short":
            raise byoc.Reject("this device multiplies no short numbers")
        return g.emit("matmul", [g.value(a) for a in call.args], (4, 4), "float32")

    byoc.register_lowering("precise_npu", "relax.matmul", lower)
    codegen = byoc.portable_codegen("precise_npu", no_code, options={"precision": "long"})
    byoc.register_codegen("precise_npu", codegen)
    try:
        mod = module(lambda bb, a, b: relax.op.matmul(a, b), (4, 4), (4, 4))
        for precision, taken in (("long", 1), ("short", 0)):
            seen.clear()
            wanted = byoc.set_target_options(mod, "precise_npu", precision=precision)
            annotated = byoc.AnnotateExternalCompiler("precise_npu")(wanted)
            assert sum(bool(byoc.composite_of(f)) for f in annotated.functions.values()) == taken
            assert set(seen) == {precision}
        (call,) = byoc.explain(mod, "precise_npu", options={"precise_npu": {"precision": "short"}}).calls
        assert call.reasons == ["precise_npu: this device multiplies no short numbers"]
    finally:
        byoc.unregister_compiler("precise_npu")


def test_the_reason_of_a_codegen_is_shown_for_the_calls_of_a_pattern_too():
    def codegen(functions, options, names):
        raise byoc.Reject("5 MB of 4 MB on the chip")

    sign_relu = is_op("relax.nn.relu")(is_op("relax.sign")(wildcard()))
    byoc.register_pattern("small_npu", "sign_relu", sign_relu)
    byoc.register_codegen("small_npu", codegen)
    try:
        report = byoc.explain(module(lambda bb, x: nn.relu(bb.emit(relax.op.sign(x))), (4, 4)), "small_npu")
    finally:
        byoc.unregister_compiler("small_npu")
    assert [c.reasons for c in report.calls] == [["small_npu: codegen: 5 MB of 4 MB on the chip"]] * 2
