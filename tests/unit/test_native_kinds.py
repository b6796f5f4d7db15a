"""Every kind of node, alone and between others, against NumPy in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.graph_reference import BINARY, GraphBuilder
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.patterns.dnnl.library import source_build
from tvm_byoc_dnnl.runtime.comparison import differences

pytestmark = pytest.mark.native

RELU = [{"kind": "eltwise", "alg": "relu", "alpha": 0.0, "beta": 0.0}]


def window(rank: int, stride: int = 1, dilation: int = 1, pad: int = 0, end: int | None = None) -> dict:
    ends = [pad if end is None else end] * rank
    return {
        "strides": [stride] * rank,
        "dilations": [dilation] * rank,
        "pad_begin": [pad] * rank,
        "pad_end": ends,
    }


def execute(g: GraphBuilder, arguments: list[np.ndarray]) -> list[np.ndarray]:
    return _run(_native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", g.name, g.json(), g.const_names()), g, arguments)


def _run(module: Any, g: GraphBuilder, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs; those that are written over an input are that argument."""
    import tvm_ffi

    module[f"__init_{g.name}"]([tvm_ffi.from_dlpack(np.asarray(v, order="C")) for v in g.values])
    outputs = [np.full(g.tensors[i]["shape"], 77, g.tensors[i]["dtype"]) for i in g.outputs]
    for entry, argument in zip((i for i in g.inputs if "tensor" in i), arguments, strict=True):
        if "alias" in entry:
            outputs[entry["alias"]] = argument
    module[g.name](*map(tvm_ffi.from_dlpack, [*arguments, *outputs]))
    return outputs


def run_emitted(g: GraphBuilder, arguments: list[np.ndarray], folder: Path) -> list[np.ndarray]:
    """The results of source that was emitted for the graph, compiled as functions of TVM."""
    import tvm

    code = _native.function("tvm_byoc_dnnl.Emit")("dnnl", g.json(), g.const_names(), True)
    code += f"\nconst uint64_t {g.name}_checksums[{len(g.const_names()) + 1}] = {{0}};\n"  # 0: not known
    source = tvm.get_global_func("runtime.CSourceModuleCreate")(code, "c", [g.name], g.const_names())
    build = source_build()
    source.export_library(folder / "region.so", options=[*build.compile_options, *build.link_options])
    return _run(tvm.runtime.load_module(folder / "region.so"), g, arguments)


def check(g: GraphBuilder, arguments: list[np.ndarray], tolerance: float = 1e-4) -> None:
    got = execute(g, arguments)
    with np.errstate(all="ignore"):
        want = [w.astype(g.tensors[i]["dtype"]) for w, i in zip(g.evaluate(arguments), g.outputs, strict=True)]
    wrong = differences(got, want, tolerance)
    assert not wrong, wrong


def probe(g: GraphBuilder) -> dict:
    return json.loads(_native.function("tvm_byoc_dnnl.Probe")("dnnl", [g.json()])[0])


def single(kind: str, shapes: list, out: Any, *, constants: Any = (), positive: bool = False, **attrs: Any):
    """A graph of one node with random inputs (those numbered in `constants` are constants), and its arguments."""
    rng = np.random.default_rng(0)
    g, ids, arguments = GraphBuilder(), [], []
    for i, shape in enumerate(shapes):
        value = np.asarray(rng.random(shape) + 0.5 if positive else rng.standard_normal(shape), "float32")
        if i in constants:
            ids.append(g.constant(value))
        else:
            ids.append(g.input(shape))
            arguments.append(value)
    g.outputs = [g.node(kind, ids, out, **attrs)]
    return g, arguments


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("src", "weights", "bias", "out", "attrs", "constants"),
    [
        pytest.param((1, 3, 9), (17, 3, 3), 17, (1, 17, 9), {"pad": 1}, (1, 2), id="prime"),
        pytest.param((2, 8, 9), (2, 5, 4, 3), 0, (2, 10, 4), {"stride": 2}, (1,), id="grouped"),
        pytest.param((1, 32, 9), (32, 1, 1, 3), 32, (1, 32, 9), {"pad": 1}, (1, 2), id="depthwise"),
        pytest.param((1, 16, 9), (16, 16, 3), 0, (1, 16, 5), {"dilation": 2}, (), id="runtime_weights"),
        pytest.param((1, 1, 1), (1, 1, 1), 1, (1, 1, 1), {}, (1, 2), id="ones"),
        pytest.param((0, 3, 9), (4, 3, 3), 4, (0, 4, 7), {}, (1, 2), id="no_batch"),
    ],
)
def test_convolution(rank, src, weights, bias, out, attrs, constants):
    widen = lambda shape: (*shape, *[shape[-1]] * (rank - 1))  # noqa: E731
    shapes = [widen(src), widen(weights), *([(bias,)] if bias else [])]
    check(*single("convolution", shapes, widen(out), constants=constants, **window(rank, **attrs)))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("weights", "bias", "out", "attrs"),
    [
        pytest.param((8, 16, 3), 8, (1, 8, 10), {"stride": 2, "pad": 1, "end": 0}, id="asymmetric"),
        pytest.param((2, 4, 8, 4), 0, (1, 8, 10), {"stride": 2, "pad": 1}, id="grouped"),
        pytest.param((7, 16, 2), 0, (1, 7, 11), {"stride": 2, "end": -1}, id="output_padding"),
    ],
)
def test_deconvolution(rank, weights, bias, out, attrs):
    widen = lambda shape: (*shape, *[shape[-1]] * (rank - 1))  # noqa: E731
    shapes = [widen((1, 16, 5)), widen(weights), *([(bias,)] if bias else [])]
    check(*single("deconvolution", shapes, widen(out), constants=(1, 2), **window(rank, **attrs)))


