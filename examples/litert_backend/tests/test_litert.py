"""The backend is found, conforms, and computes models of float32 and of int8, here and from a file."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.conformance import run_conformance

pytest.importorskip("ai_edge_litert")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 8, 15, 16)).astype("float32")
W = RNG.standard_normal((8, 8, 3, 3)).astype("float32") / 8
BIAS = RNG.standard_normal((1, 8, 1, 1)).astype("float32")
QUANTISED = ("add", "conv", "conv", "pool")
STEP = {"int8": "1 step", "uint8": "1 step"}


def module(shape: tuple[int, ...], dtype: str, function: Callable[..., Any]) -> tvm.IRModule:
    """``function(emit, x)`` as a model."""
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(function(builder.emit, x))
        builder.emit_func_output(result)
    return builder.get()


def floats() -> tvm.IRModule:
    """``softmax(max_pool(relu(conv(x) + bias) + x))``, and an ``atan`` that LiteRT is not asked for, behind it."""

    def function(emit: Any, x: Any) -> Any:
        product = emit(R.nn.conv2d(x, relax.const(W), padding=1))
        total = emit(R.add(emit(R.nn.relu(emit(R.add(product, relax.const(BIAS))))), x))
        pooled = emit(R.nn.max_pool2d(total, (3, 3), (2, 2), padding=(1, 1, 1, 1)))
        return R.atan(emit(R.nn.softmax(pooled, axis=-1)))

    return module(X.shape, "float32", function)


def integers(dtype: str) -> tvm.IRModule:
    """``mean(relu6(depthwise(relu(conv(x)))) + relu(conv(x)))`` on integers."""
    zero = {"int8": -7, "uint8": 121}[dtype]

    def real(tensor: Any, scale: Any, point: Any, axis: int = 0) -> Any:
        return R.dequantize(tensor, byoc.make_constant(scale), byoc.make_constant(point), axis=axis)

    def function(emit: Any, x: Any) -> Any:
        point = np.asarray(zero, dtype)

        def dq(tensor: Any, scale: float) -> Any:
            return emit(real(tensor, np.float32(scale), point))

        def q(tensor: Any, scale: float) -> Any:
            args = byoc.make_constant(np.float32(scale)), byoc.make_constant(point)
            return emit(R.quantize(emit(tensor), *args, axis=1, out_dtype=dtype))

        def weights(*shape: int) -> Any:
            stored = byoc.make_constant(np.random.default_rng(1).integers(-127, 128, shape).astype("int8"))
            scales = np.linspace(0.002, 0.01, shape[0], dtype="float32")
            return emit(real(stored, scales, np.zeros(shape[0], "int8")))

        bias = relax.const(BIAS)
        first = emit(R.add(emit(R.nn.conv2d(dq(x, 0.03), weights(8, 8, 3, 3), strides=2, padding=1)), bias))
        first = q(R.nn.relu(first), 0.021)
        second = emit(R.nn.conv2d(dq(first, 0.021), weights(8, 1, 3, 3), padding=1, groups=8))
        second = q(R.clip(second, 0, 6), 0.019)
        total = q(R.add(dq(second, 0.019), dq(first, 0.021)), 0.035)
        return q(R.mean(dq(total, 0.035), [2, 3], keepdims=True), 0.02)

    return module(X.shape, dtype, function)


def random_integers(dtype: str) -> np.ndarray:
    return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, X.shape).astype(dtype)


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return byoc.Runner(tvm.compile(floats(), "llvm"))(X)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("litert") / "model.so"
    byoc.compile(floats(), "litert", strict=True).export_library(path)
    return path


def regions(mod: tvm.IRModule) -> list[Any]:
    return [f for f in mod.functions.values() if f.attrs and "Codegen" in f.attrs]


def test_it_is_found_by_its_entry_point() -> None:
    assert "litert" in byoc.compilers()


def test_it_conforms() -> None:
    """A share of the kit; ``python -m tvm_byoc_dnnl.testing litert`` runs the whole."""
    report = run_conformance("litert", share=0.1, tolerances=STEP)
    assert report.ok, report.to_text()
    taken = {case.subject for case in report.cases if case.status == "taken"}
    assert {"litert.product_with_bias", "litert.quantized_conv", "litert.quantized_pool", "relax.matmul"} <= taken


def test_a_model_is_right_here_and_from_a_file(library: Path, expected: np.ndarray) -> None:
    assert len(regions(byoc.partition(floats(), "litert"))) == 1
    for run in (byoc.Runner(byoc.compile(floats(), "litert")), byoc.load(library)):
        np.testing.assert_allclose(run(X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernels", ["xnnpack", "builtin", "reference"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_quantised_model_is_one_region_of_integers(dtype: str, kernels: str) -> None:
    mod = byoc.partition(integers(dtype), "litert")
    (region,) = regions(mod)
    composites = [byoc.composite_of(f) for _, f in byoc.bindings_of(region) if isinstance(f, relax.Function)]
    assert sorted(c for c in composites if "quantized" in c) == [f"litert.quantized_{n}" for n in QUANTISED]
    assert not any("quantize" in c.removeprefix("litert.quantized_") for c in composites)
    x = random_integers(dtype)
    want = byoc.Runner(tvm.compile(integers(dtype), "llvm"))(x).astype("int32")
    got = byoc.Runner(byoc.compile(integers(dtype), "litert", strict=True, options={"litert": {"kernels": kernels}}))(x)
    assert got.dtype == dtype
    assert np.ptp(want) > 10
    assert np.abs(got.astype("int32") - want).max() <= 1


def test_it_shares_a_model_with_another_compiler(expected: np.ndarray) -> None:
    placement = {"relax.nn.softmax": "dnnl"}
    run = byoc.Runner(byoc.compile(floats(), ["litert", "dnnl"], place=placement))
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


def test_a_process_that_only_imports_tvm_loads_it(library: Path) -> None:
    code = (
        "import sys, numpy as np, tvm; vm = tvm.relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu());"
        f"print(vm['main'](tvm.runtime.tensor(np.ones({X.shape}, 'float32'))).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, check=True)
    assert "1, 8, 8, 8" in done.stdout


def test_a_blob_of_another_version_is_loaded_with_a_warning(tmp_path: Path, monkeypatch, caplog, expected) -> None:
    from tvm_byoc_litert import region

    monkeypatch.setattr(region, "version", lambda package: "0.9")
    ex = byoc.compile(floats(), "litert")
    ex.export_library(tmp_path / "model.so")
    monkeypatch.undo()
    run = byoc.load(tmp_path / "model.so")
    assert "made for LiteRT 0.9, and here is" in caplog.text
    np.testing.assert_allclose(run(X), expected, rtol=1e-4, atol=1e-5)


WRONG = {
    "float64": ([(2, 3)], "float64", "relax.abs", "dtype float64; this backend has float32"),
    "integers": ([(2, 3)], "int8", "relax.abs", "dtype int8; this backend computes relax.abs in float32"),
    "open dims": ([(tvm.tirx.Var("n", "int64"), 3)], "float32", "relax.abs", "open dims .* needs fixed sizes"),
    "no elements": ([(0, 3)], "float32", "relax.abs", r"shape \[0, 3\] without elements"),
    "a vector": ([(3,), (3, 4)], "float32", "relax.matmul", "a product with a vector"),
    "five axes": ([(1, 2, 1, 2, 3), (2, 1, 2, 1, 1)], "float32", "relax.add", "broadcast of"),
    "weights": ([(1, 8, 8, 3), (4, 3, 3, 3)], "float32", "relax.nn.conv2d", "weights are not constant"),
}


@pytest.mark.parametrize(("shapes", "dtype", "op", "reason"), WRONG.values(), ids=WRONG)
def test_what_it_does_not_take_has_a_reason(shapes, dtype, op, reason) -> None:
    args = [relax.Var("x", relax.TensorType(shape, dtype)) for shape in shapes]
    function = R.nn.conv2d if "conv" in op else getattr(R, op.removeprefix("relax."))
    call = function(*args, **({"data_layout": "NHWC", "kernel_layout": "OHWI"} if "conv" in op else {}))
    with pytest.raises(byoc.Reject, match=reason):
        byoc.get_annotate_compiler("litert", op)(call.attrs, args)


def test_a_wrong_option_is_an_error() -> None:
    with pytest.raises(byoc.UnsupportedError, match="kernels is 'fast'; expected 'xnnpack', 'builtin', 'reference'"):
        byoc.compile(floats(), "litert", options={"litert": {"kernels": "fast"}}, strict=True)
