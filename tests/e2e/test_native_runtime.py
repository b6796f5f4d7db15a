"""`load(runtime="native")`: the same numbers and errors as a `Runner` of TVM, for models of which all is in regions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, tirx

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native

_RNG = np.random.default_rng(0)


def model(nodes: list[onnx.NodeProto], inputs: dict[str, Any], outputs: list[str], **weights: np.ndarray) -> Any:
    """The types of the outputs are inferred."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, *t) for n, t in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return onnx.shape_inference.infer_shapes(made)


def network(batch: int | str) -> Any:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("GlobalAveragePool", ["b"], ["c"]),
        node("Flatten", ["c"], ["d"]),
        node("MatMul", ["d", "m"], ["y"]),
    ]
    weights = {"w": _RNG.standard_normal((8, 3, 3, 3)), "m": _RNG.standard_normal((8, 10))}
    kinds = {name: value.astype("float32") for name, value in weights.items()}
    return model(nodes, {"x": (TensorProto.FLOAT, [batch, 3, 9, 7])}, ["y", "b"], **kinds)


def lookup() -> Any:
    table, weight = (_RNG.standard_normal(shape).astype("float32") for shape in ((50, 32), (32, 64)))
    i = relax.Var("i", relax.TensorType((tirx.Var("n", "int64"),), "int64"))
    bb = relax.BlockBuilder()
    with bb.function("main", [i]):
        with bb.dataflow():
            rows = bb.emit(relax.op.take(relax.const(table), i, axis=0))
            y = bb.emit_output(relax.op.matmul(rows, relax.const(weight)))
        bb.emit_func_output(y)
    return bb.get()


def sums() -> Any:
    """Two inputs of one open size, and a result that is an input."""
    nodes = [helper.make_node("Add", ["p", "q"], ["y"]), helper.make_node("Identity", ["p"], ["same"])]
    dims = (TensorProto.FLOAT, ["n", 3])
    return model(nodes, {"p": dims, "q": dims}, ["y", "same"])


def indices() -> Any:
    """Rows of a table, behind arithmetic on their numbers; its integers, and the table's slices by coordinates."""
    node = helper.make_node
    nodes = [
        node("Less", ["i", "zero"], ["is_below"]),
        node("Add", ["i", "count"], ["from_end"]),
        node("Where", ["is_below", "from_end", "i"], ["w"]),
        node("Gather", ["table", "w"], ["rows"]),
        node("MatMul", ["rows", "m"], ["y"]),
        node("Equal", ["w", "i"], ["same"]),
        node("Not", ["same"], ["other"]),
        node("Mul", ["w", "large"], ["wrapped"]),
        node("Unsqueeze", ["w", "last"], ["places"]),
        node("GatherND", ["table", "places"], ["slices"]),
        node("Cast", ["wrapped"], ["as_float"], to=TensorProto.FLOAT),
    ]
    table, weight = (_RNG.standard_normal(shape).astype("float32") for shape in ((50, 32), (32, 64)))
    numbers = {"zero": np.array(0), "count": np.array([50]), "large": np.array(2**62 + 1), "last": np.array([-1])}
    outputs = ["y", "w", "other", "wrapped", "slices", "as_float"]
    return model(nodes, {"i": (TensorProto.INT64, ["n"])}, outputs, table=table, m=weight, **numbers)


