"""The backend is found, conforms, and computes a model from a file; what cannot be loaded says why."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.conformance import run_conformance

openvino = pytest.importorskip("openvino")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 8, 16, 16)).astype("float32")
W = RNG.standard_normal((8, 8, 3, 3)).astype("float32")


def model() -> tvm.IRModule:
    """``softmax(relu(conv(x)) + x)``, and an ``atan`` that OpenVINO is not asked for, behind it."""
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.nn.conv2d(x, relax.const(W), padding=1))
            total = builder.emit(relax.op.add(builder.emit(relax.op.nn.relu(product)), x))
            shares = builder.emit(relax.op.nn.softmax(total, axis=1))
            result = builder.emit_output(relax.op.atan(shares))
        builder.emit_func_output(result)
    return builder.get()


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return byoc.Runner(tvm.compile(model(), "llvm"))(X)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("openvino") / "model.so"
    byoc.compile(model(), "openvino", strict=True).export_library(path)
    return path


def compilers(mod: tvm.IRModule) -> list[str]:
    return sorted(str(f.attrs["Codegen"]) for f in mod.functions.values() if f.attrs and "Codegen" in f.attrs)


def test_it_is_found_by_its_entry_point() -> None:
    assert "openvino" in byoc.compilers()


def test_it_conforms() -> None:
    """A share of the kit; ``python -m tvm_byoc_dnnl.testing openvino`` runs the whole."""
    report = run_conformance("openvino", share=0.15)
    assert report.ok, report.to_text()
    assert {"relax.nn.conv2d", "relax.matmul"} <= {case.subject for case in report.cases if case.status == "taken"}


def test_a_model_is_right_here_and_from_a_file(library: Path, expected: np.ndarray) -> None:
    assert compilers(byoc.partition(model(), "openvino")) == ["openvino"]
    for run in (byoc.Runner(byoc.compile(model(), "openvino")), byoc.load(library)):
        np.testing.assert_allclose(run(X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernel", "groups"), [("HWIO", 1), ("OHWI", 1), ("HWIO", 4), ("OIHW", 4)])
def test_images_may_have_their_channels_last(kernel: str, groups: int) -> None:
    """As beside a compiler that wants them so: a convolution with its bias, a maximum and the mean of each channel."""
    x = relax.Var("x", relax.TensorType((2, 9, 7, 8), "float32"))
    sizes = {"H": 3, "W": 2, "I": 8 // groups, "O": 12}
    weight = relax.const(RNG.standard_normal([sizes[axis] for axis in kernel]).astype("float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            layouts = {"data_layout": "NHWC", "kernel_layout": kernel}
            product = relax.op.nn.conv2d(x, weight, padding=(1, 0, 0, 1), strides=(2, 1), groups=groups, **layouts)
            total = relax.op.add(builder.emit(product), relax.const(np.arange(12, dtype="float32")))
            most = relax.op.nn.max_pool2d(builder.emit(total), (2, 2), padding=(0, 1, 1, 0), layout="NHWC")
            mean = relax.op.nn.adaptive_avg_pool2d(builder.emit(most), (1, 1), layout="NHWC")
            result = builder.emit_output(mean)
        builder.emit_func_output(result)
    mod, data = builder.get(), RNG.standard_normal((2, 9, 7, 8)).astype("float32")
    got = byoc.Runner(byoc.compile(mod, "openvino", strict=True))(data)
    np.testing.assert_allclose(got, byoc.Runner(tvm.compile(mod, "llvm"))(data), rtol=1e-4, atol=1e-5)


def test_it_shares_a_model_with_another_compiler(expected: np.ndarray) -> None:
    placement = {"relax.nn.softmax": "dnnl"}
    mod = byoc.partition(model(), ["openvino", "dnnl"], place=placement)
    assert compilers(mod) == ["dnnl", "openvino"]
    run = byoc.Runner(byoc.compile(model(), ["openvino", "dnnl"], place=placement))
    np.testing.assert_allclose(run(X), expected, rtol=1e-4, atol=1e-5)


def test_threads_call_one_model(library: Path, expected: np.ndarray) -> None:
    run, wrong = byoc.load(library), []

    def work(scale: float) -> None:
        for _ in range(20):
            got = run(X * np.float32(scale))
            if scale == 1.0 and np.abs(got - expected).max() > 1e-4:
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (1.0, 0.5, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_model_is_imported_with_the_settings_that_it_was_compiled_with(precision, monkeypatch) -> None:
    from tvm_byoc_openvino import blob

    class Noting:
        """OpenVINO's core, which notes the settings of each call."""

        def __getattr__(self, name: str):
            def call(source, device, settings):
                settings_of[name] = settings
                return getattr(core, name)(source, device, settings)

            return call

    core, settings_of = blob._core(), {}
    blob._offered()
    monkeypatch.setattr(blob, "_core", Noting)
    byoc.Runner(byoc.compile(model(), "openvino", options={"openvino": {"precision": precision}}))
    assert settings_of["import_model"] == settings_of["compile_model"]
    assert settings_of["import_model"]["INFERENCE_PRECISION_HINT"] == precision


