"""Convolutions, pools, pads, products and norms of ONNX, of fixed and of open sizes, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import node, onnx_model, prepared, rand, run
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.testing.models import ort_run

INT64 = TensorProto.INT64


def ints(*values: int) -> np.ndarray:
    return np.array(values, "int64")


def both(
    made: onnx.NodeProto,
    inputs: dict[str, np.ndarray],
    constants: dict[str, Any] | None = None,
    *,
    opset: int = 21,
    outputs: tuple[str, ...] = ("y",),
    dtypes: dict[str, int] | None = None,
    open_axes: tuple[int, ...] | None = None,
    judge: str = "ort",
    same_sizes: bool = False,
) -> None:
    """Compare the node with fixed sizes, and with open ones: of the first input, or of all, which are the same."""
    kinds = {n: onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in inputs.items()} | (dtypes or {})
    shapes: dict[str, Any] = {name: array.shape for name, array in inputs.items()}
    fixed = onnx_model([made], shapes, constants, opset=opset, outputs=outputs, dtypes=kinds)
    want = ort_run(fixed, inputs) if judge == "ort" else ReferenceEvaluator(fixed).run(None, inputs)
    first = next(iter(inputs))
    axes = range(2, inputs[first].ndim) if open_axes is None else open_axes
    for name in inputs if same_sizes else [first]:
        shapes[name] = [f"d{i}" if i == 0 or i in axes else d for i, d in enumerate(shapes[name])]
    opened = onnx_model([made], shapes, constants, opset=opset, outputs=outputs, dtypes=kinds)
    for model in (fixed, opened):
        for got, right in zip(run(prepared(to_relax(model)), *inputs.values()), want, strict=True):
            assert got.dtype == right.dtype
            assert_right(got, right, 1e-5, least=1.0, elementwise=True)


SAME = ("SAME_UPPER", "SAME_LOWER")
WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": mode} for mode in (*SAME, "VALID")
] + [
    {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 0, 1], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [2, 3], "strides": [1, 2], "dilations": [2, 2], "ceil_mode": 1},
]


@pytest.mark.parametrize("attrs", WINDOWS, ids=str)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "AveragePool of pads", "indices", "columns"])
def test_pools(op: str, attrs: dict[str, Any]) -> None:
    inputs = {"x": rand(2, 3, 5, 8)}
    if op in ("indices", "columns"):
        pool = node("MaxPool", ["x"], ["y", "i"], storage_order=int(op == "columns"), **attrs)
        both(pool, inputs, outputs=("y", "i"), dtypes={"i": INT64})
    elif op == "MaxPool":
        both(node(op, ["x"], ["y"], **attrs), inputs)
    else:
        counted = {"count_include_pad": 1} if "of pads" in op else {}
        both(node("AveragePool", ["x"], ["y"], **counted, **attrs), inputs)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("attrs", WINDOWS[:4], ids=str)
def test_norms_of_windows(attrs: dict[str, Any], p: int) -> None:
    both(node("LpPool", ["x"], ["y"], p=p, **attrs), {"x": rand(1, 2, 6, 9)})


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 3, 4, 5), (1, 2, 3, 4, 5)], ids=str)
def test_over_all_axes(op: str, shape: tuple[int, ...]) -> None:
    both(node(op, ["x"], ["y"]), {"x": rand(*shape)})


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_windows_of_infinities_and_their_places(rank: int) -> None:
    x = np.full((1, 2, *[4] * rank), -np.inf, "float32")
    x[0, 1, ..., 2] = 5
    pool = node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2] * rank)
    both(
        pool,
        {"x": x},
        outputs=("y", "i"),
        dtypes={"i": INT64},
    )


@pytest.mark.parametrize("wanted", [None, (12, 13)])
def test_places_back(wanted: tuple[int, int] | None) -> None:
    x, attrs = {"x": rand(1, 2, 9, 8)}, {"kernel_shape": [3, 2], "strides": [3, 2]}
    first = onnx_model([node("MaxPool", ["x"], ["y", "i"], **attrs)], {"x": (1, 2, 9, 8)}, outputs=("y", "i"))
    first.graph.output[1].type.tensor_type.elem_type = INT64
    y, places = ort_run(first, x)
    shape = {"s": ints(1, 2, *wanted)} if wanted else {}
    made = node("MaxUnpool", ["y", "i", *shape], ["z"], **attrs)
    model = onnx_model([made], {"y": y.shape, "i": places.shape}, shape, outputs=("z",), dtypes={"i": INT64})
    want = ReferenceEvaluator(model).run(None, {"y": y, "i": places})[0]
    assert_right(run(prepared(to_relax(model)), y, places)[0], want, 0.0, elementwise=True)


def test_columns_to_an_image_whose_sizes_a_call_gives() -> None:
    made = node("Col2Im", ["x", "s", "k"], ["y"], strides=[2, 1], pads=[0, 1, 1, 0])
    shapes: dict[str, Any] = {"x": (1, 12, "columns"), "s": (2,)}
    model = onnx_model([made], shapes, {"k": ints(2, 3)}, dtypes={"s": INT64}, opset=21)
    inputs = [rand(1, 12, 15), ints(5, 6)]
    want = ReferenceEvaluator(model).run(None, dict(zip("xs", inputs, strict=True)))[0]
    assert_right(run(prepared(to_relax(model)), *inputs)[0], want, 1e-6)


@pytest.mark.parametrize("mode", SAME)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_convolutions_that_keep_the_size(mode: str, rank: int, stride: int) -> None:
    conv = node("Conv", ["x", "w", "b"], ["y"], auto_pad=mode, strides=[stride] * rank)
    both(conv, {"x": rand(2, 3, *[8] * rank)}, {"w": rand(4, 3, *[3] * rank), "b": rand(4)})


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": [3], "output_padding": [2]},
        {"strides": [2], "auto_pad": "SAME_LOWER"},
        {"strides": [2], "auto_pad": "SAME_UPPER", "dilations": [2]},
        {"strides": [2], "pads": [1, 2], "output_padding": [1], "group": 2},
    ],
    ids=str,
)
def test_transposed_convolutions(attrs: dict[str, Any]) -> None:
    weight = rand(4, 3 if "group" in attrs else 5, 4)
    both(node("ConvTranspose", ["x", "w"], ["y"], **attrs), {"x": rand(2, 4, 6)}, {"w": weight})


@pytest.mark.parametrize("wanted", [9, 11, 13])
def test_a_transposed_convolution_of_a_wanted_size(wanted: int) -> None:
    conv = node("ConvTranspose", ["x", "w"], ["y"], strides=[2], output_shape=[wanted])
    both(conv, {"x": rand(2, 4, 6)}, {"w": rand(4, 5, 3)}, open_axes=())


@pytest.mark.parametrize("group", [1, 2])
def test_deformed_windows(group: int) -> None:
    conv = node("DeformConv", ["x", "w", "o", "b", "m"], ["y"], group=group, offset_group=2, pads=[1, 0, 0, 1])
    offsets = rand(1, 2 * 2 * 4, 6, 7)
    inputs = {"x": rand(1, 4, 6, 7), "o": offsets, "m": rand(1, 2 * 4, 6, 7, seed=3)}
    both(conv, inputs, {"w": rand(6, 4 // group, 2, 2), "b": rand(6)}, judge="reference", same_sizes=True)


PADS: list[tuple[list[int], dict[str, Any]]] = [
    ([0, 1, 2, 0, 0, 3], {}),
    ([0, -1, 2, 0, 3, -2], {}),
    ([0, 1, 2, 0, 0, 3], {"mode": "reflect"}),
    ([0, 1, 2, 0, 0, 3], {"mode": "edge"}),
    ([0, 1, 2, 0, 0, 3], {"mode": "wrap"}),
    ([0, -1, 2, 0, 1, -1], {"mode": "edge"}),
]


@pytest.mark.parametrize(("pads", "attrs"), PADS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_pads(pads: list[int], attrs: dict[str, Any], dtype: str) -> None:
    """As constants, and as numbers that only a call knows, which are not below 0."""
    x, given = (rand(2, 4, 5) * 9).astype(dtype), {"p": ints(*pads)}
    kinds = {"y": int(onnx.helper.np_dtype_to_tensor_dtype(x.dtype))}
    made = node("Pad", ["x", "p"], ["y"], **attrs)
    if min(pads) >= 0:
        both(made, {"x": x, **given}, dtypes=kinds, judge="reference")
        both(made, {"x": x}, given, dtypes=kinds, judge="reference")
    elif dtype != "bool":  # ONNX Runtime knows no such padding
        both(made, {"x": x}, given, dtypes=kinds)


EQUATIONS = [
    ("ij,jk->k", [(3, 4), (4, 5)]),
    ("ii->i", [(4, 4)]),
    ("ii->", [(4, 4)]),
    ("ijij->ji", [(2, 3, 2, 3)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
    ("...ij,...jk", [(2, 6, 3, 4), (6, 4, 5)]),
    ("i...,i...->...", [(3, 4), (3, 1)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("a,b,c->abc", [(2,), (3,), (4,)]),
    ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)]),
    ("ba", [(2, 3)]),
    ("ab->", [(2, 3)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=str)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = {f"x{i}": rand(*shape, seed=i) for i, shape in enumerate(shapes)}
    both(node("Einsum", list(inputs), ["y"], equation=equation), inputs, judge="reference", open_axes=())


CHANNELS = {name: rand(3, seed=i) for i, name in enumerate("gbm")} | {"v": np.abs(rand(3, seed=9)) + 0.1}
NORMS: list[tuple[onnx.NodeProto, int, dict[str, Any]]] = [
    (node("BatchNormalization", ["x", *"gbmv"], ["y"]), 9, CHANNELS),
    (node("BatchNormalization", ["x", *"gbmv"], ["y"], epsilon=0.5), 15, CHANNELS),
    (node("InstanceNormalization", ["x", "g", "b"], ["y"]), 6, {k: CHANNELS[k] for k in "gb"}),
    (node("GroupNormalization", ["x", "g", "b"], ["y"], num_groups=3), 18, {k: CHANNELS[k] for k in "gb"}),
    (node("GroupNormalization", ["x", "g", "b"], ["y"], num_groups=1), 21, {k: CHANNELS[k] for k in "gb"}),
    (node("LayerNormalization", ["x", "g"], ["y"], axis=1), 17, {"g": rand(3, 4, 5)}),
    (node("LayerNormalization", ["x", "g"], ["y"], axis=2), 17, {"g": rand(5)}),
    (node("LayerNormalization", ["x", "g", "b"], ["y"], axis=-2), 17, {"g": rand(1), "b": rand(4, 1)}),
    (node("LRN", ["x"], ["y"], size=3, alpha=0.3, bias=2.0), 13, {}),
    (node("LpNormalization", ["x"], ["y"], axis=1, p=1), 1, {}),
    (node("LpNormalization", ["x"], ["y"]), 1, {}),
    (node("MeanVarianceNormalization", ["x"], ["y"]), 13, {}),
    (node("MeanVarianceNormalization", ["x"], ["y"], axes=[1, -1]), 9, {}),
    *((node(op, ["x"], ["y"], axis=a), o, {}) for op in ("Softmax", "LogSoftmax") for a in (1, 3) for o in (11, 13)),
    (node("Hardmax", ["x"], ["y"]), 11, {}),
    (node("Hardmax", ["x"], ["y"], axis=1), 13, {}),
    (node("DepthToSpace", ["x"], ["y"], blocksize=1), 11, {}),
]


@pytest.mark.parametrize(("made", "opset", "constants"), NORMS, ids=lambda v: getattr(v, "op_type", None))
def test_norms(made: onnx.NodeProto, opset: int, constants: dict[str, Any]) -> None:
    is_sized = made.op_type == "LayerNormalization"
    judge = "reference" if len(constants) == 2 and is_sized else "ort"
    both(made, {"x": rand(2, 3, 4, 5)}, constants, opset=opset, open_axes=(1,) if is_sized else None, judge=judge)


@pytest.mark.parametrize(("size", "mode"), [(2, "DCR"), (2, "CRD"), (3, "CRD")])
def test_blocks_of_pixels(size: int, mode: str) -> None:
    both(node("DepthToSpace", ["x"], ["y"], blocksize=size, mode=mode), {"x": rand(2, 2 * size * size, 3, 5)})
    if mode == "DCR":
        both(node("SpaceToDepth", ["x"], ["y"], blocksize=size), {"x": rand(2, 3, 2 * size, 4 * size)}, open_axes=())


def test_statistics_of_a_batch() -> None:
    names = ("y", "rm", "rv")
    made = node("BatchNormalization", ["x", *"gbmv"], names, momentum=0.7, training_mode=1)
    both(made, {"x": rand(4, 3, 5)}, CHANNELS, outputs=names, judge="reference")


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_quantising_narrow_floats_to_wide_integers(dtype: str) -> None:
    x = np.array([-40.0, 0.26, 3.3, 2000.0, 60000.0], "float16")
    made = node("QuantizeLinear", ["x", "s", "z"], ["y"])
    kind = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    constants = {"s": np.float16(2), "z": np.array(3001, dtype)}
    model = onnx_model([made], {"x": ("n",)}, constants, opset=21, dtypes={"x": TensorProto.FLOAT16, "y": kind})
    limits = np.iinfo(dtype)
    want = np.clip(np.rint((x / np.float16(2)).astype("float64")) + 3001, limits.min, limits.max).astype(dtype)
    np.testing.assert_array_equal(run(prepared(to_relax(model)), x)[0], want)


def test_large_sums_of_integers_are_exact() -> None:
    """Float32 does not say all integers above 2²⁴."""
    rng = np.random.default_rng(1)
    a, w = rng.integers(200, 256, (3, 700)).astype("uint8"), rng.integers(100, 128, (700, 4)).astype("int8")
    model = onnx_model(
        [node("MatMulInteger", ["a", "w"], ["y"])],
        {"a": ("n", 700)},
        {"w": w},
        dtypes={"a": TensorProto.UINT8, "y": TensorProto.INT32},
    )
    np.testing.assert_array_equal(run(prepared(to_relax(model)), a)[0], a.astype("int32") @ w.astype("int32"))


def test_a_window_of_an_even_number_of_channels() -> None:
    x = rand(2, 7, 3, 2)
    total = np.stack([(x[:, max(0, c - 1) : c + 3] ** 2).sum(1) for c in range(7)], 1)
    want = x / (1 + 0.3 / 4 * total) ** 0.75
    model = onnx_model([node("LRN", ["x"], ["y"], size=4, alpha=0.3)], {"x": ("n", 7, "h", "w")})
    assert_right(run(prepared(to_relax(model)), x)[0], want, 1e-5, elementwise=True)


X = rand(2, 3, 5, 7)
BRANCHES: list[tuple[onnx.NodeProto, dict[str, np.ndarray], dict[str, Any]]] = [
    (node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2]), {"x": X}, {"w": rand(4, 3, 3, 3)}),
    (node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2], strides=[2, 2]), {"x": X}, {}),
    (node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"), {"x": X}, {}),
    (node("Pad", ["x", "p"], ["y"], mode="edge"), {"x": X, "p": ints(0, 0, 1, 2, 0, 0, 1, 1)}, {}),
    (node("Resize", ["x", "", "", "s"], ["y"], mode="linear"), {"x": X, "s": ints(2, 3, 9, 4)}, {}),
    (node("Einsum", ["x", "z"], ["y"], equation="bchw,bdhw->bcd"), {"x": X, "z": rand(2, 4, 5, 7)}, {}),
    (node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"]), {"x": X}, {}),
    (node("LayerNormalization", ["x", "g"], ["y", "m", "d"]), {"x": X}, {"g": rand(7)}),
]


@pytest.mark.parametrize(("made", "inputs", "constants"), BRANCHES, ids=lambda v: getattr(v, "op_type", None))
def test_inside_of_a_branch(made: onnx.NodeProto, inputs: dict[str, np.ndarray], constants: dict[str, Any]) -> None:
    """Of open sizes, with a condition that only a call knows."""
    outputs = list(made.output)
    kinds = {n: int(onnx.helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in inputs.items()}
    shapes: dict[str, Any] = {name: array.shape for name, array in inputs.items()}
    plain = onnx_model([made], shapes, constants, outputs=outputs, dtypes=kinds)
    want = ReferenceEvaluator(plain).run(None, inputs)

    def branch(prefix: str) -> onnx.GraphProto:
        copy = onnx.NodeProto.FromString(made.SerializeToString())
        copy.output[:] = [prefix + name for name in outputs]
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in copy.output]
        return onnx.helper.make_graph([copy], prefix, [], results)

    for name, array in inputs.items():
        shapes[name] = [f"{name}{i}" if array.ndim > 1 and i != 1 else d for i, d in enumerate(array.shape)]
    kinds |= {n: int(onnx.helper.np_dtype_to_tensor_dtype(w.dtype)) for n, w in zip(outputs, want, strict=True)}
    kinds["c"] = TensorProto.BOOL
    chosen = node("If", ["c"], outputs, then_branch=branch("then_"), else_branch=branch("else_"))
    model = onnx_model([chosen], {**shapes, "c": ()}, constants, outputs=outputs, dtypes=kinds)
    mod = prepared(to_relax(model))
    for condition in (True, False):
        for got, right in zip(run(mod, *inputs.values(), np.array(condition)), want, strict=True):
            assert got.dtype == right.dtype
            assert_right(got, right, 1e-5, least=1.0, elementwise=True)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_numbers_of_eight_bits(kind: str, saturate: int) -> None:
    """Every one of them, halves between them, what is too large or too small, infinities and NaN."""
    target = TensorProto.DataType.Value(kind)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(target)
    every = np.arange(256, dtype="uint8").view(dtype)
    finite = np.unique(every.astype("float32")[np.isfinite(every.astype("float32"))])
    halves = (finite[1:] + finite[:-1]) / 2
    x = np.concatenate([finite, halves, np.nextafter(halves, np.float32(9e9)), [-0.0, 1e-9, -1e-9, 6e4, 1e9, -1e9]])
    x = np.append(x, [np.inf, -np.inf, np.nan]).astype("float32")
    nodes = [node("Cast", ["x"], ["f"], to=target, saturate=saturate), node("Cast", ["f"], ["y"], to=TensorProto.FLOAT)]
    model = onnx_model(nodes, {"x": ("n",)}, opset=19)
    want = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(run(prepared(to_relax(model)), x)[0], want)


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pools_that_halve_open_sizes_are_primitives(kind):
    halve = {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
    pools = [node(kind, ["x"], ["half"], **halve), node(kind, ["half"], ["y"], **halve)]
    model = onnx_model(pools, {"x": (1, 2, "h", "w")})
    totals = byoc.explain(model).totals
    assert totals.offloaded_calls == totals.calls == 2
    runner = byoc.Runner(byoc.compile(model))
    for sizes in ((7, 4), (1, 9), (8, 8)):
        x = rand(1, 2, *sizes)
        assert_right(runner(x), ort_run(model, {"x": x})[0])
