"""A device with a memory of its own: values stay there from region to region, and work is queued."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native
VENDOR = "memory_npu"
X = np.array([[1.0, -2.0, 3.0], [-0.5, 5.0, 0.25]], "float32")
ALL = byoc.RegionPolicy()
OPS = {
    "relax.negative": np.negative,
    "relax.abs": np.abs,
    "relax.add": np.add,
    "relax.subtract": np.subtract,
}


class Pending:
    """A buffer whose value the queue computes when somebody waits for it."""

    def __init__(self, compute):
        self.compute, self.value = compute, None


class Simulator(byoc.DeviceMemory):
    """Counts; reads the host's memory in place, as late as it may."""

    def __init__(self, options):
        super().__init__(options)
        self.state = STATE
        STATE.opened.append(options)
        self.queue = []

    def copy_in(self, tensor):
        self.state.count("in")
        return Pending(lambda: np.from_dlpack(tensor))

    def enqueue(self, run, *arguments):
        if self.state.lost == "enqueue":
            raise RuntimeError("queue full")
        return run(*arguments)

    def wait(self, buffer):
        self.state.count("wait")
        if self.state.lost == "wait":
            raise RuntimeError("device lost")
        force(buffer)

    def copy_out(self, buffer):
        self.state.count("out")
        return self.state.change(buffer.value)


def force(buffer):
    if buffer.value is None:
        buffer.value = np.array(buffer.compute())
    return buffer.value


class State(SimpleNamespace):
    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def taken(self):
        taken, self.counts = self.counts, {}
        return taken


STATE: State


def load(data, options, memory):
    """``op operand operand …``, one line for each composite; an operand is the number of a value."""
    STATE.count("load")
    *program, returned = [line.split() for line in data.decode().splitlines()]

    def run(*buffers):
        assert isinstance(memory, Simulator)
        STATE.count("run")
        known = {}

        def value(number):
            if number < len(buffers):
                return force(buffers[number])
            if number not in known:
                op, *operands = program[number - len(buffers)]
                known[number] = OPS[op](*map(value, map(int, operands)))
            return known[number]

        results = [Pending(lambda number=number: value(number)) for number in map(int, returned)]
        return results[0] if len(results) == 1 else results

    return STATE.replace_run or run


def program(region):
    numbers = {p: i for i, p in enumerate(region.params)}
    composites, lines = {}, []
    for var, value in byoc.bindings_of(region):
        if isinstance(value, relax.Function):
            composites[var] = byoc.composite_of(value).partition(".")[2]
        elif isinstance(value, relax.Call):
            lines.append(" ".join([composites[value.op], *(str(numbers[a]) for a in value.args)]))
            numbers[var] = len(region.params) + len(lines) - 1
        elif isinstance(value, relax.Tuple):
            numbers[var] = [numbers[field] for field in value.fields]
        else:
            numbers[var] = numbers[value]
    body = region.body.body
    results = [numbers[f] for f in body.fields] if isinstance(body, relax.Tuple) else numbers[body]
    results = results if isinstance(results, list) else [results]
    return "\n".join([*lines, " ".join(map(str, results))]).encode()


def codegen(functions, options, names):
    return [byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), program(f), "1") for f in functions]


@pytest.fixture
def device():
    global STATE
    STATE = State(
        counts={}, lock=threading.Lock(), lost="", change=lambda value: value, replace_run=None, opened=[], most=1
    )

    def fits(region):
        calls = sum(isinstance(value, relax.Call) for _, value in byoc.bindings_of(region))
        return True if calls <= STATE.most else byoc.Reject(f"{calls} calls")

    byoc.register_annotate_compiler(VENDOR, [*OPS])
    byoc.register_codegen(VENDOR, codegen)
    byoc.register_blob_runner(VENDOR, lambda words: True, load, options={"index": 0})
    byoc.register_namespace(VENDOR, memory=Simulator, fits=fits)
    yield STATE
    byoc.unregister_compiler(VENDOR)


def function(write, names="x", shape=X.shape):
    params = [relax.Var(name, relax.TensorType(shape, "float32")) for name in names]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            made = write(builder, *params)
            outputs = [builder.emit_output(m) for m in (made if isinstance(made, list) else [made])]
        builder.emit_func_output(outputs if isinstance(made, list) else outputs[0])
    return builder.get()


def chain(count):
    def write(builder, x):
        for _ in range(count):
            x = builder.emit(relax.op.negative(x))
        return x

    return write