def doubles() -> Any:
    """What no region takes: numbers of 64 bits, with what makes and reduces them."""
    op, size = relax.op, tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((size, 5), "float64"))
    bb = relax.BlockBuilder()

    def each(x: Any) -> Iterator[Any]:
        largest = bb.emit(op.max(x, axis=1, keepdims=True))
        two = (op.add, op.subtract, op.multiply, op.divide, op.maximum, op.minimum, op.less, op.less_equal, op.greater)
        yield from (bb.emit(make(x, largest)) for make in (*two, op.greater_equal, op.equal, op.not_equal))
        above = bb.emit(op.greater(x, relax.const(0.5, "float64")))
        yield from map(bb.emit, (op.where(above, x, largest), op.logical_not(above), op.negative(x), op.sqrt(x)))
        yield from map(bb.emit, (op.sum(x, axis=[1]), op.min(x, axis=-1), op.max(x)))
        yield bb.emit(op.matmul(bb.emit(op.astype(x, "float32")), relax.const(_RNG.random((5, 4), "float32"))))
        yield bb.emit(op.arange(3, 3 + 2 * size, 2, "int32"))
        yield bb.emit(op.full((size, 2), relax.const(0.25, "float32")))
        yield bb.emit(op.broadcast_to(largest, (size, 3)))

    with bb.function("main", [x]):
        with bb.dataflow():
            made = bb.emit_output(relax.Tuple(list(each(x))))
        bb.emit_func_output(made)
    return bb.get()


MODELS = {
    "fixed": lambda: network(1), "open": lambda: network("N"), "lookup": lookup, "sums": sums, "indices": indices,
    "doubles": doubles,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native")
    for name, make in MODELS.items():
        byoc.compile(make()).export_library(path / f"{name}.so")
    return path


def inputs_of(name: str, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    if name == "lookup":
        return [rng.integers(0, 5, n)]
    if name == "indices":
        return [rng.integers(-50, 50, n)]
    if name == "sums":
        return [rng.standard_normal((n, 3), dtype="float32") for _ in "pq"]
    if name == "doubles":
        x = rng.integers(-40, 40, (n, 5)) / 8  # sums are exact in any order
        x[0] = np.nan, np.inf, -np.inf, 0.0, 1e300
        return [x]
    x = rng.standard_normal((n, 3, 9, 7), dtype="float32")
    x[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    return [x]


def same(got: Any, want: Any) -> None:
    assert isinstance(got, list) == isinstance(want, list)
    for a, b in zip(*([r] if isinstance(r, np.ndarray) else r for r in (got, want)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("fixed", [1, 1]),
        ("open", [1, 3, 1, 17, 0, 2]),
        ("lookup", [3, 1, 0]),
        ("sums", [2, 0, 5]),
        ("indices", [7, 1, 0]),
        ("doubles", [3, 1, 70]),
    ],
)
def test_every_bit_is_that_of_a_runner_of_tvm(folder: Path, name: str, sizes: list[int]) -> None:
    native, tvm = (byoc.load(folder / f"{name}.so", runtime=r) for r in ("native", "tvm"))
    assert (native.inputs, native.outputs, repr(native)) == (tvm.inputs, tvm.outputs, repr(tvm))
    for n in sizes:
        values = inputs_of(name, n) if n else [v[:0] for v in inputs_of(name, 1)]
        same(native(*values), tvm(*values))
        same(native(dict(zip(native.input_names, values))), tvm(*values))
        same(native.submit(*values).result(), tvm(*values))
        same(list(native.named(*values).values()), list(tvm.named(*values).values()))


@pytest.mark.parametrize("runtime", ["native", "tvm"])
def test_outputs_go_into_arrays_of_the_caller(folder: Path, runtime: str) -> None:
    run = byoc.load(folder / "sums.so", runtime=runtime)
    p, q = inputs_of("sums", 5)
    want = [p + q, p.copy()]
    wide = np.zeros((5, 6), "float32")
    for into in ([np.zeros_like(p), np.zeros_like(q)], [wide[:, ::2], wide[:, 1::2]], [q.copy(), np.zeros_like(q)]):
        run.into(into, p, q)
        same(into, want)
    run.into([p, q], p=p, q=q)  # over its own inputs
    same([p, q], want)
    lookup = byoc.load(folder / "lookup.so", runtime=runtime)
    x = inputs_of("lookup", 3)[0]
    one = np.zeros_like(lookup(x))
    lookup.into(one, x)
    same(one, lookup(x))
    for wrong, says in (
        ([one], "got 1 arrays, expected 2: one for each output"),
        ([p, q.astype("float64")], r"output 'same' is float32 \[5, 3\]; got float64 \[5, 3\]; give an array"),
        ([p, q[:4]], r"got float32 \[4, 3\]"),
        ([p, q.tolist()], "got list"),
        ([read_only(p), q], r"output 'y' is float32 \[5, 3\]; got float32 \[5, 3\]; give an array that can be written"),
    ):
        with pytest.raises(byoc.InputError, match=says):
            run.into(wrong, p, q)


class OnlyDLPack:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class OnDevice(OnlyDLPack):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "given",
    [
        np.asfortranarray,
        lambda x: np.repeat(x, 2, axis=3)[..., ::2],
        OnlyDLPack,
        read_only,
        lambda x: np.concatenate([np.zeros(1, "float32"), x.ravel()])[1:].reshape(x.shape),
    ],
)
def test_arrays_of_every_layout_are_taken(folder: Path, given: Any) -> None:
    (x,) = inputs_of("fixed", 1)
    run = byoc.load(folder / "fixed.so", runtime="native")
    same(run(given(x)), run(x))


X = inputs_of("fixed", 1)[0]


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("fixed", [X.astype("float64")], {}),
        ("fixed", [X.astype(">f4")], {}),
        ("fixed", [X[:, :2]], {}),
        ("open", [X[0]], {}),
        ("open", [X[..., :3]], {}),
        ("fixed", [None], {}),
        ("fixed", ["text"], {}),
        ("fixed", [[[1], [1, 2]]], {}),
        ("fixed", [OnDevice(X)], {}),
        ("fixed", [], {}),
        ("fixed", [X, X], {}),
        ("fixed", [], {"z": X}),
        ("fixed", [X], {"x": X}),
        ("sums", [np.zeros((2, 3), "float32"), np.zeros((4, 3), "float32")], {}),
        ("lookup", [np.array([0, 50])], {}),
    ],
)
def test_wrong_calls_raise_what_a_runner_of_tvm_raises(folder: Path, name: str, args: Any, kwargs: Any) -> None:
    errors = []
    for runtime in ("native", "tvm"):
        with pytest.raises(byoc.ByocError) as caught:
            byoc.load(folder / f"{name}.so", runtime=runtime)(*args, **kwargs)
        errors.append(caught.value)
    assert type(errors[0]) is type(errors[1]) and str(errors[0]) == str(errors[1])


