"""`tvm_byoc_dnnl.ort` beside ONNX Runtime, call by call: results, descriptions, and the classes of errors."""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import threading
import warnings
from functools import partial

import numpy as np
import onnx
import pytest

from tvm_byoc_dnnl import ort as ours
from tvm_byoc_dnnl.core.errors import ByocError

theirs = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.native

TWO_OUTPUTS = """<ir_version: 8, opset_import: ["": 17], producer_name: "me", domain: "d", model_version: 3>
g (float[N, 3] x, int64[3] k) => (float[N, 3] y, z)
{ c = Cast<to = 1>(k) y = Add(x, c) s = Mul(x, x) z = ReduceSum<keepdims = 0>(s) }"""
STRINGS = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
g (string[N] x) => (int64[N] y)
{ y = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [1, 2]>(x) }"""
REPLACED = """<ir_version: 8, opset_import: ["": 17]>
g (float[3] x, float[3] b) => (float[3] y) <float[3] b = {1, 2, 3}>
{ y = Add(x, b) }"""


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TVM_BYOC_CACHE", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    theirs.set_default_logger_severity(4)


def model(text: str) -> bytes:
    return onnx.parser.parse_model(text).SerializeToString()


def feed(rows: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.arange(3 * rows, dtype="float32").reshape(rows, 3), "k": np.arange(3)}


def outcome(call):
    """The result of a call, or the name of its error's class."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


CALLS = {
    "all outputs": (None, feed()),
    "an empty list of outputs": ([], feed()),
    "some outputs, in another order": (["z", "y"], feed()),
    "one output": (["z"], feed(5)),
    "no rows": (None, feed(0)),
    "lists": (None, {"x": [[1.0, 2.0, 3.0]], "k": [1, 2, 3]}),
    "an array that is not dense": (None, {"x": np.ones((4, 6), "float32")[::2, ::2], "k": np.arange(6)[::2]}),
    "an unknown output": (["w"], feed()),
    "a text in the place of names": ("z", feed()),
    "an unknown input": (None, {**feed(), "w": np.ones(3)}),
    "a missing input": (None, {"x": feed()["x"]}),
    "no input": (None, {}),
    "a wrong dtype": (None, {**feed(), "x": feed()["x"].astype("float64")}),
    "a wrong rank": (None, {**feed(), "x": np.ones(3, "float32")}),
    "a wrong size": (None, {**feed(), "x": np.ones((2, 4), "float32")}),
    "a wrong size of another": (None, {**feed(), "k": np.arange(4)}),
    "strings": (None, {**feed(), "k": np.array(["a", "b", "c"])}),
    "nothing": (None, {**feed(), "x": None}),
}
#: of which ONNX Runtime says less, or reads other numbers
UNREADABLE = {"rows of other lengths": [[1.0], [1.0, 2.0]], "bytes in another order": np.ones((2, 3), ">f4")}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_array_that_cannot_be_read(name):
    with pytest.raises(ours.InvalidArgument, match=r"float32|>f4"):
        ours.InferenceSession(model(TWO_OUTPUTS)).run(None, {**feed(), "x": UNREADABLE[name]})


@pytest.mark.parametrize("name", CALLS)
def test_a_call(name):
    outputs, inputs = CALLS[name]
    got, want = (
        outcome(lambda p=package: p.InferenceSession(model(TWO_OUTPUTS)).run(outputs, inputs))
        for package in (ours, theirs)
    )
    if isinstance(want, str):
        assert got == want
    else:
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-6)


