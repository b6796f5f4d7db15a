"""Fourier transforms, which TVM's importer does not know, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.harness import assert_right
from tests.unit.importing import check, node, onnx_model, prepared, rand, run
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.frontends import to_relax


def dft(shape: tuple[int, ...], opset: int, length: int | None = None, axis: int | None = None, **attrs: Any) -> Any:
    constants = {"n": np.int64(length)} if length else {}
    if opset < 20:
        attrs |= {} if axis is None else {"axis": axis}
    elif axis is not None:
        constants["axis"] = np.int64(axis)
    inputs = ["x", "n" if length else "", *(["axis"] if "axis" in constants else [])]
    inputs = inputs[:1] if inputs == ["x", ""] else inputs
    return onnx_model([node("DFT", inputs, ["y"], **attrs)], {"x": shape}, constants, opset=opset)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 7, 1), {}),
        ((2, 8, 1), {"onesided": 1}),
        ((2, 7, 1), {"onesided": 1}),
        ((3, 9, 2), {}),
        ((3, 9, 2), {"inverse": 1}),
        ((2, 5, 3, 1), {"axis": 1}),
        ((2, 5, 6, 2), {"axis": 2, "inverse": 1}),
        ((2, 9, 1), {"length": 5, "axis": 1}),
        ((2, 5, 1), {"length": 9, "axis": 1, "onesided": 1}),
        ((2, 1, 1), {}),
    ],
    ids=str,
)
def test_dft(opset: int, shape: tuple[int, ...], options: dict[str, int]) -> None:
    got = check(dft(shape, opset, **options))
    assert got["matmul"] == 1


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("length", [None, 6, 7, 4, 10])
def test_dft_back_to_a_real_signal(opset: int, length: int | None) -> None:
    x = rand(2, 4, 2)
    x[:, 0, 1] = x[:, -1, 1] = 0  # as the spectrum of a real signal has it
    model = dft((2, 4, 2), opset, length, axis=1, inverse=1, onesided=1)
    got = run(prepared(to_relax(model)), x)[0]
    if length == 4:  # cut to three bins, of which the last is its own mirror image
        x[:, 2, 1] = 0
    want = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length, axis=1)
    assert_right(got[..., 0], want.astype("float32"), 5e-6)


def stft(shape: tuple[int, ...], constants: dict[str, Any], inputs: list[str], **attrs: Any) -> Any:
    return onnx_model([node("STFT", inputs, ["y"], **attrs)], {"x": shape}, constants)


WINDOW = np.hanning(16).astype("float32") + np.float32(0.1)
STEP = {"step": np.int64(6)}


@pytest.mark.parametrize(
    ("shape", "constants", "inputs", "attrs"),
    [
        ((2, 61, 1), {**STEP, "w": WINDOW}, ["x", "step", "w"], {}),
        ((2, 61, 1), {**STEP, "w": WINDOW}, ["x", "step", "w"], {"onesided": 0}),
        ((2, 61, 1), {**STEP, "n": np.int64(15)}, ["x", "step", "", "n"], {}),
        ((1, 64, 1), {**STEP, "w": WINDOW, "n": np.int64(16)}, ["x", "step", "w", "n"], {}),
        ((2, 61, 2), {**STEP, "w": WINDOW}, ["x", "step", "w"], {"onesided": 0}),
    ],
    ids=["window", "two-sided", "length", "both", "complex"],
)
def test_stft(shape: tuple[int, ...], constants: dict[str, Any], inputs: list[str], attrs: dict[str, int]) -> None:
    got = check(stft(shape, constants, inputs, **attrs))
    assert got["nn.conv1d"] == 1


def test_stft_whose_window_is_an_input() -> None:
    model = onnx_model([node("STFT", ["x", "step", "w"], ["y"])], {"x": (2, 61, 1), "w": (16,)}, STEP)
    got = check(model, inputs={"x": rand(2, 61, 1), "w": WINDOW})
    assert got["nn.conv1d"] == 1


def test_a_window_of_unknown_length_is_refused() -> None:
    model = onnx_model([node("STFT", ["x", "step", "w"], ["y"])], {"x": (2, 61, 1), "w": ("n",)}, STEP)
    with pytest.raises(UnsupportedError, match=r"STFT \(node `y`\) has frames of an open length"):
        to_relax(model)


def test_a_transform_too_long_for_a_matrix() -> None:
    with pytest.raises(UnsupportedError, match=r"DFT \(node `y`\) would be a matrix of 5000 x 10000 numbers"):
        to_relax(dft((1, 5000, 1), 20))


def test_a_long_transform_keeps_its_digits() -> None:
    """ONNX Runtime is off by 1e-4 here, so this is held to NumPy, which computes in float64."""
    x = rand(2, 1023, 1)
    got = run(prepared(to_relax(dft((2, 1023, 1), 20, onesided=1))), x)[0]
    want = np.fft.rfft(x[..., 0].astype("float64"), axis=1)
    assert_right(got, np.stack([want.real, want.imag], -1).astype("float32"), 2e-6)
