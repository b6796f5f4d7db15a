"""A network quantised by ONNX Runtime, in both of its forms: products on integers, and the reference's numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat

import tvm_byoc_dnnl as byoc
from bench.int8 import quantized
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.ir.relax_utils import codegen_of
from tvm_byoc_dnnl.testing.models import ort_run
from tvm_byoc_dnnl.vendors.namespaces import namespace
from tvm_byoc_dnnl.vendors.portable import lower_region

_PRODUCTS = ("convolution", "matmul")


def network() -> onnx.ModelProto:
    """Convolutions, plain and depthwise, a residual sum, poolings and a fully connected layer."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def constant(name: str, *shape: int) -> str:
        size = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.1
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) * size).astype("float32"), name))
        return name

    def conv(x: str, y: str, outputs: int, inputs: int, kernel: int, **attrs: int) -> str:
        names = [x, constant(f"{y}_w", outputs, inputs, kernel, kernel), constant(f"{y}_b", outputs)]
        nodes.append(helper.make_node("Conv", names, [y], pads=[kernel // 2] * 4, **attrs))
        return y

    def add(op: str, inputs: list[str], output: str, **attrs: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attrs))
        return output

    x = add("Relu", [conv("x", "c0", 16, 3, 3)], "r0")
    x = add("MaxPool", [x], "p0", kernel_shape=[2, 2], strides=[2, 2])
    y = add("Relu", [conv(x, "c1", 16, 1, 3, group=16)], "r1")
    x = add("Relu", [add("Add", [conv(y, "c2", 16, 16, 1), x], "sum")], "r2")
    x = add("Flatten", [add("GlobalAveragePool", [x], "mean")], "flat")
    add("Gemm", [x, constant("fc", 10, 16), constant("fc_b", 10)], "y", transB=1)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, [1, 3, 16, 16])], [info("y", 1, [1, 10])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator], ids=["qdq", "qoperator"])
def test_products_are_on_integers_and_the_drift_is_bounded(form):
    model = quantized(network(), form)
    passes = tvm.transform.Sequential([byoc.AnnotateExternalCompiler("dnnl"), byoc.PartitionGraph()])
    module = passes(to_relax(model))
    products = []
    for func in module.functions.values():
        if codegen_of(func):
            graph = lower_region(namespace("dnnl"), func, "region")
            products += [(n.kind, [graph.tensors[t].dtype for t in n.inputs[:2]]) for n in graph.nodes]
    products = [dtypes for kind, dtypes in products if kind in _PRODUCTS]
    assert len(products) == 4
    assert all(dtypes[1] == "int8" and dtypes[0] in ("uint8", "int8") for dtypes in products), products
    run = byoc.Runner(byoc.compile(model))
    in_float = quantized(network(), QuantFormat.QDQ)  # ONNX Runtime's sums of integers saturate without VNNI
    same = 0
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal((1, 3, 16, 16), dtype="float32")
        got, (want,) = np.asarray(run(x)).reshape(-1), ort_run(in_float, {"x": x})
        want = want.reshape(-1)
        assert got @ want >= 0.999 * np.linalg.norm(got) * np.linalg.norm(want)
        same += got.argmax() == want.argmax()
    assert same >= 19


def graphs_of(model):
    passes = tvm.transform.Sequential([byoc.AnnotateExternalCompiler("dnnl"), byoc.PartitionGraph()])
    functions = passes(to_relax(model)).functions.values()
    return [lower_region(namespace("dnnl"), f, "region") for f in functions if codegen_of(f)]


def products_of(graphs):
    return [
        (n.kind, *(g.tensors[t].dtype for t in (*n.inputs[:2], *n.outputs)))
        for g in graphs
        for n in g.nodes
        if n.kind in _PRODUCTS
    ]