def test_threads_share_a_runner_and_a_closed_one_says_so(folder: Path) -> None:
    run = byoc.load(folder / "open.so", runtime="native", threads=1, workers=2)
    run.warm_up([{"x": (2, 3, 9, 7)}, {"x": (5, 3, 9, 7)}])
    want = {n: run(*inputs_of("open", n)) for n in (1, 2, 5)}
    with ThreadPoolExecutor(4) as pool:
        for n, got in [(n, pool.submit(run, *inputs_of("open", n))) for n in (1, 2, 5) * 5]:
            same(got.result(), want[n])
    with run:
        pass
    with pytest.raises(byoc.InputError, match=r"this Runner is closed"):
        run(*inputs_of("open", 1))
    with pytest.raises(byoc.InputError, match=r"this Runner is closed"):
        run.submit(*inputs_of("open", 1))


def test_a_child_of_a_fork_computes(folder: Path) -> None:
    run = byoc.load(folder / "open.so", runtime="native")
    values = inputs_of("open", 3)
    want = run(*values)[0].tobytes()
    child = os.fork()
    if child == 0:
        os._exit(0 if run(*values)[0].tobytes() == want else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_needs_tvm_opens_the_file_with_tvm_or_names_that_runtime(folder: Path) -> None:
    run, other = byoc.load(folder / "fixed.so"), byoc.load(folder / "fixed.so", runtime="native")
    for name in ("module", "entry", "run_tvm", "tensors", "random_tensors"):
        assert getattr(run, name) is not None
        with pytest.raises(byoc.UnsupportedError, match=r"loaded to run without TVM; .*runtime='tvm'"):
            getattr(other, name)
    assert not hasattr(run, "elsewhere")
    with run:
        x = run.random_tensors(seed=3)
        same(run(*x), run.with_tvm(*x))
    with pytest.raises(byoc.InputError, match="is closed"):
        run.with_tvm(*x)


def places() -> Any:
    made = network(1)
    made.graph.node.append(helper.make_node("NonZero", ["b"], ["where"]))
    made.graph.output.append(onnx.ValueInfoProto(name="where"))
    return onnx.shape_inference.infer_shapes(made)


def tangent() -> Any:
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Tan", ["x"], ["y"])], "tangent", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sized() -> Any:
    """A region that reads a tensor whose size an input of another kind gives."""
    size = tirx.Var("n", "int64")
    x, shape = relax.Var("x", relax.TensorType((size, 3), "float32")), relax.Var("shape", relax.ShapeType([size]))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, shape]):
        with bb.dataflow():
            y = bb.emit_output(relax.op.tanh(x))
        bb.emit_func_output(y)
    return bb.get()