def residual(builder, x):
    a = builder.emit(relax.op.negative(x))
    b = builder.emit(relax.op.abs(a))
    return relax.op.add(a, b)


def host_between(builder, x):
    a = builder.emit(relax.op.negative(x))
    b = builder.emit(relax.op.exp(a))
    return relax.op.add(builder.emit(relax.op.abs(a)), b)


def intermediate_of_the_host(builder, x):
    a = builder.emit(relax.op.exp(x))
    b = builder.emit(relax.op.negative(a))
    c = builder.emit(relax.op.tanh(x))  # could be where a was, if that were not read late
    d = builder.emit(relax.op.multiply(c, c))
    return relax.op.add(b, d)


def two_outputs(builder, x):
    a = builder.emit(relax.op.negative(x))
    return [a, relax.op.abs(a)]


# name: (function, reference, most calls of a region, copies in, runs, copies out)
CASES = {
    "4 regions in a row": (chain(4), lambda x: x, 1, 1, 4, 1),
    "1 region": (chain(4), lambda x: x, 4, 1, 1, 1),
    "2 readers": (residual, lambda x: -x + np.abs(x), 1, 1, 3, 1),
    "a reader on the host": (host_between, lambda x: np.abs(x) + np.exp(-x), 1, 2, 3, 2),
    "the host's memory is not used again": (
        intermediate_of_the_host,
        lambda x: np.tanh(x) ** 2 - np.exp(x),
        1,
        2,
        2,
        1,
    ),
    "2 results of the model": (two_outputs, lambda x: [-x, np.abs(x)], 1, 1, 2, 2),
    "2 results of a region": (two_outputs, lambda x: [-x, np.abs(x)], 2, 1, 1, 2),
}


