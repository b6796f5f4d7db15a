"""Runner and load: inputs by position and name, every wrong input one error, dynamic shapes, several outputs."""

import threading

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc


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
            np.testing.assert_allclose(g, w, rtol=1e-6)
    assert run.input_names == ["x", "y"]


def test_inputs_that_are_not_contiguous_are_copied(run, xy):
    x, y = xy
    got = run(np.asfortranarray(x), np.ascontiguousarray(y.T).T)
    np.testing.assert_allclose(got[1], reference(x, y)[1], rtol=1e-6)


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
        np.testing.assert_allclose(run(x, w), e / e.sum(-1, keepdims=True), rtol=2e-6)
    with pytest.raises(byoc.InputError, match=r"expected"):
        run(np.zeros((2, 6), "float32"), w)


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
