"""A network quantised by ONNX Runtime, in both of its forms: products on integers, and the reference's numbers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat

import tvm_byoc_dnnl as byoc
from bench.int8 import quantized
from tvm_byoc_dnnl.codegen.region import lower_region
from tvm_byoc_dnnl.frontend import to_relax
from tvm_byoc_dnnl.namespaces import namespace
from tvm_byoc_dnnl.relax_utils import codegen_of
from tvm_byoc_dnnl.testing.models import ort_run

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
    same = 0
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal((1, 3, 16, 16), dtype="float32")
        got, (want,) = np.asarray(run(x)).reshape(-1), ort_run(model, {"x": x})
        want = want.reshape(-1)
        assert got @ want >= 0.999 * np.linalg.norm(got) * np.linalg.norm(want)
        same += got.argmax() == want.argmax()
    assert same >= 19