@pytest.mark.parametrize("saved", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize(("write", "reference", "most", "copies_in", "runs", "copies_out"), CASES.values(), ids=CASES)
def test_values_stay_on_the_device(device, write, reference, most, copies_in, runs, copies_out, saved, tmp_path):
    device.most = most
    executable = byoc.compile(function(write), VENDOR, policy=ALL, strict=True)
    if saved:
        executable.export_library(tmp_path / "m.so")
    runner = byoc.load(tmp_path / "m.so") if saved else byoc.Runner(executable)
    assert device.taken()["load"] <= runs
    assert len(device.opened) == 1  # one memory for all regions
    for _ in range(2):
        got = runner(X)
        for value, want in zip(got if isinstance(got, list) else [got], np.atleast_3d(reference(X)).reshape(-1, 2, 3)):
            np.testing.assert_allclose(value, want, rtol=1e-6)
        expected = {"in": copies_in, "out": copies_out, "wait": copies_out, "run": runs}
        assert device.taken() == expected  # and no weights again


def test_sizes_may_be_open(device):
    n = tvm.tirx.Var("n", "int64")
    runner = byoc.Runner(byoc.compile(function(chain(3), shape=(n, 3)), VENDOR, policy=ALL, strict=True))
    for rows in (1, 2, 0):
        np.testing.assert_array_equal(runner(X[:rows]), -X[:rows])


def test_each_loaded_model_has_a_memory_and_its_options(device, tmp_path):
    byoc.compile(function(chain(2)), VENDOR, policy=ALL).export_library(tmp_path / "m.so")
    for number in (1, 0):
        np.testing.assert_array_equal(byoc.load(tmp_path / "m.so", options={VENDOR: {"index": number}})(X), X)
    assert [options["index"] for options in device.opened] == [1, 0]


def test_threads_share_the_memory(device):
    runner = byoc.Runner(byoc.compile(function(chain(2)), VENDOR, policy=ALL), workers=3)
    for future in [runner.submit(X + k) for k in range(9)]:
        assert future.result().shape == X.shape
    assert len(device.opened) == 1


def test_a_memory_may_be_of_a_device_that_tvm_knows(device):
    ran = []

    def run(tensor):
        ran.append((str(tensor.device), tensor.data_ptr()))
        return tvm.runtime.tensor(-tensor.numpy(), tensor.device)

    device.replace_run = run
    byoc.register_namespace(VENDOR, memory=lambda options: byoc.TvmMemory(options, tvm.cpu(1)))
    np.testing.assert_array_equal(byoc.Runner(byoc.compile(function(chain(3)), VENDOR, policy=ALL))(X), -X)
    assert [where for where, _ in ran] == ["cpu:1"] * 3


def test_a_library_that_was_compiled_before_there_was_a_memory_still_runs(device, tmp_path):
    memory = tmp_path / "m.so"
    byoc.unregister_compiler(VENDOR)
    byoc.register_annotate_compiler(VENDOR, [*OPS])
    byoc.register_codegen(VENDOR, codegen)
    byoc.register_blob_runner(VENDOR, lambda words: True, lambda data: lambda *tensors: None)
    byoc.compile(function(two_outputs), VENDOR, policy=ALL).export_library(memory)
    byoc.register_blob_runner(VENDOR, lambda words: True, load)
    byoc.register_namespace(VENDOR, memory=Simulator)
    for got, want in zip(byoc.load(memory)(X), [-X, np.abs(X)], strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_library_for_a_memory_needs_one(device, tmp_path):
    byoc.compile(function(chain(2)), VENDOR, policy=ALL).export_library(tmp_path / "m.so")
    byoc.unregister_compiler(VENDOR)
    byoc.register_annotate_compiler(VENDOR, [*OPS])
    byoc.register_blob_runner(VENDOR, lambda words: True, lambda data: lambda *tensors: None)
    with pytest.raises(byoc.ArtifactError, match=f"the package of compiler {VENDOR} has none: .* no memory="):
        byoc.load(tmp_path / "m.so")


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize(("lost", "said"), [("enqueue", "run raised .*queue full"), ("wait", "wait raised .*lost")])
def test_an_error_names_the_region_that_computes_the_value(device, lost, said, fallback):
    runner = byoc.Runner(byoc.compile(function(chain(2)), VENDOR, policy=ALL, fallback=fallback))
    device.lost = lost
    if fallback:
        np.testing.assert_array_equal(runner(X), X)
        return
    with pytest.raises(byoc.VendorError, match=f"region '{VENDOR}_0' of '{VENDOR}': {said}.*computes"):
        runner(X)


WRONG = {
    "no result": ({"replace_run": lambda *b: None}, r"run gave NoneType, which is 1 value\(s\); expected a buffer"),
    "too many results": ({"replace_run": lambda *b: [b[0], b[0]]}, r"run gave list, which is 2 value\(s\)"),
    "raises": ({"replace_run": lambda *b: {}["stride"]}, "run raised KeyError: 'stride'"),
    "another shape": (
        {"change": lambda v: v.T},
        r"copy_out gave float32\[3, 2\]; the region's result is float32\[2, 3\]",
    ),
    "another dtype": ({"change": lambda v: v.astype("int8")}, r"copy_out gave int8\[2, 3\]; the region's"),
    "no array": ({"change": lambda v: None}, "copy_out returned None; expected an array"),
    "no tensor": ({"change": lambda v: "x"}, "copy_out"),
}


@pytest.mark.parametrize(("parts", "message"), WRONG.values(), ids=WRONG)
def test_what_a_device_does_wrong_is_an_error(device, parts, message):
    vars(device).update(parts)
    runner = byoc.Runner(byoc.compile(function(chain(1)), VENDOR, policy=ALL))
    with pytest.raises(byoc.ByocError, match=message):
        runner(X)


def test_copies_are_in_the_profile_of_their_region(device):
    steps = byoc.profile(byoc.compile(function(host_between), VENDOR, policy=ALL), [X], repeat=1).steps
    of_regions = {step.kind for step in steps if step.region != "tvm"}
    assert {f"{VENDOR}_0", f"{VENDOR}_0.copy_in", f"{VENDOR}_0.copy_out"} <= of_regions
    assert {step.kind.partition(".")[2] for step in steps if step.region == "tvm"} == {""}


def test_a_memory_without_a_function_is_an_error_of_loading(device):
    byoc.register_namespace(VENDOR, memory=lambda options: object())
    executable = byoc.compile(function(chain(1)), VENDOR, policy=ALL)
    with pytest.raises(byoc.ArtifactError, match="which has no function copy_in; derive it from DeviceMemory"):
        byoc.Runner(executable)


def test_a_memory_is_for_blobs(device):
    byoc.register_codegen(
        VENDOR,
        lambda fs, *_: [byoc.c_source_module("int x;", [str(f.attrs["global_symbol"])]) for f in fs],
        override=True,
    )
    with pytest.raises(byoc.UnsupportedError, match=r"module of kind c; memory= is for byoc\.blob_module"):
        byoc.compile(function(chain(1)), VENDOR, policy=ALL, strict=True)
    with pytest.raises(TypeError, match="memory is 3; expected a function"):
        byoc.register_namespace(VENDOR, memory=3)