LOADS = {
    "no file": lambda: "missing.onnx",
    "no model": lambda: b"this is no model",
    "no bytes": lambda: b"",
    "a number": lambda: 3,
    "an unknown operator": lambda: model(TWO_OUTPUTS.replace("Mul", "Mull")),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_model_that_cannot_be_loaded(name):
    want = outcome(lambda: theirs.InferenceSession(LOADS[name]()))
    assert outcome(lambda: ours.InferenceSession(LOADS[name]())) == want


def test_what_a_session_says():
    sessions = [package.InferenceSession(model(TWO_OUTPUTS)) for package in (ours, theirs)]
    for ask in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        got, want = ([(a.name, a.type, a.shape) for a in getattr(s, ask)()] for s in sessions)
        assert got == want
    fields = "producer_name graph_name domain description graph_description version custom_metadata_map".split()
    got, want = ({f: getattr(s.get_modelmeta(), f) for f in fields} for s in sessions)
    assert got == want
    assert sessions[0].get_providers() == sessions[1].get_providers()
    assert ours.get_device() == theirs.get_device()


def test_sizes_that_a_file_says_in_its_own_way():
    """-1 for an open size; no shape, no sizes at all."""
    proto = onnx.parser.parse_model(TWO_OUTPUTS)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    proto.graph.output[0].type.tensor_type.shape.dim[0].Clear()
    got, want = (package.InferenceSession(proto.SerializeToString()) for package in (ours, theirs))
    for ask in ("get_inputs", "get_outputs"):
        assert [a.shape for a in getattr(got, ask)()] == [a.shape for a in getattr(want, ask)()]
    np.testing.assert_allclose(got.run(["z"], feed(4)), want.run(["z"], feed(4)))


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_options_have_the_same_defaults(name):
    got, want = getattr(ours, name)(), getattr(theirs, name)()
    for field, value in vars(got).items():
        if not field.startswith("_"):
            assert getattr(want, field) == value or int(getattr(want, field)) == value, field


def _ending(package):
    options = package.RunOptions()
    options.terminate = True
    return options


def _warned(package, providers):
    with pytest.warns(UserWarning, match=f"Specified provider '{providers[0]}' is not in available"):
        return package.InferenceSession(model(TWO_OUTPUTS), providers=providers).get_providers()


OPTIONS = {
    "a text as a number": lambda o: setattr(o.SessionOptions(), "intra_op_num_threads", "2"),
    "a real number": lambda o: setattr(o.SessionOptions(), "inter_op_num_threads", 2.5),
    "a number of NumPy": lambda o: setattr(o.SessionOptions(), "intra_op_num_threads", np.int64(2)),
    "a number as a bool": lambda o: setattr(o.SessionOptions(), "enable_profiling", 1),
    "a level as a number": lambda o: setattr(o.SessionOptions(), "graph_optimization_level", 99),
    "a misspelt option": lambda o: setattr(o.SessionOptions(), "intra_op_num_thread", 2),
    "a misspelt option of a call": lambda o: setattr(o.RunOptions(), "terminated", True),
    "an entry that is no text": lambda o: o.SessionOptions().add_session_config_entry("a", 1),
    "a size that is no number": lambda o: o.SessionOptions().add_free_dimension_override_by_name("N", "3"),
    "an entry that was not set": lambda o: o.SessionOptions().get_session_config_entry("a"),
    "an entry of a call that was not set": lambda o: o.RunOptions().get_run_config_entry("a"),
    "an entry without a name": lambda o: o.RunOptions().add_run_config_entry("", "a"),
    "a type that is none": lambda o: o.OrtValue.ortvalue_from_shape_and_type([2], "nosuch"),
    "a call that is to end": lambda o: o.InferenceSession(model(TWO_OUTPUTS)).run(None, feed(), _ending(o)),
    "a number as options": lambda o: o.InferenceSession(model(TWO_OUTPUTS)).run(None, feed(), 3),
    "the name of a level": lambda o: str(o.GraphOptimizationLevel.ORT_DISABLE_ALL),
    "a tensor for another library": lambda o: np.from_dlpack(o.OrtValue.ortvalue_from_numpy(np.ones(3))).tolist(),
    "a tensor of another library": lambda o: o.OrtValue.from_dlpack(np.ones(3)).numpy().tolist(),
    "memory as bfloat16": lambda o: o.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ones(2, "uint16"), 16).data_type(),
    "memory of other numbers": lambda o: o.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ones(2), 16),
    "an error that only ONNX Runtime raises": lambda o: o.capi.onnxruntime_pybind11_state.NotFound.__name__,
    "a provider that is not there": lambda o: _warned(o, ["CUDAExecutionProvider", "CPUExecutionProvider"]),
    "where the classes of errors are": lambda o: sorted(
        {"Fail", "InvalidArgument", "NoSuchFile"} & set(dir(o.capi.onnxruntime_pybind11_state))
    ),
    "what is ONNX Runtime's alone": lambda o: o.get_build_info(),
    "what nobody has": lambda o: o.get_build_infos(),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_and_names(name):
    got, want = (outcome(lambda p=package: OPTIONS[name](p)) for package in (ours, theirs))
    assert got == want


