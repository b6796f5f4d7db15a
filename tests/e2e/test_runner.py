"""Runner and load: inputs by position and name, every wrong input one error, dynamic shapes, several outputs."""

import dataclasses
import os
import re
import threading

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import module, node, onnx_model


@I.ir_module
class TwoOutputs:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            a = R.nn.relu(R.add(x, y))
            b = R.multiply(a, y)
            R.output(a, b)
        return (a, b)


@I.ir_module
class DynamicBatch:
    @R.function
    def main(x: R.Tensor(("n", 5), "float32"), w: R.Tensor((5, 7), "float32")):
        with R.dataflow():
            a = R.nn.softmax(R.nn.relu(R.matmul(x, w)))
            R.output(a)
        return a


@pytest.fixture(scope="module")
def run():
    return byoc.Runner(byoc.compile(TwoOutputs))


@pytest.fixture
def xy():
    rng = np.random.default_rng(1)
    return [rng.standard_normal((2, 3)).astype("float32") for _ in range(2)]


def reference(x, y):
    a = np.maximum(x + y, 0)
    return [a, a * y]


def test_by_position_by_name_by_mapping_and_by_dlpack(run, xy):
    x, y = xy
    want = reference(x, y)
    by_dlpack = [tvm.runtime.tensor(x), tvm.runtime.tensor(y)]
    for got in (run(x, y), run(x, y=y), run(y=y, x=x), run({"x": x, "y": y}), run(*by_dlpack)):
        for g, w in zip(got, want, strict=True):
            assert_right(g, w, 1e-6, elementwise=True)
    assert run.input_names == ["x", "y"]


def test_inputs_that_are_not_contiguous_are_copied(run, xy):
    x, y = xy
    got = run(np.asfortranarray(x), np.ascontiguousarray(y.T).T)
    assert_right(got[1], reference(x, y)[1], 1e-6, elementwise=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: ((x,), {}), "got 1 inputs, expected 2: 'x', 'y'; missing 'y'"),
        (lambda x, y: ((x, y, x), {}), "got 3 inputs, expected 2"),
        (lambda x, y: ((x, y), {"x": x}), "input 'x' was given twice"),
        (lambda x, y: ((x,), {"z": y}), "unknown input 'z'; the model's inputs are 'x', 'y'"),
        (lambda x, y: ((x.astype("float64"), y), {}), "input 'x' has dtype float64, expected float32"),
        (lambda x, y: ((x, y[0]), {}), r"input 'y' has shape \[3\], expected \[2, 3\]"),
        (lambda x, y: ((x, y[:, :2]), {}), r"input 'y' has shape \[2, 2\], expected \[2, 3\]"),
    ],
    ids=["too few", "too many", "twice", "unknown name", "dtype", "rank", "shape"],
)
def test_a_wrong_input_is_one_clear_error(run, xy, change, message):
    args, kwargs = change(*xy)
    with pytest.raises(byoc.InputError, match=message):
        run(*args, **kwargs)


def test_dynamic_batch(tmp_path):
    rng = np.random.default_rng(2)
    w = rng.standard_normal((5, 7)).astype("float32")
    byoc.compile(DynamicBatch).export_library(str(tmp_path / "m.so"))
    run = byoc.load(tmp_path / "m.so")
    for n in (1, 3, 17, 3, 0):
        x = rng.standard_normal((n, 5)).astype("float32")
        e = np.exp(np.maximum(x @ w, 0).astype("float64"))
        assert_right(run(x, w), (e / e.sum(-1, keepdims=True)).astype("float32"), 2e-6, elementwise=True)
    with pytest.raises(byoc.InputError, match=r"expected"):
        run(np.zeros((2, 6), "float32"), w)


# names that are no identifiers, an argument of numpy.savez, and one that looks like an unnamed array
NAMES = ["input.1", "0", "x:0", "file"]


@pytest.fixture(scope="module")
def odd_names(tmp_path_factory):
    """A model of four inputs and two outputs, saved as a library."""
    nodes = [node("Add", NAMES[:2], ["s"]), node("Add", ["s", "x:0"], ["t"]), node("Mul", ["t", "file"], ["out/0"])]
    nodes.append(node("Sub", ["t", "file"], ["1"]))
    model = onnx_model(nodes, dict.fromkeys(NAMES, ("batch", 3)), outputs=["out/0", "1"])
    path = tmp_path_factory.mktemp("names") / "m.so"
    byoc.compile(model).export_library(str(path))
    return model, path


@pytest.mark.parametrize("saved", [False, True])
def test_inputs_and_outputs_keep_their_onnx_names(odd_names, saved):
    model, path = odd_names
    run = byoc.load(path) if saved else byoc.Runner(byoc.compile(model))
    assert [(i.name, i.dtype, i.shape) for i in run.inputs] == [(n, "float32", ("batch", 3)) for n in NAMES]
    assert [(o.name, o.dtype, o.shape) for o in run.outputs] == [(n, "float32", ("batch", 3)) for n in ("out/0", "1")]
    arrays = {n: np.full((2, 3), i + 1, "float32") for i, n in enumerate(NAMES)}
    shuffled = {n: arrays[n] for n in reversed(NAMES)}
    want = {"out/0": np.full((2, 3), 24, "float32"), "1": np.full((2, 3), 2, "float32")}
    for got in (run.named(*arrays.values()), run.named(**shuffled), run.named(shuffled)):
        assert list(got) == ["out/0", "1"]
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.inputs[0].name = "x"