@pytest.mark.parametrize(
    ("compiled", "reason"),
    [
        (lambda: byoc.compile(places()), r"TVM computes "),
        (lambda: byoc.compile(network(1), compiler=[]), r"does not say how its regions are called"),
        (lambda: byoc.compile(sized()), r"its input shape is no tensor"),
        (lambda: byoc.compile(tangent(), "ccompiler"), r"region ccompiler_\d+ is run by its vendor's own code"),
    ],
    ids=["an operator of TVM", "no region", "a shape as input", "regions of a vendor alone"],
)
def test_a_model_that_needs_tvm_is_refused_with_the_reason(compiled: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    compiled().export_library(path)
    with pytest.raises(byoc.UnsupportedError, match=rf"cannot run without TVM: .*{reason}.*; load it with .*'tvm'"):
        byoc.load(path, runtime="native")
    assert type(byoc.load(path)) is byoc.Runner


def test_a_file_is_loaded_without_tvm_where_that_is_possible(folder: Path) -> None:
    run = byoc.load(folder / "fixed.so")
    assert type(run) is type(byoc.load(folder / "fixed.so", runtime="native"))
    with pytest.raises(byoc.InputError, match="'npu'"):
        byoc.load(folder / "fixed.so", options={"npu": {"device": 1}})


def test_wrong_files_and_arguments_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(byoc.InputError, match=r"runtime is 'nativ'.*did you mean 'native'"):
        byoc.load(folder / "fixed.so", runtime="nativ")
    with pytest.raises(byoc.InputError, match="options are for vendors"):
        byoc.load(folder / "fixed.so", runtime="native", options={"dnnl": {}})
    with pytest.raises(FileNotFoundError, match="no file"):
        byoc.load(tmp_path / "none.so", runtime="native")
    whole = (folder / "fixed.so").read_bytes()
    for data, words in (
        (b"", "it is empty"),
        (b"text", "no ELF file"),
        (whole[:-9], "cut off"),
        (whole[:5000] + b"\0\1\2\3" + whole[5004:], "damaged"),
    ):
        (tmp_path / "m.so").write_bytes(data)
        with pytest.raises(byoc.ArtifactError, match=words):
            byoc.load(tmp_path / "m.so", runtime="native")
    with pytest.raises(byoc.ArtifactError, match="regular file"):
        byoc.load(tmp_path, runtime="native")


def test_c_programs_may_include_the_header(tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text(
        '#include "tvm_byoc_runtime.h"\nint main(void) { return tvm_byoc_abi() == TVM_BYOC_ABI ? 0 : 1; }\n'
    )
    include = Path(byoc.__file__).parent / "lib/include"
    for options in (["-std=c99"], ["-x", "c++", "-std=c++17"]):
        command = ["gcc", *options, "-Wall", "-Wextra", "-Werror", "-pedantic", "-c", source, "-I", include]
        subprocess.run([*command, "-o", tmp_path / "main.o"], check=True)