def test_sequences():
    """They are given back as lists; who takes one is run by ONNX Runtime."""
    made = """<ir_version: 8, opset_import: ["": 17]>
    g (float[n] x) => (seq(float[n]) q, float[n] y) { q = SequenceConstruct(x, x) y = Relu(x) }"""
    read = """<ir_version: 8, opset_import: ["": 17]>
    g (seq(float[n]) q) => (int64 y) { y = SequenceLength(q) }"""
    x = np.array([1, -2], "float32")
    got, want = (package.InferenceSession(model(made)) for package in (ours, theirs))
    assert [a.type for a in got.get_outputs()] == [a.type for a in want.get_outputs()]
    assert got._foreign is None
    for one, other in zip(got.run(None, {"x": x}), want.run(None, {"x": x}), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.warns(RuntimeWarning, match=r"`q` is a seq\(tensor\(float\)\); expected a tensor"):
        assert ours.InferenceSession(model(read)).run(None, {"q": [x, x, x]}) == [3]


SESSION = """
import sys
import numpy as np
import tvm_byoc_dnnl.ort as ort
result = ort.InferenceSession("m.onnx").run(None, {"x": np.ones((1, 4), "float32")})[0]
np.testing.assert_allclose(result, np.full((1, 4), 4), rtol=1e-6)
"""
SECOND = """
import warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    ort.InferenceSession("strings.onnx")
assert "string" in str(said[-1].message), said
assert not {"tvm", "tvm_ffi", "torch", "onnx.reference"} & set(sys.modules)
import os
from importlib import metadata
from pathlib import Path
from tvm_byoc_dnnl.core import entries
from tvm_byoc_dnnl.runtime import CachedModel
def known(asked={}):
    return CachedModel(os.environ["TVM_BYOC_CACHE"], "m.onnx", asked).runner(None) is not None
def with_another(place, name, value):
    old, place[name] = place.get(name), value
    assert not known(), name
    place.pop(name) if old is None else place.update({name: old})
def with_damage(path, at):
    data = path.read_bytes()
    path.unlink()  # it is mapped
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert not known(), path
    path.write_bytes(data)
    assert known(), path
assert known() and not known({"x": [2, 4]})
with_another(vars(entries), "own_version", lambda: "9")
with_another(vars(entries), "version_of", lambda name: "9")
with_another(vars(entries), "cpu_fields", lambda: {"flags": "fpu"})
with_another(os.environ, "CC", "another")
with_another(os.environ, "ONEDNN_VERBOSE", "profile")
with_another(sys.modules, "tvm", None)
with_another(vars(metadata), "entry_points", lambda group: [metadata.EntryPoint("acme", "acme:register", group)])
folder = Path(os.environ["TVM_BYOC_CACHE"])
(entry,) = folder.glob("*.so")
(note,) = (file for file in folder.glob("*.note") if entry.stem in file.read_text())
for file in (Path("m.onnx"), Path("weights"), note):
    with_damage(file, file.stat().st_size - 10)
with_damage(entry, entry.stat().st_size // 2)
note.unlink()
assert not known()
"""


def test_free_dimensions_are_fixed():
    results = []
    for package in (ours, theirs):
        options = package.SessionOptions()
        options.add_free_dimension_override_by_name("N", 4)
        session = package.InferenceSession(model(TWO_OUTPUTS), options)
        results.append(([i.shape for i in session.get_inputs()], outcome(lambda s=session: s.run(None, feed(2)))))
    assert results[0] == results[1]


def test_bindings():
    into = np.zeros((2, 3), "float32")
    results = []
    for package in (ours, theirs):
        session, x = package.InferenceSession(model(TWO_OUTPUTS)), feed()["x"]
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
        binding.bind_cpu_input("k", feed()["k"])
        binding.bind_output("z")
        binding.bind_output("y", "cpu", 0, np.float32, into.shape, into.ctypes.data)
        session.run_with_iobinding(binding)
        results.append([*(y.copy() for y in binding.copy_outputs_to_cpu()), into.copy()])
        assert binding.get_outputs()[0].data_type() == "tensor(float)"
        into[:] = 0
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other)