@pytest.mark.parametrize(
    ("shapes", "out", "constants"),
    [
        ([(5, 7), (7, 11), (1, 11)], (5, 11), (1, 2)),
        ([(5, 7), (7, 11)], (5, 11), ()),
        ([(1, 128), (128, 1000), (1, 1000)], (1, 1000), (1, 2)),
        ([(2, 3, 5, 7), (2, 3, 7, 11)], (2, 3, 5, 11), ()),
        ([(2, 3, 5, 7), (1, 1, 7, 11)], (2, 3, 5, 11), (1,)),
        ([(2, 3, 5, 7), (1, 3, 7, 11)], (2, 3, 5, 11), ()),
        ([(1, 1, 5, 7), (2, 3, 7, 11)], (2, 3, 5, 11), ()),
        ([(4, 5, 7), (1, 7, 11), (1, 1, 11)], (4, 5, 11), (1, 2)),
        ([(0, 7), (7, 11)], (0, 11), (1,)),
        ([(5, 0), (0, 11)], (5, 11), ()),
        ([(5, 0), (0, 11), (1, 11)], (5, 11), (2,)),
        ([(1, 1), (1, 1)], (1, 1), ()),
    ],
    ids=str,
)
def test_matmul(shapes, out, constants):
    check(*single("matmul", shapes, out, constants=constants))


@pytest.mark.parametrize("transposed", ["src", "weights", "both"])
def test_matmul_reads_transposed_views(transposed):
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    src_shape = (3, 7, 5) if transposed != "weights" else (3, 5, 7)
    weights_shape = (3, 11, 7) if transposed != "src" else (3, 7, 11)
    src, weights = g.input(src_shape), g.input(weights_shape)
    arguments = [rng.standard_normal(s).astype("float32") for s in (src_shape, weights_shape)]
    if transposed != "weights":
        src = g.node("permute", [src], (3, 5, 7), axes=[0, 2, 1])
    if transposed != "src":
        weights = g.node("permute", [weights], (3, 7, 11), axes=[0, 2, 1])
    g.outputs = [g.node("matmul", [src, weights], (3, 5, 11))]
    check(g, arguments)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("alg", ["max", "avg_include_padding", "avg_exclude_padding"])
@pytest.mark.parametrize(("attrs", "size"), [({"stride": 2, "pad": 1}, 5), ({"pad": 1, "end": 2}, 10)])
def test_pooling(rank, alg, attrs, size):
    shape, out = (2, 7, *[9] * rank), (2, 7, *[size] * rank)
    check(*single("pooling", [shape], out, alg=alg, kernel=[3] * rank, **window(rank, **attrs)))


ELTWISE = {
    "relu": (0.1, 0.0),
    "tanh": (0.0, 0.0),
    "elu": (0.7, 0.0),
    "square": (0.0, 0.0),
    "abs": (0.0, 0.0),
    "sqrt": (0.0, 0.0),
    "linear": (2.0, 3.0),
    "soft_relu": (2.0, 0.0),
    "hardsigmoid": (0.2, 0.5),
    "mish": (0.0, 0.0),
    "logistic": (0.0, 0.0),
    "exp": (0.0, 0.0),
    "gelu_tanh": (0.0, 0.0),
    "gelu_erf": (0.0, 0.0),
    "swish": (1.5, 0.0),
    "log": (0.0, 0.0),
    "clip": (0.7, 1.2),
    "pow": (2.0, 0.5),
    "round": (0.0, 0.0),
    "hardswish": (1 / 6, 0.5),
}