@pytest.mark.parametrize("weights", ["int8", "uint8"])
@pytest.mark.parametrize("kind", ["MatMulInteger", "ConvInteger"])
def test_dynamic_quantisation_multiplies_integers(kind, weights):
    """Scale and zero point of the source are known when the model runs; the weights have a zero point as well."""
    rng = np.random.default_rng(3)
    is_conv = kind == "ConvInteger"
    shape, of_weights = ((1, 5, 9, 9), (12, 5, 3, 3)) if is_conv else ((7, 33), (33, 12))
    limits = np.iinfo(weights)
    w = rng.integers(limits.min, limits.max, of_weights, weights, endpoint=True)
    zero = np.array(3 if weights == "int8" else 131, weights)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node(kind, ["q", "w", "z", "wz"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["real"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "s"], ["y"]),
    ]
    result = (1, 12, 7, 7) if is_conv else (7, 12)
    info = helper.make_tensor_value_info
    made = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(zero, "wz")]
    graph = helper.make_graph(nodes, "g", [info("x", 1, shape)], [info("y", 1, result)], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    expected = ("convolution" if is_conv else "matmul", "uint8", weights, "float32")
    assert products_of(graphs_of(model)) == [expected]
    x = rng.standard_normal(shape).astype("float32")
    parts = [info("q", 2, shape), info("s", 1, []), info("z", 2, [])]
    first = helper.make_graph(nodes[:1], "g", [info("x", 1, shape)], parts)
    q, s, z = ort_run(helper.make_model(first, opset_imports=model.opset_import, ir_version=8), {"x": x})
    got = np.asarray(byoc.Runner(byoc.compile(model))(x))
    whole = q.astype("int64") - int(z), w.astype("int64") - int(zero)
    if is_conv:
        seen = np.lib.stride_tricks.sliding_window_view(whole[0], (3, 3), (2, 3))
        wanted = np.einsum("nihwyx,oiyx->nohw", seen, whole[1]) * float(s)
    else:
        wanted = whole[0] @ whole[1] * float(s)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=float(s) * 1e-3)


def test_layers_with_dynamic_quantisation_are_one_region():
    """Nothing of them stays with TVM: scales, zero points and sums need no conversion that oneDNN does otherwise."""
    rng = np.random.default_rng(5)
    nodes, weights, source = [], [numpy_helper.from_array(np.float32(0.01), "unit")], "x"
    for i in range(2):
        # so small that the sums of ONNX Runtime do not saturate without VNNI
        weights.append(numpy_helper.from_array(rng.integers(-63, 63, (32, 32), "int8"), f"w{i}"))
        q, s, z, whole, real, scale, y, out = (f"{name}{i}" for name in "qszWRSYo")
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [source], [q, s, z]),
            helper.make_node("MatMulInteger", [q, f"w{i}", z], [whole]),
            helper.make_node("Cast", [whole], [real], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [s, "unit"], [scale]),
            helper.make_node("Mul", [real, scale], [y]),
            helper.make_node("Relu", [y], [out]),
        ]
        source = out
    info = helper.make_tensor_value_info
    outputs = [info("o1", 1, [7, 32]), info("s0", 1, []), info("z0", 2, [])]
    graph = helper.make_graph(nodes, "g", [info("x", 1, [7, 32])], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (region,) = graphs_of(model)
    products = [n for n in region.nodes if n.kind in _PRODUCTS]
    assert [[op.alg for op in product.post_ops] for product in products] == [["mul", "relu"]] * 2
    report = byoc.explain(model)
    assert {call.compiler for call in report.calls} == {"dnnl"}, report.to_text()
    run = byoc.Runner(byoc.compile(model))
    for x in (rng.standard_normal((7, 32)), rng.uniform(1, 2, (7, 32)), -rng.uniform(1, 2, (7, 32)), np.zeros((7, 32))):
        x = x.astype("float32")
        for got, want in zip(run(x), ort_run(model, {"x": x}), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


#: how a bias of integers is made, after `ratio`, which is bias / scale
_BIASES = {
    "floor": [("Floor", ["ratio"], ["low"], {}), ("Cast", ["low"], ["bias"], {"to": 6})],
    "round": [("Round", ["ratio"], ["low"], {}), ("Cast", ["low"], ["bias"], {"to": 6})],
    "constant": [("Identity", ["known"], ["bias"], {})],
    "open": [("Cast", ["ratio"], ["bias"], {"to": 6})],  # which rounds towards zero: it stays an integer
}


@pytest.mark.parametrize("form", _BIASES)
@pytest.mark.parametrize("kind", ["MatMulInteger", "ConvInteger"])
def test_a_bias_of_integers_belongs_to_the_product(kind, form):
    """It is added before the scale; sums beyond 2²⁴ are rounded as the integers are."""
    rng = np.random.default_rng(9)
    is_conv, op = kind == "ConvInteger", "Sub" if form == "round" else "Add"
    shape, of_weights = ((1, 5, 9, 9), (12, 5, 3, 3)) if is_conv else ((7, 33), (33, 12))
    bias = (rng.standard_normal(12) * 10.0 ** rng.integers(-2, 4, 12)).astype("float32")
    constants = {
        "w": rng.integers(-63, 63, of_weights, "int8"),
        "unit": np.float32(1e-4),
        "b": bias,
        "known": (bias * 1e4).astype("int32") // 16 * 16,
        "sizes": np.array([1, -1, 1, 1] if is_conv else [1, -1]),
    }
    rows = [
        ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}),
        ("Mul", ["s", "unit"], ["scale"], {}),
        ("Div", ["b", "scale"], ["ratio"], {}),
        *_BIASES[form],
        ("Reshape", ["bias", "sizes"], ["shaped"], {}),
        (kind, ["q", "w", "z"], ["whole"], {}),
        (op, ["whole", "shaped"], ["sum"], {}),
        ("Cast", ["sum"], ["real"], {"to": 1}),
        ("Mul", ["real", "scale"], ["y"], {}),
        ("Relu", ["y"], ["o"], {}),
    ]
    info = helper.make_tensor_value_info
    nodes = [helper.make_node(name, inputs, outputs, **attrs) for name, inputs, outputs, attrs in rows]
    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [info("x", 1, shape)], [info("o", 1, None)], made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if form != "open":
        report = byoc.explain(model)
        assert {call.compiler for call in report.calls} == {"dnnl"}, report.to_text()
        (region,) = graphs_of(model)
        (product,) = [n for n in region.nodes if n.kind in _PRODUCTS]
        first = [] if form == "constant" else [op.lower()]  # a constant is the bias that oneDNN knows
        assert [step.alg for step in product.post_ops] == [*first, "mul", "relu"]
    run = byoc.Runner(byoc.compile(model))
    for x in (rng.standard_normal(shape), np.zeros(shape)):
        x = x.astype("float32")
        np.testing.assert_allclose(np.asarray(run(x)), ort_run(model, {"x": x})[0], rtol=1e-6)