def _wrong_bound(package, binding, shape, dtype):
    binding.bind_ortvalue_output("z", package.OrtValue.ortvalue_from_shape_and_type(shape, dtype))


BINDINGS = {
    "an unknown input": lambda package, binding: binding.bind_cpu_input("w", np.ones(3)),
    "an unknown output": lambda package, binding: binding.bind_output("w"),
    "no output": lambda package, binding: None,
    "a tensor of a wrong shape": lambda package, binding: _wrong_bound(package, binding, [7], np.float32),
    "a tensor of a wrong dtype": lambda package, binding: _wrong_bound(package, binding, [2, 3], np.float64),
    "a list": lambda package, binding: package.OrtValue.ortvalue_from_numpy([1.0]),
    "texts": lambda package, binding: package.OrtValue.ortvalue_from_numpy(np.array(["a"])),
}


@pytest.mark.parametrize("name", BINDINGS)
def test_a_wrong_binding(name):
    for package in (ours, theirs):
        session = package.InferenceSession(model(TWO_OUTPUTS))
        binding = session.io_binding()
        for key, value in feed().items():
            binding.bind_cpu_input(key, value)
        run = [partial(BINDINGS[name], package, binding), partial(session.run_with_iobinding, binding)]
        assert outcome(lambda run=run: [call() for call in run]) == "RuntimeError"


def test_a_session_says_what_to_send_instead_of_it():
    with pytest.raises(TypeError, match="give the other process the path"):
        pickle.dumps(ours.InferenceSession(model(TWO_OUTPUTS)))
    with pytest.raises(TypeError, match="is a RunOptions; expected SessionOptions"):
        ours.InferenceSession(model(TWO_OUTPUTS), ours.RunOptions())


def test_tensors():
    for package in (ours, theirs):
        value = package.OrtValue.ortvalue_from_numpy(feed()["x"])
        assert (value.shape(), value.data_type(), value.element_type(), value.device_name()) == (
            [2, 3], "tensor(float)", 1, "cpu"
        )  # fmt: skip
        empty = package.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
        empty.update_inplace(feed()["x"])
        np.testing.assert_array_equal(empty.numpy(), feed()["x"])
        session = package.InferenceSession(model(TWO_OUTPUTS))
        k = package.OrtValue.ortvalue_from_numpy(feed()["k"])
        (z,) = session.run_with_ort_values(["z"], {"x": empty, "k": k})
        np.testing.assert_allclose(z.numpy(), 55)


def test_calls_in_another_thread():
    session = ours.InferenceSession(model(TWO_OUTPUTS))
    for inputs, failed in ((feed(), False), ({}, True)):
        done = threading.Event()
        seen = []
        session.run_async(["z"], inputs, lambda *told, s=seen, d=done: (s.extend(told), d.set()), "mine")
        assert done.wait(60)
        assert seen[1] == "mine"
        assert bool(seen[2]) == failed
        assert len(seen[0]) == (not failed)