@pytest.mark.parametrize("alg", ELTWISE)
@pytest.mark.parametrize("shape", [(3, 17), (), (2, 1, 3, 1, 2, 2, 2), (0, 3)], ids=str)
def test_eltwise(alg, shape):
    alpha, beta = ELTWISE[alg]
    positive = alg in ("sqrt", "log", "pow")
    check(*single("eltwise", [shape], shape, positive=positive, alg=alg, alpha=alpha, beta=beta))


@pytest.mark.parametrize("alg", BINARY)
def test_binary(alg):
    check(*single("binary", [(2, 3, 4, 5), (2, 3, 4, 5)], (2, 3, 4, 5), positive=True, alg=alg))


@pytest.mark.parametrize("alg", ["sub", "gt"])
@pytest.mark.parametrize("swapped", [False, True], ids=["second", "first"])
@pytest.mark.parametrize(
    "shape", [[1 if bit & 1 << i else d for i, d in enumerate((2, 3, 4, 5))] for bit in range(16)], ids=str
)
def test_binary_broadcasts(alg, swapped, shape):
    shapes = [(2, 3, 4, 5), shape]
    g, arguments = single("binary", shapes[::-1] if swapped else shapes, (2, 3, 4, 5), alg=alg)
    assert probe(g)["ok"], probe(g)
    check(g, arguments)


@pytest.mark.parametrize(
    ("shapes", "out"),
    [
        ([(4, 1), (1, 5)], (4, 5)),
        ([(), ()], ()),
        ([(1, 3, 1), (2, 1, 4)], (2, 3, 4)),
        ([(2, 3, 4, 2, 2, 2), (2, 3, 1, 2, 2, 1)], (2, 3, 4, 2, 2, 2)),
        ([(0, 3), (1, 3)], (0, 3)),
    ],
    ids=str,
)
def test_binary_of_odd_ranks(shapes, out):
    check(*single("binary", shapes, out, alg="mul"))


@pytest.mark.parametrize("weights", [(1, 3, 1, 1), (1, 1, 1, 1), (2, 3, 4, 5), (1, 1, 1, 5)], ids=str)
def test_prelu(weights):
    check(*single("prelu", [(2, 3, 4, 5), weights], (2, 3, 4, 5), constants=(1,)))


@pytest.mark.parametrize("alg", ["accurate", "log"])
@pytest.mark.parametrize("axis", range(4))
def test_softmax(alg, axis):
    g, arguments = single("softmax", [(2, 3, 4, 5)], (2, 3, 4, 5), alg=alg, axis=axis)
    assert probe(g)["ok"], probe(g)
    check(g, arguments)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5), (2, 16, 7)], ids=str)
@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4)])
def test_batch_normalization(shape, constants):
    shapes = [shape, *[shape[1:2]] * 4]
    attrs = {"positive": True, "epsilon": 1e-3}
    check(*single("batch_normalization", shapes, shape, constants=constants, **attrs))


@pytest.mark.parametrize("shape", [(2, 3), (2, 16, 4, 5), (1, 1, 7)], ids=str)
@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4)])
@pytest.mark.parametrize("widths", [(5, 0), (3,) * 70], ids=["few", "many"])
def test_batch_normalization_of_parts(shape, constants, widths):
    batch, channels, *rest = shape
    joined = (batch, channels + sum(widths), *rest)
    shapes = [shape, *[joined[1:2]] * 4, *((batch, width, *rest) for width in widths)]
    check(*single("batch_normalization", shapes, joined, constants=constants, positive=True, epsilon=1e-3))


@pytest.mark.parametrize("parameters", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 19), (2, 5, 19), (2, 3, 5, 16)], ids=str)
def test_layer_normalization(shape, parameters):
    shapes = [shape, *[shape[-1:]] * parameters]
    check(*single("layer_normalization", shapes, shape, constants=(1, 2)[:parameters], epsilon=1e-5))


@pytest.mark.parametrize("parameters", [0, 1])
@pytest.mark.parametrize("shape", [(1, 1), (2, 19), (2, 5, 19), (2, 3, 5, 16), (3, 5000)], ids=str)
def test_rms_normalization(shape, parameters):
    shapes = [shape, *[shape[-1:]] * parameters]
    check(*single("rms_normalization", shapes, shape, constants=(1,)[:parameters], epsilon=1e-5))


@pytest.mark.parametrize("alg", ["across_channels", "within_channel"])
@pytest.mark.parametrize(("channels", "size"), [(16, 5), (7, 5), (32, 3)])
def test_lrn(alg, channels, size):
    shape = (1, channels, 7, 7)
    check(*single("lrn", [shape], shape, alg=alg, local_size=size, alpha=0.1, beta=0.75, k=1.0))


