"""What stays with TVM and is wrong in its own lowering: indices out of range, float16 without an intrinsic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tvm_byoc_dnnl.pipeline.guards import LEGALIZATIONS
from tvm_byoc_dnnl.testing.op_calls import OPS

op = relax.op
X = np.arange(12, dtype="float32").reshape(3, 4)
UPDATES = np.array([[10.0, 20.0]], "float32")
U = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
ROWS = relax.const(np.array([0, -1], "int64"))


def _run(function: Any, *arrays: np.ndarray, relax_shapes: list[Any] | None = None) -> np.ndarray:
    """The function, compiled by the pipeline alone."""
    shapes = relax_shapes or [a.shape for a in arrays]
    params = [relax.Var(f"a{i}", relax.TensorType(s, str(a.dtype))) for i, (a, s) in enumerate(zip(arrays, shapes))]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(function(*params)))
        bb.emit_func_output(out)
    ex = tvm.compile(bb.get(), target="llvm", relax_pipeline="byoc")
    machine = relax.VirtualMachine(ex, tvm.cpu())
    return machine["main"](*(tvm.runtime.tensor(a) for a in arrays)).numpy()


#: name, function of the data and the indices, indices in range, what they pick
INDEXED = [
    ("take", lambda x, i: op.take(x, i, axis=1), [[3, 0], [1, 2]], lambda i: X[:, i]),
    ("take-int32", lambda x, i: op.take(x, op.astype(i, "int32"), axis=0), [2, 0], lambda i: X[i]),
    ("take-flat", lambda x, i: op.take(op.reshape(x, [12]), i), [11, 0], lambda i: X.reshape(-1)[i]),
    (
        "gather_elements",
        lambda x, i: op.gather_elements(x, i, axis=1),
        [[0, 3], [0, 1], [2, 1]],
        lambda i: np.take_along_axis(X, i, 1),
    ),
    ("gather_nd", op.gather_nd, [[2, 3], [0, 1]], lambda i: X[i[:, 0], i[:, 1]]),
    (
        "scatter_elements",
        lambda x, i: op.scatter_elements(x, i, relax.const(UPDATES), axis=1),
        [[3, -4]],
        lambda i: _put(X, (np.array([0, 0]), i[0]), UPDATES[0]),
    ),
    (
        "scatter_nd",
        lambda x, i: op.scatter_nd(x, i, relax.const(UPDATES[0])),
        [[2, 3], [0, 0]],
        lambda i: _put(X, (i[:, 0], i[:, 1]), UPDATES[0]),
    ),
    ("index_tensor", lambda x, i: op.index_tensor(x, [ROWS, i]), [3, -4], lambda i: X[[0, 2], i]),
    (
        "index_put",
        lambda x, i: op.index_put(x, (ROWS, i), relax.const(UPDATES[0])),
        [3, -4],
        lambda i: _put(X, ([0, 2], i), UPDATES[0]),
    ),
]


def _put(x: np.ndarray, at: Any, values: np.ndarray) -> np.ndarray:
    result = x.copy()
    result[at] = values
    return result


@pytest.mark.parametrize(("name", "function", "indices", "wanted"), INDEXED, ids=[row[0] for row in INDEXED])
def test_an_index_out_of_range_is_an_error(name, function, indices, wanted, capfd):
    good = np.array(indices, "int64")
    np.testing.assert_array_equal(_run(function, X, good), wanted(good))
    for wrong in (4 + good.max(), -5, -100, 1 << 40):
        if name == "take-int32" and wrong > 1 << 31:
            continue  # a cast changes it to zero
        bad = np.where(good == good.max(), wrong, good)
        with pytest.raises(IndexError, match="index is out of range"):
            _run(function, X, bad)
    said = capfd.readouterr().err
    assert "segfault" not in said
    assert "Warning" not in said, "TVM warns of its own marks"


def test_the_sizes_of_an_open_axis_are_those_of_the_call():
    n = tvm.tirx.Var("n", "int64")
    indices = np.array([2, 0], "int64")

    def run(x):
        return _run(lambda a, i: op.take(a, i, axis=0), x, indices, relax_shapes=[(n, 4), (2,)])

    np.testing.assert_array_equal(run(X), X[indices])
    with pytest.raises(IndexError):
        run(X[:2])


def test_the_number_of_indices_may_be_open():
    n = tvm.tirx.Var("n", "int64")
    for indices in (np.array([2, 0], "int64"), np.array([], "int64")):
        got = _run(lambda a, i: op.take(a, i, axis=0), X, indices, relax_shapes=[X.shape, (n,)])
        np.testing.assert_array_equal(got, X[indices])


def test_a_constant_index_in_range_costs_no_check():
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    for index, checks in ((1, 0), (-1, 1), (9, 1)):
        bb = relax.BlockBuilder()
        with bb.function("main", [x]):
            with bb.dataflow():
                out = bb.emit_output(bb.emit(op.take(x, relax.const([index], "int64"), axis=0)))
            bb.emit_func_output(out)
        legal = relax.transform.LegalizeOps(LEGALIZATIONS)(bb.get())
        assert sum("check_values" in g.name_hint for g in legal.get_global_vars()) == checks


def _model(nodes: list[Any], inputs: dict[str, tuple[int, Any]], out: int, opset: int = 18) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info("y", out, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("rows", [3, "n"])
@pytest.mark.parametrize("kind", ["Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements"])
def test_indices_of_onnx(kind, rows, capfd):
    values = [7.0, 8.0]
    updates = helper.make_node("Constant", [], ["u"], value_floats=values)
    if kind == "ScatterElements":
        updates = helper.make_node("Constant", [], ["u"], value=numpy_helper.from_array(U))
    node = helper.make_node(kind, ["x", "i", "u"] if kind.startswith("Scatter") else ["x", "i"], ["y"])
    run = byoc.Runner(byoc.compile(_model([updates, node], {"x": (1, (rows, 4)), "i": (7, (2, 2))}, 1)))
    good = np.array([[0, 1], [-1, 2]], "int64")
    wanted = {
        "Gather": lambda: X[good],
        "GatherElements": lambda: np.take_along_axis(X[:, :2], good, 0),
        "GatherND": lambda: X[good[:, 0], good[:, 1]],
        "ScatterElements": lambda: _put(X, (good, np.array([[0, 1], [0, 1]])), U),
        "ScatterND": lambda: _put(X, (good[:, 0], good[:, 1]), np.array(values)),
    }
    np.testing.assert_array_equal(run(X, good), wanted[kind]())
    for wrong in (4, -5, 1 << 40):
        with pytest.raises(IndexError, match="out of range"):
            run(X, np.where(good == 0, wrong, good))
    assert "segfault" not in capfd.readouterr().err


FUNCTIONS = {
    **{name: getattr(np, f"arc{name[1:]}") for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh")},
    **{name: getattr(np, name) for name in ("cosh", "sinh", "tan", "tanh")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_functions_are_rounded_once_to_float16(name, dtype):
    x = np.array([0.01, 0.1, 0.5, -0.9, 0.99, 1.0, 1.5, 7.0, -0.0, np.inf, -np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name](x.astype("float64")).astype(dtype)
    got = _run(getattr(op, name), x)
    assert got.dtype == dtype
    assert_right(got, wanted, 2**-11 if dtype == "float16" else 1e-5, elementwise=True)


NORMS = {
    "batch_norm": lambda x, p, z, o: op.nn.batch_norm(x, p, p, z, o, axis=1, training=False)[0],
    "layer_norm": lambda x, p, z, o: op.nn.layer_norm(x, p, p, axes=[1]),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_have_the_dtype_of_their_operand(name: str, dtype: str) -> None:
    kind = getattr(ml_dtypes, dtype, dtype)
    x, one, half = (np.asarray(v).astype(kind) for v in (X, np.ones(4), np.full(4, 0.5)))
    numbers = X.astype("float64")
    if name == "layer_norm":
        numbers = (numbers - numbers.mean(1, keepdims=True)) / np.sqrt(numbers.var(1, keepdims=True) + 1e-5)
    else:
        numbers = numbers / np.sqrt(1 + 1e-5)
    got = _run(NORMS[name], x, half, (one * 0).astype(kind), one)
    assert got.dtype == x.dtype
    bound = {"bfloat16": 2**-8, "float16": 2**-10, "float64": 1e-12}[dtype]
    assert_right(got.astype("float64"), numbers / 2 + 0.5, bound)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["image.grid_sample", "isnan", "power", "vision.roi_align"])
def test_results_have_16_bits_as_relax_says(name: str, dtype: str) -> None:
    function, arrays = OPS[name]
    narrow = [array.astype(getattr(ml_dtypes, dtype, dtype)) for array in arrays]
    got, wanted = _run(function, *narrow), _run(function, *(array.astype("float32") for array in narrow))
    assert got.dtype == (wanted.dtype if name == "isnan" else narrow[0].dtype)
    assert_right(got.astype("float32"), wanted.astype("float32"), {"bfloat16": 2**-8, "float16": 2**-10}[dtype])


ONES = np.ones((1, 4096, 1), "float16")
SUMS = {
    "matmul": (lambda x: op.matmul(op.reshape(x, (1, 4096)), op.reshape(x, (4096, 1))), 4096),
    "sum": (lambda x: op.sum(x, 1), 4096),
    "mean": (lambda x: op.mean(x, 1), 1),
    "variance": (lambda x: op.variance(x, 1), 0),
    "std": (lambda x: op.std(x, 1), 0),
    "conv1d": (lambda x: op.nn.conv1d(x, relax.const(ONES)), 4096),
    "conv2d": (lambda x: op.nn.conv2d(op.expand_dims(x, 3), relax.const(ONES[..., None])), 4096),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_float16_are_made_in_float32(name):
    function, wanted = SUMS[name]
    got = _run(function, ONES)
    assert got.dtype == "float16"
    np.testing.assert_array_equal(got.reshape(-1), [wanted])


@pytest.mark.parametrize("layout", ["NWC", "CHWN", "NDHWC"])
def test_layouts_that_tvm_has_no_code_for(layout):
    rank = len(layout) - 2
    dims = "DHW"[3 - rank :]
    usual = f"NC{dims}"
    rng, spatial = np.random.default_rng(rank), [4, 3, 2][:rank]
    x, w = rng.standard_normal((2, 4, *spatial)).astype("float32"), rng.standard_normal((4, 3, *[2] * rank))
    there, back = [usual.index(axis) for axis in layout], [layout.index(axis) for axis in usual]
    stored = byoc.make_constant(w.astype("float32"))
    turned = byoc.make_constant(np.moveaxis(w, 0, -1).astype("float32"))

    def transposed(weights, **layouts):
        conv = getattr(op.nn, f"conv{rank}d_transpose")
        return lambda x: conv(x, weights, strides=[2] * rank, **layouts)

    def resized(**layouts):
        return lambda x: getattr(op.image, f"resize{rank}d")(x, [5] * rank, method="linear", **layouts)

    in_layout = transposed(turned, data_layout=layout, kernel_layout=f"O{dims}I")
    pairs = [(transposed(stored), in_layout)] + [(resized(), resized(layout=layout))] * (rank > 1)
    for given, same in pairs:
        assert_right(_run(same, x.transpose(there)).transpose(back), _run(given, x))


@pytest.mark.parametrize("name", ["cumprod", "cumsum"])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums_of_nothing_write_to_no_memory_of_others(name: str, exclusive: bool) -> None:
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var(name, "int64") for name in "nm"], "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        bb.emit_func_output(bb.emit(getattr(op, name)(x, axis=0, exclusive=exclusive)))
    legal = relax.transform.LegalizeOps(LEGALIZATIONS)(bb.get())
    kernel = tvm.compile(legal[name].with_attr("global_symbol", name), "llvm")[name]

    def run(source: np.ndarray) -> np.ndarray:
        memory = tvm.runtime.tensor(np.full(16, 7.0, "float32"))
        out = memory._create_view(source.shape)
        kernel(tvm.runtime.tensor(source), out)
        assert (memory.numpy()[source.size :] == 7.0).all()
        return out.numpy()

    run(np.zeros((0, 4), "float32"))
    run(np.zeros((4, 0), "float32"))
    source = X + 1
    steps = np.concatenate([np.full((1, 4), name == "cumprod"), source[:-1]]) if exclusive else source
    np.testing.assert_array_equal(run(source), getattr(np, name)(steps, axis=0))


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int8", "uint8", "int16", "uint32"])
def test_numbers_of_every_dtype_are_sorted(dtype: str) -> None:
    numbers = np.random.default_rng(0).uniform(0, 100, (3, 17)) - (0 if dtype.startswith("u") else 50)
    x = (numbers > 0 if dtype == "bool" else numbers).astype(dtype)
    ordered = np.sort(x.astype("float64"), 1)
    in_order, places = _run(lambda x: op.sort(x, axis=1), x), _run(lambda x: op.argsort(x, axis=1), x)
    assert in_order.dtype == x.dtype
    np.testing.assert_array_equal(in_order.astype("float64"), ordered)
    np.testing.assert_array_equal(np.take_along_axis(x, places.astype(int), 1).astype("float64"), ordered)
    largest = _run(lambda x: op.topk(x, 3, axis=1, ret_type="values"), x)
    np.testing.assert_array_equal(largest.astype("float64"), ordered[:, :-4:-1])
    middle = _run(lambda x: relax.TupleGetItem(op.median(x, axis=1), 0), x)
    np.testing.assert_array_equal(middle.astype("float64"), ordered[:, 8])