def test_profiling():
    options = ours.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, "times"
    session = ours.InferenceSession(model(TWO_OUTPUTS), options)
    session.run(None, feed())
    session.run(None, feed())
    with open(session.end_profiling(), encoding="utf-8") as file:
        assert [event["name"] for event in json.load(file)] == ["model_run"] * 2


def test_what_is_refused_goes_to_onnxruntime():
    with pytest.warns(RuntimeWarning, match="ONNX Runtime runs this model, because") as said:
        session = ours.InferenceSession(model(STRINGS))
    assert len(said) == 1
    assert session.get_inputs()[0].type == "tensor(string)"
    np.testing.assert_array_equal(session.run(None, {"x": np.array(["b", "a"], object)})[0], [2, 1])
    with pytest.raises(ours.InvalidArgument):
        session.run(["w"], {"x": np.array(["b"], object)})
    with pytest.raises(ByocError):
        ours.InferenceSession(model(STRINGS), fallback=False)


@pytest.mark.filterwarnings("ignore:ONNX Runtime runs this model")
def test_weights_from_outside(tmp_path):
    file = tmp_path / "m.onnx"
    stored = onnx.parser.parse_model(REPLACED)
    del stored.graph.input[1]
    onnx.save(stored, file, save_as_external_data=True, location="m.data", size_threshold=0)
    options = ours.SessionOptions()
    options.add_initializer("b", ours.OrtValue.ortvalue_from_numpy(np.ones(3, "float32")))
    got = ours.InferenceSession(file, options).run(None, {"x": np.ones(3, "float32")})[0]
    np.testing.assert_array_equal(got, [2, 2, 2])


def test_an_initialiser_that_a_call_replaces():
    session = ours.InferenceSession(model(REPLACED))
    assert [i.name for i in session.get_overridable_initializers()] == ["b"]
    x = np.ones(3, "float32")
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], [2, 3, 4])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            np.testing.assert_array_equal(session.run(None, {"x": x, "b": x})[0], [2, 2, 2])
    assert len(said) == 1


def test_programs_and_their_second_start(tmp_path):
    """One that imports onnxruntime; and one that finds its model without TVM, and nothing but that very model."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 4] y) { y = MatMul(x, w) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), "float32"), "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "strings.onnx").write_bytes(model(STRINGS))
    (tmp_path / "app.py").write_text(
        SESSION + "import onnxruntime as ort\n"
        "from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NotFound\n"
        "import onnxruntime.tools\n"
        "assert ort.__name__ == 'tvm_byoc_dnnl.ort', ort\n"
        "session = ort.InferenceSession(sys.argv[1])\n"
        "print(session.run(None, {'x': np.array(['b'], object)}))\n"
        "try: session.run(['w'], {'x': np.array(['b'], object)})\n"
        "except InvalidArgument: print('refused')\n"
    )
    for program in (
        ["-m", "tvm_byoc_dnnl.ort", "app.py", "strings.onnx"],
        ["-c", f"{SESSION}{SECOND}print('refused')"],
    ):
        command = [sys.executable, *program]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
        assert "refused" in result.stdout, result.stderr
    assert len(list((tmp_path / "models").glob("*.so"))) == 1


def test_a_terminal_shows_that_a_model_is_loaded(monkeypatch):
    shown = []
    monkeypatch.setattr("tvm_byoc_dnnl.ort.session.progress", lambda m: shown.append(m) or contextlib.nullcontext())
    session = ours.InferenceSession(model(TWO_OUTPUTS), fallback=False)
    assert repr(session).startswith("<InferenceSession: [NodeArg(name='x', type='tensor(float)', shape=")
    assert shown == ["Loading a model, which is compiled at its first use …"]