@pytest.mark.parametrize("alg", ["max", "min", "sum", "mul", "mean", "norm_lp_max", "norm_lp_sum"])
@pytest.mark.parametrize(
    "out",
    [(2, 3, 1, 1), (2, 3, 4, 1), (2, 1, 4, 5), (1, 3, 4, 5), (1, 1, 1, 1), (2, 1, 1, 5), (1, 3, 1, 5)],
    ids=str,
)
def test_reduction(alg, out):
    g, arguments = single("reduction", [(2, 3, 4, 5)], out, alg=alg, p=2.0, epsilon=1e-3)
    assert probe(g)["ok"] or alg.startswith("norm_lp"), probe(g)
    check(g, arguments)


@pytest.mark.parametrize("alg", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("shape", "out"),
    [
        ((1, 3, 5), (1, 3, 10)),
        ((1, 3, 5, 6), (1, 3, 10, 12)),
        ((1, 16, 5, 6), (1, 16, 3, 7)),
        ((1, 3, 4, 4, 4), (1, 3, 8, 6, 3)),
    ],
    ids=str,
)
def test_resampling(alg, shape, out):
    check(*single("resampling", [shape], out, alg=alg))


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("sizes", [(2, 3, 4), (5,), (16, 16), (0, 3)], ids=str)
def test_concat(axis, sizes):
    shapes = [[size if i == axis else 3 for i in range(4)] for size in sizes]
    out = [sum(sizes) if i == axis else 3 for i in range(4)]
    check(*single("concat", shapes, out, axis=axis))


@pytest.mark.parametrize(("shape", "axis", "size"), [((1, 12, 3, 3), 1, 3), ((2, 3, 8), 2, 4), ((6, 5), 0, 2)])
def test_shuffle(shape, axis, size):
    g, arguments = single("shuffle", [shape], shape, axis=axis, group_size=size)
    assert probe(g)["ok"], probe(g)
    check(g, arguments)


@pytest.mark.parametrize(
    ("kind", "shape", "out", "attrs"),
    [
        ("reorder", (3, 5), (3, 5), {}),
        ("reshape", (3, 5), (15,), {}),
        ("reshape", (1, 1), (), {}),
        ("reshape", (0, 5), (5, 0, 2), {}),
        ("permute", (3, 5, 4), (4, 3, 5), {"axes": [2, 0, 1]}),
        ("permute", (), (), {"axes": []}),
        ("slice", (6, 5, 9), (2, 5, 3), {"begin": [1, 0, 2], "steps": [2, 1, 3]}),
        ("slice", (6, 5), (0, 5), {"begin": [6, 0], "steps": [1, 1]}),
        ("expand", (1, 5, 1), (3, 5, 4), {}),
        ("expand", (1, 1), (3, 4), {}),
        ("expand", (), (), {}),
        ("expand", (1, 5), (0, 5), {}),
        ("pad", (3, 5), (6, 6), {"pad_begin": [1, 1], "pad_end": [2, 0], "value": 2.5}),
        ("pad", (3, 5), (3, 6), {"pad_begin": [0, 0], "pad_end": [0, 1], "value": "-inf"}),
        ("pad", (0, 5), (2, 5), {"pad_begin": [1, 0], "pad_end": [1, 0], "value": 1.0}),
        ("pad", (3,), (3,), {"pad_begin": [0], "pad_end": [0], "value": 1.0}),
    ],
)
def test_views_and_copies(kind, shape, out, attrs):
    check(*single(kind, [shape], out, **attrs))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "int8", "uint8"])
def test_reorder_converts(dtype):
    values = np.array([[-3.0, 0.25, 1.5, 2.5, 100.0]], "float32")
    g = GraphBuilder()
    x = g.input(values.shape)
    there = g.node("reorder", [x], values.shape, dtype)
    g.outputs = [g.node("reorder", [there], values.shape)]
    (got,) = execute(g, [values])
    want = np.clip(np.rint(values), 0 if dtype == "uint8" else -128, 255) if "int" in dtype else values
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("alg", ["max", "mean", "sum"])
def test_rows_are_not_reduced_element_by_element(alg):
    """oneDNN's global pooling of this layout is slow, its reduction is not."""
    g, arguments = single("reduction", [(1, 40, 125)], (1, 40, 1), alg=alg, p=1.0, epsilon=0.0)
    assert not probe(g)["nodes"][0]["impl"].startswith("simple")
    check(g, arguments)