def test_a_sum_without_a_product_wraps():
    """Integers are added as integers there: what an int32 cannot say counts as its lowest."""
    nodes = [
        helper.make_node("Floor", ["x"], ["low"]),
        helper.make_node("Cast", ["low"], ["a"], to=onnx.TensorProto.INT32),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    info, b = helper.make_tensor_value_info, np.array([3, 5, 7, 16], "int32")
    graph = helper.make_graph(nodes, "g", [info("x", 1, [4])], [info("y", 1, [4])], [numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.array([1.5, np.nan, 3e9, -7.5], "float32")
    np.testing.assert_array_equal(byoc.Runner(byoc.compile(model))(x), ort_run(model, {"x": x})[0])


def test_a_range_is_read_as_it_lies():
    """Minimum and maximum of an image look for a NaN once, and need no other layout."""
    rng = np.random.default_rng(11)
    shape, w = (1, 32, 9, 7), rng.standard_normal((32, 32, 3, 3)).astype("float32")
    results = ["q", "s", "z"]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("DynamicQuantizeLinear", ["c"], results)]
    info = helper.make_tensor_value_info
    outputs = [info(name, *kind) for name, kind in zip(results, [(2, None), (1, []), (2, [])], strict=True)]
    graph = helper.make_graph(nodes, "g", [info("x", 1, shape)], outputs, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (region,) = graphs_of(model)
    tested = [n.inputs for n in region.nodes if n.kind == "binary" and n.attrs["alg"] == "ne"]
    assert len(tested) == len(set(tested)) == 1
    run = byoc.Runner(byoc.compile(model))
    x = rng.standard_normal(shape).astype("float32")
    got, want = run(x), ort_run(model, {"x": x})
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    assert np.abs(got[0].astype("int32") - want[0]).max() <= 1


_WITHOUT_VNNI = """
from dataclasses import replace
import numpy as np
from tests.patterns.dnnl.test_quantized import link, within_a_step
from tvm_byoc_dnnl.patterns.dnnl.library import describe

def product(case):
    (graph,) = case.graphs()
    names = describe(graph).implementations
    return next(name for node, name in zip(graph.nodes, names, strict=True) if node.kind == "convolution")

source = (1, 33, 9, 9)
worst = [link(source, (40, 33, k, k), pad=k // 2, worst=True, source=s) for k in (1, 3) for s in ("uint8", "int8")]
worst.append(link((1, 40, 9, 9), (40, 1, 3, 3), pad=1, worst=True, groups=40))
for case in worst:
    assert product(case).startswith("integer"), product(case)
    within_a_step(case)

case = link((1, 64, 9, 9), (32, 64, 1, 1), worst=True)
within_a_step(case)
fast = replace(case, options={"dnnl": {"int8": "saturating"}})
wanted = case.reference(*[a.astype("float64") for a in case.arrays])
off = np.abs(fast.run()[0].astype("float64") - wanted)
assert not product(fast).startswith("integer"), product(fast)
assert off.max() > 1, "it does not saturate: then there is nothing to trade"

small = link(source, (40, 33, 1, 1), worst=True, most=64)
within_a_step(small)
assert small.graphs()[0].nodes[-1].attrs["alg"] == "saturating"
"""


def test_sums_are_exact_without_vnni_unless_the_user_says_otherwise():
    """On AVX2, in a process of its own, since oneDNN reads the limit once."""
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", _WITHOUT_VNNI], env=env, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
