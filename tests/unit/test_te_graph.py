"""TEGraph: anchor, name, text, drawing; and the second stage, schedules."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import relax, s_tir, te, tirx
from tvm.relax import op as R

from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.te import schedule_te, translate_to_te


def function(params, body):
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(body(builder)))
    return builder.get()["main"]


def attention(scale=0.5, width=8):
    q, k, v = (relax.Var(n, relax.TensorType((6, width), "float32")) for n in "qkv")
    ones = relax.const(np.ones((6, width), "float32"))

    def body(builder):
        scores = R.multiply(R.matmul(q, R.permute_dims(k)), relax.const(scale))
        return R.matmul(R.nn.softmax(scores), R.add(v, ones))

    return function([q, k, v], body)


def test_anchor_is_the_heaviest_reduction():
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    w = relax.const(np.ones((4, 3, 3, 3), "float32"))
    graph = translate_to_te(function([x], lambda b: R.nn.softmax(R.nn.relu(R.nn.conv2d(x, w, padding=1)))))
    assert graph.anchor.op == "relax.nn.conv2d"
    assert graph.anchor.iterations == 3 * 10 * 10 + 4 * 8 * 8 * 27


def test_anchor_without_reduction():
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    assert translate_to_te(function([x], lambda b: R.exp(x))).anchor.op == "relax.exp"


def test_equal_graphs_share_a_name_and_others_do_not():
    names = [translate_to_te(attention(*args)).name for args in ((), (), (0.25,), (0.5, 16))]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"te_[a-z0-9_]+", name) for name in names)


def test_text_shows_every_stage():
    text = str(translate_to_te(attention()))
    for line in (
        "anchor relax.matmul",
        "input     q: float32[6, 8]",
        "constant  const_0: float32[6, 8]",
        "relax.nn.softmax [tvm]",
        "T_softmax_maxelem: float32[6] reduce(k:6)",
        "output    matmul: float32[6, 8]",
    ):
        assert line in text


def test_dot_declares_what_it_connects():
    graph = translate_to_te(attention())
    dot = graph.to_dot()
    assert dot.count("{") == dot.count("}")
    declared = set(re.findall(r"^\s*(\w+) \[label=", dot, re.M))
    edges = re.findall(r"^\s*(\w+) -> (\w+);", dot, re.M)
    assert {end for edge in edges for end in edge} == declared
    assert len(declared) == 3 + 1 + sum(len(node.stages) for node in graph.nodes) + 1
    assert dot.count("subgraph") == len(graph.nodes)
    assert dot.count("style=bold") == 1


def test_primfunc_is_private_unless_named():
    graph = translate_to_te(attention())
    assert "global_symbol" not in graph.to_primfunc().attrs
    assert graph.to_primfunc("attention").attrs["global_symbol"] == "attention"


def test_call_checks_its_arguments():
    graph = translate_to_te(attention())
    with pytest.raises(InputError, match="got 1 arguments, expected 3"):
        graph.call(relax.BlockBuilder(), [relax.const(1.0)])


def test_blocks_of_stages_with_one_name():
    x, y = (relax.Var(n, relax.TensorType((4, s), "float32")) for n, s in (("x", 5), ("y", 6)))
    graph = translate_to_te(
        function([x, y], lambda b: relax.Tuple([R.exp(R.sum(y, axis=[1])), R.sum(R.exp(x), axis=[0])]))
    )
    sch = s_tir.Schedule(graph.to_primfunc())
    blocks = graph.blocks(sch)
    assert len(blocks) == 4
    for stage, block in blocks.items():
        extents = [int(axis.dom.extent) for axis in (*stage.axis, *stage.reduce_axis)]
        assert [int(sch.get(loop).extent) for loop in sch.get_loops(block)] == extents


# -- schedules -----------------------------------------------------------------------------------------------


def execute(func, graph, *arrays):
    out = [tvm.runtime.tensor(np.zeros([int(d) for d in o.shape], "float32")) for o in graph.outputs]
    inputs = [tvm.runtime.tensor(a) for a in arrays] + [constant.value for constant in graph.constants]
    tvm.compile(func.with_attr("global_symbol", "main"), "llvm")(*inputs, *out)
    return out[0].numpy()


def row_softmax(shape=(64, 128)):
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    return translate_to_te(function([x], lambda b: R.nn.softmax(x)))


def test_default_rules_schedule_a_reduction():
    graph = row_softmax()
    func = schedule_te(graph)
    assert func.attrs["tirx.is_scheduled"]
    assert "global_symbol" not in func.attrs
    assert "T.parallel" in func.script()
    x = np.random.default_rng(0).uniform(-1, 1, (64, 128)).astype("float32")
    assert_right(execute(func, graph, x), execute(graph.to_primfunc(), graph, x))


def test_default_rules_leave_what_they_cannot_take():
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    graph = translate_to_te(
        function([x], lambda b: relax.Tuple([R.sum(x), R.exp(x), R.max(x, axis=[0])])),
    )
    assert schedule_te(graph).script() == graph.to_primfunc().script()


def parallel_rows(sch, graph):
    sch.parallel(sch.get_loops(graph.blocks(sch)[graph.anchor.stages[-1]])[0])


@pytest.mark.parametrize("form", ["in_place", "schedule", "primfunc"])
def test_own_scheduler(form):
    def scheduler(sch, graph):
        assert tvm.target.Target.current().kind.name == "llvm"
        parallel_rows(sch, graph)
        return {"in_place": None, "schedule": sch, "primfunc": sch.mod["main"]}[form]

    graph = row_softmax((4, 8))
    func = schedule_te(graph, "llvm", scheduler)
    assert isinstance(func, tirx.PrimFunc)
    assert "T.parallel(T.int64(4))" in func.script()
    x = np.ones((4, 8), "float32")
    assert_right(execute(func, graph, x), np.full((4, 8), 1 / 8, "float32"), 1e-5, elementwise=True)


def test_scheduler_of_the_wrong_type():
    with pytest.raises(InputError, match="the scheduler returned int, expected None, a Schedule or a PrimFunc"):
        schedule_te(row_softmax((4, 8)), scheduler=lambda sch, graph: 1)


def test_stages_are_te_operations():
    graph = row_softmax((4, 8))
    assert all(isinstance(stage, te.ComputeOp) for node in graph.nodes for stage in node.stages)
