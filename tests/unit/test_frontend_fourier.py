"""ONNX's Fourier transforms as products with a matrix, compared with NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.importing import node, onnx_model, prepared, rand, run
from tvm_byoc_dnnl.errors import UnsupportedError
from tvm_byoc_dnnl.frontend import to_relax

TRANSFORMS: dict[str, Any] = {
    "complex": ((2, 6, 2), {}, None),
    "real": ((2, 7, 1), {}, None),
    "onesided": ((2, 7, 1), {"onesided": 1}, None),
    "inverse": ((2, 5, 2), {"inverse": 1}, None),
    "padded": ((2, 5, 1), {"onesided": 1}, 8),
    "cut": ((2, 9, 2), {}, 4),
    "real again": ((2, 4, 2), {"inverse": 1, "onesided": 1}, None),
    "real again, odd": ((2, 4, 2), {"inverse": 1, "onesided": 1}, 7),
}


def spectrum(x: np.ndarray, options: dict[str, int], length: int | None) -> np.ndarray:
    """NumPy's transform along axis 1, with the parts as ONNX has them."""
    values = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]
    if options.get("inverse") and options.get("onesided"):
        return np.fft.irfft(values, length, axis=1)[..., None]
    function = np.fft.ifft if options.get("inverse") else np.fft.rfft if options.get("onesided") else np.fft.fft
    result = function(values, length, axis=1)
    return np.stack([result.real, result.imag], -1)


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("opset", [17, 20])
def test_fourier_transforms(kind: str, opset: int) -> None:
    shape, options, length = TRANSFORMS[kind]
    constants = {} if length is None else {"n": np.array(length)}
    names = ["x", "n" if constants else ""]
    if opset >= 20:
        constants["a"] = np.array(1)
        names.append("a")
    else:
        options = {**options, "axis": 1}
    x = rand(*shape)
    if kind.startswith("real again"):
        x[:, 0, 1] = x[:, -1, 1] = 0  # as the spectrum of a real signal has it
    model = onnx_model([node("DFT", names, ["y"], **options)], {"x": shape}, constants, opset=opset)
    got = run(prepared(to_relax(model)), x)[0]
    np.testing.assert_allclose(got, spectrum(x, options, length), atol=1e-5)


@pytest.mark.parametrize("axis", [0, 2])
def test_a_fourier_transform_along_any_axis(axis: int) -> None:
    x = rand(3, 4, 5, 1)
    model = onnx_model([node("DFT", ["x", "", "a"], ["y"])], {"x": x.shape}, {"a": np.array(axis)}, opset=20)
    want = np.fft.fft(x[..., 0], axis=axis)
    got = run(prepared(to_relax(model)), x)[0]
    np.testing.assert_allclose(got, np.stack([want.real, want.imag], -1), atol=1e-5)


@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize("onesided", [0, 1])
def test_short_time_fourier_transforms(windowed: bool, onesided: int) -> None:
    x, step, length = rand(2, 20, 1), 3, 8
    constants = {
        "s": np.array(step),
        "n": np.array(length),
        **({"w": np.hanning(length).astype("float32")} if windowed else {}),
    }
    transform = node("STFT", ["x", "s", "w" if windowed else "", "n"], ["y"], onesided=onesided)
    frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], length, 1)[:, ::step] * constants.get("w", 1)
    want = (np.fft.rfft if onesided else np.fft.fft)(frames)
    got = run(prepared(to_relax(onnx_model([transform], {"x": x.shape}, constants))), x)[0]
    np.testing.assert_allclose(got, np.stack([want.real, want.imag], -1), atol=1e-5)


def test_a_transform_of_an_open_length_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="DFT"):
        to_relax(onnx_model([node("DFT", ["x"], ["y"], axis=1)], {"x": (1, "n", 1)}))
