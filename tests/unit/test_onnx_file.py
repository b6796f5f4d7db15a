"""Large weights of an ONNX file go straight into tensors; all else is as onnx reads it."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.frontends.onnx.file import Weights, _fill, _shares, read_model
from tvm_byoc_dnnl.frontends.onnx.importer import load_onnx

_RNG = np.random.default_rng(3)
_LARGE = {
    "f": _RNG.standard_normal((64, 128)).astype("float32"),
    "d": _RNG.standard_normal((64, 64)),
    "i": _RNG.integers(-100, 100, (128, 128)).astype("int8"),
    "l": _RNG.integers(-9, 9, (64, 64)),
}
_SMALL = {"s": np.float32([1, 2, 3]), "e": np.zeros((0, 4), "float32")}


def model(opset: int = 17, **more: TensorProto) -> onnx.ModelProto:
    """A model with these constants, of which it reads one."""
    tensors = [numpy_helper.from_array(a, n) for n, a in {**_LARGE, **_SMALL}.items()] + list(more.values())
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 64]), ("y", [2, 128])))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "f"], ["y"])], "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_large_weights_are_apart(tmp_path):
    """The values are those of the file, in memory of their own; what is left is the model without them."""
    whole = model(h=numpy_helper.from_array(_RNG.standard_normal((128, 128)).astype("float16"), "h"))
    onnx.save(whole, tmp_path / "m.onnx")
    light, weights = read_model(tmp_path / "m.onnx")
    weights.complete()
    assert weights.keys() == _LARGE.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, _LARGE[name])
        assert array.dtype == _LARGE[name].dtype and array.ctypes.data % 64 == 0
    for tensor in light.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = _LARGE[tensor.name].tobytes()
    assert light == whole


def test_other_forms_are_read_by_onnx(tmp_path):
    """Numbers that are no raw bytes and weights in other files stay in the model."""
    typed = helper.make_tensor("t", TensorProto.FLOAT, [8192], np.arange(8192.0))
    onnx.save(model(t=typed), tmp_path / "m.onnx")
    light, weights = read_model(tmp_path / "m.onnx")
    assert "t" not in weights and light.graph.initializer[-1] == typed
    onnx.save(model(), tmp_path / "beside.onnx", save_as_external_data=True, size_threshold=1024)
    assert read_model(tmp_path / "beside.onnx")[1] == {}


def test_large_results_of_constant_nodes_are_apart(tmp_path):
    """They are initializers then; small ones, other attributes and operators, and those in branches stay nodes."""
    array, small = _LARGE["f"], np.float32([2.0])
    tensor = numpy_helper.from_array(array, "its own name")
    inner = helper.make_node("Constant", [], ["c"], value=tensor)
    branch = helper.make_graph([inner], "b", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, array.shape)])
    nodes = [
        helper.make_node("Constant", [], ["w"], name="node", doc_string="words", value=tensor),
        helper.make_node("Constant", [], ["p"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(small)),
        helper.make_node("Constant", [], ["n"], value_floats=np.arange(8192.0).tolist()),
        helper.make_node("Constant", [], ["other"], domain="elsewhere", value=tensor),
        helper.make_node("If", ["p"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["w", "i"], ["a"]),
        helper.make_node("Mul", ["a", "s"], ["m"]),
        helper.make_node("MatMul", ["x", "m"], ["y"]),
    ]
    whole = model()
    del whole.graph.node[:]
    whole.graph.node.extend(nodes)
    onnx.save(whole, tmp_path / "m.onnx")
    light, weights = read_model(tmp_path / "m.onnx")
    weights.complete()
    assert list(light.graph.node) == nodes[1:]
    assert weights.keys() == {*_LARGE, "w"}
    np.testing.assert_array_equal(weights["w"], array)
    (made,) = (t for t in light.graph.initializer if t.name not in {**_LARGE, **_SMALL})
    assert (made.name, list(made.dims), made.data_type) == ("w", [64, 128], TensorProto.FLOAT)
    assert len(light.graph.initializer) == len(whole.graph.initializer) + 1


def test_a_constant_node_of_a_name_that_is_taken(tmp_path):
    """It is refused, as ever, with that name."""
    twice = model()
    twice.graph.node.insert(0, helper.make_node("Constant", [], ["f"], value=numpy_helper.from_array(_LARGE["f"])))
    onnx.save(twice, tmp_path / "m.onnx")
    with pytest.raises(InputError, match="`f` more than once"):
        byoc.compile(str(tmp_path / "m.onnx"))


def test_compiled_from_a_file(tmp_path):
    """A model compiled from its file gives what the model in memory gives, also when the file is gone."""
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    ex = byoc.compile(str(path))
    path.write_bytes(b"")
    x = _RNG.standard_normal((2, 64)).astype("float32")
    with byoc.Runner(ex) as run:
        np.testing.assert_allclose(run(x), x @ _LARGE["f"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\xff" * 64], ids="half empty ff".split()
)
def test_a_damaged_file(tmp_path, damage):
    """It is refused in one sentence."""
    path = tmp_path / "m.onnx"
    path.write_bytes(damage(model().SerializeToString()))
    with pytest.raises(InputError, match=r"cannot read|no outputs"):
        byoc.compile(str(path))


def test_the_file_becomes_shorter_meanwhile(tmp_path):
    """The threads that read it give one error, each time when it is asked for; the next model is read as ever."""
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    with path.open("rb") as file:
        ready, target = Event(), memoryview(bytearray(1 << 15))
        ready.set()
        weights = Weights({}, [ThreadPoolExecutor(1).submit(_fill, os.dup(file.fileno()), [(1 << 20, target)], ready)])
    for _ in range(2):
        with pytest.raises(InputError, match="shorter"):
            weights.complete()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_pieces_are_shared_and_filled(tmp_path, monkeypatch, count):
    """Near, far and many pieces, also by calls that read less than they were asked for."""
    data = _RNG.integers(0, 256, 1 << 18, "uint8").tobytes()
    (tmp_path / "f").write_bytes(data)
    places = [(3, 900), (903, 10), (1000, 5), (200_000, 40_001), *((250_000 + 3 * i, 2) for i in range(600))]
    arrays = [bytearray(length) for _, length in places]
    shares = _shares([(at, memoryview(a)) for (at, _), a in zip(places, arrays, strict=True)], count)
    sizes = [sum(len(view) for _, view in share) for share in shares]
    assert len(shares) == count and max(sizes) - sizes[-1] < count
    ready, read = Event(), os.preadv
    ready.set()
    monkeypatch.setattr(os, "preadv", lambda file, views, at: read(file, [v[:700] for v in views[:2]], at))
    for number, share in enumerate(shares):
        if number:
            monkeypatch.undo()
        _fill(os.open(tmp_path / "f", os.O_RDONLY), share, ready)
    assert arrays == [data[at : at + length] for at, length in places]


def test_weights_beside_a_model_are_regular_files_of_its_folder(tmp_path):
    """Nothing else is opened: a pipe would be waited for, a device has no end."""
    path = tmp_path / "m.onnx"
    onnx.save(model(), path, save_as_external_data=True, size_threshold=1024, location="weights")
    whole = (tmp_path / "weights").read_bytes()
    cases = {
        "pipe": (lambda p: os.mkfifo(p), "pipe"),
        "folder": (lambda p: p.mkdir(), "folder"),
        "device": (lambda p: p.symlink_to("/dev/zero"), "device"),
        "missing": (lambda p: None, "not there"),
        "cut off": (lambda p: p.write_bytes(whole[:1000]), "cannot read"),
    }
    for make, why in cases.values():
        place = tmp_path / "weights"
        (place.rmdir if place.is_dir() else place.unlink)() if os.path.lexists(place) else None
        make(place)
        for read in (lambda: byoc.compile(path), lambda: load_onnx(path)):
            with pytest.raises(InputError, match=why):
                read()
    place.unlink()
    for name in ("/dev/zero", "../weights", str(tmp_path / "weights")):
        proto = onnx.load(path, load_external_data=False)
        proto.graph.initializer[0].external_data[0].value = name
        (tmp_path / "other.onnx").write_bytes(proto.SerializeToString())
        with pytest.raises(InputError, match="expected a file in the same folder or below it"):
            byoc.compile(tmp_path / "other.onnx")


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda p: os.symlink("/dev/zero", p)], ids="pipe folder device".split()
)
def test_a_model_that_is_no_file(tmp_path, make):
    make(tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"it is a (pipe|folder|device), expected a file"):
        byoc.compile(tmp_path / "m.onnx")
