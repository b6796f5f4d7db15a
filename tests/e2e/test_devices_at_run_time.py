"""A device when a model runs: options of loading, errors that name the call, and the form without the device."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native
VENDOR = "device_npu"
X = np.array([[1.0, -2.0, 3.0], [-0.5, 5.0, 0.25]], "float32")
WANT = np.maximum(np.exp(-(X + 1)), 1)
ALL = byoc.RegionPolicy()


@pytest.fixture
def device():
    """A backend for negative and add, whose device can be lost."""
    state = SimpleNamespace(lost="", calls=0, loaded=[], answer=True, before_lost=lambda: None)

    def load(data, options):
        state.loaded.append(dict(options))
        program = data.decode().split()

        def run(*tensors):
            state.calls += 1
            if state.lost:
                state.before_lost()
                raise RuntimeError(state.lost)
            value = np.from_dlpack(tensors[0])
            for op in program:
                value = value + np.float32(1) if op == "relax.add" else -value
            np.copyto(np.from_dlpack(tensors[-1]), value)

        return run

    def codegen(functions, _options, _names):
        made = []
        for f in functions:
            composites = [v for _, v in byoc.bindings_of(f) if isinstance(v, relax.Function)]
            ops = " ".join(byoc.composite_of(c).partition(".")[2] for c in composites)
            made.append(byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), ops.encode(), "chip 1"))
        return made

    byoc.register_annotate_compiler(VENDOR, ["relax.negative", "relax.add"])
    byoc.register_codegen(VENDOR, codegen)
    options = {"device": 0, "power": "high"}
    byoc.register_blob_runner(VENDOR, lambda words: state.answer, load, options=options)
    yield state
    byoc.unregister_compiler(VENDOR)


def model() -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            sums = builder.emit(relax.op.add(x, relax.const(np.float32(1))), "sums")
            turned = builder.emit(relax.op.negative(sums), "turned")
            raised = builder.emit(relax.op.exp(turned))
            result = builder.emit_output(relax.op.maximum(raised, relax.const(np.float32(1))))
        builder.emit_func_output(result)
    return builder.get()


def compiled(tmp_path, **options):
    path = tmp_path / "model.so"
    byoc.compile(model(), [VENDOR, "dnnl"], policy=ALL, **options).export_library(path)
    return path


# ---------------------------------------------------------------- errors
def test_an_error_names_the_region_the_compiler_and_the_calls(device, tmp_path):
    runner = byoc.load(compiled(tmp_path))
    device.lost = "NPU0: device lost (0x17)"
    names = r"the region computes sums \(relax.add\), turned \(relax.negative\)"
    for call in (runner, lambda x: runner.submit(x).result(), lambda x: runner.run_tvm(tvm.runtime.tensor(x))):
        with pytest.raises(byoc.VendorError, match=f"region '{VENDOR}_0' of '{VENDOR}': .*device lost.*; {names}"):
            call(X)
    runner.close()


# ---------------------------------------------------------------- without the device
@pytest.mark.parametrize("saved", [True, False], ids=["file", "memory"])
@pytest.mark.parametrize("fallback", [True, "once"])
def test_a_model_goes_on_without_its_device(device, fallback, saved, tmp_path, caplog):
    executable = byoc.compile(model(), [VENDOR, "dnnl"], policy=ALL, fallback=fallback)
    path = tmp_path / "model.so"
    executable.export_library(path)
    runner = byoc.load(path) if saved else byoc.Runner(executable)
    np.testing.assert_allclose(runner(X), WANT, rtol=1e-6)
    device.lost, device.calls = "NPU0: device lost (0x17)", 0
    for number in range(3):
        np.testing.assert_allclose(runner(X), WANT, rtol=1e-6)
        assert device.calls == (1 if fallback is True else 1 + number)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == (1 if fallback is True else 3)
    assert all(f"region '{VENDOR}_0' of '{VENDOR}'" in text and "device lost" in text for text in warnings)
    device.lost, device.calls = "", 0
    np.testing.assert_allclose(runner(X), WANT, rtol=1e-6)
    assert device.calls == (0 if fallback is True else 1)


@pytest.mark.parametrize("fallback", [True, "once"])
@pytest.mark.parametrize("is_there", [True, False], ids=["no device", "no package"])
def test_it_is_loaded_where_the_device_is_not(device, fallback, is_there, tmp_path):
    path = compiled(tmp_path, fallback=fallback)
    if is_there:
        device.answer = byoc.Reject("it needs driver 2")
    else:
        byoc.unregister_compiler(VENDOR)
    runner = byoc.load(path)
    for _ in range(2):
        np.testing.assert_allclose(runner(X), WANT, rtol=1e-6)
    assert [i.name for i in runner.inputs] == ["x"]
    assert sum(c.compiler == VENDOR for c in byoc.explain(path).calls) == 2
    if not is_there:
        byoc.register_annotate_compiler(VENDOR, ["relax.negative"])


def test_every_thread_goes_on(device, tmp_path):
    runner = byoc.load(compiled(tmp_path, fallback=True))
    runner(X)
    device.lost, results = "lost", []
    device.before_lost = threading.Barrier(4, timeout=60).wait  # all are in the device when the first goes on
    threads = [threading.Thread(target=lambda: results.append(runner(X))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_allclose(result, WANT, rtol=1e-6)


def test_an_input_that_is_wrong_is_no_reason_to_go_on_without_it(device, tmp_path):
    runner = byoc.load(compiled(tmp_path, fallback=True))
    with pytest.raises(byoc.InputError):
        runner(X[:1])
    device.calls = 0
    runner(X)
    assert device.calls


def test_a_model_without_regions_of_devices_has_no_second_form(tmp_path):
    executable = byoc.compile(model(), "dnnl", policy=ALL, fallback=True)
    assert not executable.mod.implements_function("byoc_fallback")
    np.testing.assert_allclose(byoc.Runner(executable)(X), WANT, rtol=1e-6)


@pytest.mark.parametrize("fallback", ["twice", 3, None])
def test_another_fallback_is_refused(fallback):
    with pytest.raises(byoc.InputError, match=r"fallback is .*; expected one of False, True, 'once'"):
        byoc.compile(model(), "dnnl", fallback=fallback)


# ---------------------------------------------------------------- options and answers of loading
def test_options_of_loading_reach_the_vendor(device, tmp_path):
    path = compiled(tmp_path)
    device.loaded.clear()
    byoc.load(path)(X)
    byoc.load(path, options={VENDOR: {"device": 2}})(X)
    assert device.loaded == [{"device": 0, "power": "high"}, {"device": 2, "power": "high"}]


WRONG = {
    "name": ({VENDOR: {"devise": 1}}, f"'{VENDOR}' has no option 'devise'; its options and their defaults: device=0"),
    "type": ({VENDOR: {"device": "1"}}, f"option 'device' of '{VENDOR}' is '1'; expected int"),
    "compiler": ({"nobody": {"device": 1}}, "unknown compiler 'nobody'; registered: "),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_of_loading_is_an_error(device, options, message, tmp_path):
    path = compiled(tmp_path)
    with pytest.raises(byoc.InputError, match=message):
        byoc.load(path, options=options)


def test_a_declared_option_has_a_type():
    with pytest.raises(TypeError, match="the default of option 'device' is None"):
        byoc.register_blob_runner("x_npu", lambda words: True, lambda data: print, options={"device": None})


def test_what_works_and_is_not_optimal_is_loaded_with_a_warning(device, tmp_path, caplog):
    path = compiled(tmp_path)
    device.answer = byoc.Works("made for chip 1, here is chip 2")
    np.testing.assert_allclose(byoc.load(path)(X), WANT, rtol=1e-6)
    assert "it works here, but is not optimal: made for chip 1, here is chip 2" in caplog.text


# ---------------------------------------------------------------- times
@pytest.mark.parametrize("lazily", [True, False])
def test_a_profile_shows_the_times_that_a_device_tells(lazily):
    told, asked = [("first", 0.25), ("second", 0.5)], []

    def load(data):
        def run(x, y):
            np.copyto(np.from_dlpack(y), -(np.from_dlpack(x) + np.float32(1)))
            byoc.layer_times((lambda: asked.append(1) or told) if lazily else told)

        return run

    def codegen(functions, _options, _names):
        return [byoc.blob_module("timed_npu", str(f.attrs["global_symbol"]), b"", "") for f in functions]

    byoc.register_annotate_compiler("timed_npu", ["relax.negative", "relax.add"])
    byoc.register_codegen("timed_npu", codegen)
    byoc.register_blob_runner("timed_npu", lambda words: True, load)
    try:
        executable = byoc.compile(model(), ["timed_npu", "dnnl"], policy=ALL)
        byoc.Runner(executable)(X)
        assert not asked  # only a profile listens
        steps = byoc.profile(executable, [X], repeat=2, warmup=0).steps
    finally:
        byoc.unregister_compiler("timed_npu")
    own = [(s.kind, s.seconds) for s in steps if s.region == "timed_npu_0"]
    assert own == [("first", 0.25), ("second", 0.5), ("timed_npu_0", 0.0)]
    assert {s.region for s in steps} > {"timed_npu_0"}


def test_a_profile_names_the_region_of_a_device_that_tells_no_times(device):
    steps = byoc.profile(byoc.compile(model(), VENDOR, policy=ALL), [X], repeat=1, warmup=0).steps
    (step,) = [s for s in steps if s.region == f"{VENDOR}_0"]
    assert step.calls == ["sums", "turned"] and step.seconds > 0


def test_a_module_that_cannot_be_opened_is_refused_each_time(device):
    executable = byoc.compile(model(), VENDOR, policy=ALL)
    device.answer = byoc.Reject("it needs driver 2")
    for _ in range(2):
        with pytest.raises(byoc.ArtifactError, match="for another setting: it needs driver 2"):
            byoc.Runner(executable)
    device.answer = True
    np.testing.assert_allclose(byoc.Runner(executable)(X), WANT, rtol=1e-6)