def test_names_of_a_relax_module_are_those_of_its_parameters(run):
    assert [str(i) for i in run.inputs] == ["x float32[2, 3]", "y float32[2, 3]"]
    assert [o.name for o in run.outputs] == ["output_0", "output_1"]


def test_sizes_of_one_open_dim_must_agree(odd_names):
    run = byoc.load(odd_names[1])
    arrays = {n: np.zeros((2, 3), "float32") for n in NAMES} | {"0": np.zeros((4, 3), "float32")}
    with pytest.raises(byoc.InputError, match=r"axis 0 of input '0' is 4, but axis 0 of input 'input.1' is 2;.* batch"):
        run(arrays)


def test_two_symbols_of_one_name_are_two_dims():
    n, m = tirx.Var("n", "int64"), tirx.Var("n", "int64")
    mod = module(lambda b, x, y: b.emit(relax.op.matmul(x, y)), (n, 4), (4, m))
    run = byoc.Runner(byoc.compile(mod))
    assert [i.shape for i in run.inputs] == [("n", 4), (4, "n_1")]
    assert run(np.zeros((2, 4), "float32"), np.zeros((4, 3), "float32")).shape == (2, 3)


def test_random_inputs_of_open_dims_need_shapes(odd_names):
    run = byoc.load(odd_names[1])
    with pytest.raises(byoc.InputError, match=r"'input.1' has shape \['batch', 3\].*--shape input.1=1,3"):
        run.random_tensors()
    assert [t.shape for t in run.random_tensors(shapes=dict.fromkeys(NAMES, (2, 3)))] == [(2, 3)] * 4
    with pytest.raises(byoc.InputError, match="unknown input 'x'"):
        run.random_tensors(shapes={"x": (2, 3)})


def test_many_threads_share_one_module(run, xy):
    x, y = xy
    failures = []

    def work(seed):
        for k in range(200):
            a = x + seed + k
            got = run(a, y)
            if not all(np.array_equal(g, w) for g, w in zip(got, reference(a, y), strict=True)):
                failures.append((seed, k))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_load_says_what_is_wrong_with_a_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing\.so"):
        byoc.load(tmp_path / "nothing.so")
    whole = tmp_path / "m.so"
    byoc.compile(TwoOutputs).export_library(str(whole))
    (tmp_path / "half.so").write_bytes(whole.read_bytes()[: whole.stat().st_size // 3])
    with pytest.raises(byoc.ArtifactError, match=r"half\.so is not a library that can be loaded"):
        byoc.load(tmp_path / "half.so")
    (tmp_path / "text.so").write_text("hello")
    with pytest.raises(byoc.ArtifactError, match=r"text\.so"):
        byoc.load(tmp_path / "text.so")


def test_load_notices_a_flipped_bit_in_a_region(tmp_path):
    path = tmp_path / "m.so"
    byoc.compile(TwoOutputs).export_library(str(path))
    data = bytearray(path.read_bytes())
    place = data.find(b'"tvm_byoc_dnnl.graph"')
    assert place > 0
    data[place + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(byoc.ArtifactError, match=r"checksum|damaged"):
        byoc.load(path)


def test_submitted_calls_give_what_calls_give(xy):
    x, y = xy
    others = {*threading.enumerate()}
    with byoc.Runner(byoc.compile(TwoOutputs), threads=1, workers=2) as run:
        futures = [run.submit(x + i, y=y) for i in range(20)]
        for i, future in enumerate(futures):
            for got, want in zip(future.result(timeout=60), reference(x + i, y), strict=True):
                assert_right(got, want, 1e-6, elementwise=True)
        assert isinstance(run.submit(x).exception(timeout=60), byoc.InputError)  # one input of two
        started = {*threading.enumerate()} - others
        assert sum(t.name.startswith("tvm_byoc_dnnl") for t in started) == 2  # workers
        last = [run.submit(x, y) for _ in range(10)]
    assert all(len(future.result(timeout=60)) == 2 for future in last)  # they were submitted before it was closed
    with pytest.raises(byoc.InputError, match="closed"):
        run.submit(x, y)


def test_as_many_workers_as_have_cores_for_their_threads():
    ex = byoc.compile(TwoOutputs)
    cores = len(os.sched_getaffinity(0))
    assert byoc.Runner(ex).workers == byoc.Runner(ex, threads=2 * cores).workers == 1
    assert byoc.Runner(ex, threads=1).workers == cores
    with pytest.raises(byoc.InputError, match="workers is 0; expected a number from 1 on"):
        byoc.Runner(ex, workers=0)


@pytest.mark.parametrize(
    ("given", "says"), [("model.onnx", "no file model.onnx; expected a library"), (3, "ex is 3; expected what compile")]
)
def test_what_was_not_compiled_is_refused(given: object, says: str) -> None:
    with pytest.raises(byoc.InputError, match=re.escape(says)):
        byoc.Runner(given)