def test_a_process_that_only_imports_tvm_loads_it(library: Path) -> None:
    code = (
        "import sys, numpy as np, tvm; vm = tvm.relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu());"
        f"print(vm['main'](tvm.runtime.tensor(np.ones({X.shape}, 'float32'))).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, check=True)
    assert "1, 8, 16, 16" in done.stdout


def test_a_blob_of_another_version_is_refused_before_it_is_loaded(tmp_path: Path, monkeypatch) -> None:
    from tvm_byoc_openvino import blob

    monkeypatch.setattr(blob, "_requirements", lambda compiled: "ov=1.0;isa=Another")
    blob._offered.cache_clear()
    refused = r"region 'openvino_0' was compiled by 'openvino' for another setting: it needs 'ov=1.0;isa=Another'"
    ex = byoc.compile(model(), "openvino")
    monkeypatch.undo()
    blob._offered.cache_clear()
    ex.export_library(tmp_path / "model.so")
    with pytest.raises(byoc.ArtifactError, match=refused):
        byoc.load(tmp_path / "model.so")


def test_without_the_package_the_error_names_it(library: Path) -> None:
    code = (
        "import sys, importlib.metadata as m\n"
        "known = m.entry_points\n"
        "m.entry_points = lambda **k: () if k.get('group') == 'tvm_byoc_dnnl.vendors' else known(**k)\n"
        "import tvm_byoc_dnnl as byoc\n"
        "try: byoc.load(sys.argv[1])\n"
        "except byoc.ArtifactError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, check=True)
    assert "compiled by 'openvino', which is not there: unknown compiler 'openvino'" in done.stdout


WRONG = {
    "float64": ([(2, 3)], "float64", "relax.abs", "dtype float64; this backend computes in float32 only"),
    "open dims": ([(tvm.tirx.Var("n", "int64"), 3)], "float32", "relax.abs", "open dims .* needs fixed sizes"),
    "no elements": ([(0, 3)], "float32", "relax.abs", r"shape \[0, 3\] without elements"),
    "a vector": ([(3,), (3, 4)], "float32", "relax.matmul", "a product with a vector"),
}


@pytest.mark.parametrize(("shapes", "dtype", "op", "reason"), WRONG.values(), ids=WRONG)
def test_what_it_does_not_take_has_a_reason(shapes, dtype, op, reason) -> None:
    args = [relax.Var("x", relax.TensorType(shape, dtype)) for shape in shapes]
    call = getattr(relax.op, op.removeprefix("relax."))(*args)
    with pytest.raises(byoc.Reject, match=reason):
        byoc.get_annotate_compiler("openvino", op)(call.attrs, args)


def test_a_wrong_option_is_an_error() -> None:
    with pytest.raises(byoc.UnsupportedError, match="precision is 'f16'; expected 'f32' or 'bf16'"):
        byoc.compile(model(), "openvino", options={"openvino": {"precision": "f16"}}, strict=True)
