"""Fourier transforms as a product with sines and cosines, or as a convolution (short-time).

A fast transform takes fewer operations, but Relax has none, and at the lengths of speech frames a product is as fast.
Complex numbers have a last axis of size two: real and imaginary part.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import te, tirx

from ..dim import Dim, Size, max_of, min_of
from ..emit import Emit
from ..table import operator
from ..value import Node, Value, whole
from .computed import computed
from .moving import padded, places_along
from .shapes import int_of

_LARGEST = 1 << 24  # elements of the matrix: 64 MB in float32, a real frame of 4096


@operator("DFT", since=17)
def _dft(e: Emit, node: Node, data: Value) -> Any:
    onesided, inverse = bool(node.attr("onesided", 0)), bool(node.attr("inverse", 0))
    data = _with_parts(e, data, 1 if onesided and not inverse else 2, is_sure=onesided)
    dims, parts = data.sizes, data.sizes[-1]
    if not isinstance(parts, int) or parts not in (1, 2) or (onesided and inverse == (parts == 1)):
        raise node.refused(
            f"has a last axis of {dims[-1]} for a transform that is onesided={onesided}, inverse={inverse}"
        )
    axis = int((node.ints(2, "the axis") or [-2])[0]) % len(dims)
    is_real = onesided and inverse
    usual = 2 * (dims[axis] - 1) if is_real else dims[axis]
    length = usual if node.input(1) is None else int_of(e, node, 1, "dft_length")
    used = min_of(dims[axis], length)
    if used != dims[axis]:
        data = e.cut(data, axis, 0, used)
    bins = length // 2 + 1 if onesided and not is_real else length
    made = 1 if is_real else 2
    waves = _waves(e, node, length, bins, used, parts, inverse, is_real)
    # the axis beside the parts, where a product sees both at once
    order = [*(i for i in range(len(dims) - 1) if i != axis), axis, len(dims) - 1]
    outer = [dims[i] for i in order[:-2]]
    rows = e.reshape(e.transpose(data, order), [*outer, used * parts])
    result = e.reshape(e.onnx("MatMul", rows, e.cast(waves, data.dtype)), [*outer, bins, made])
    return e.transpose(result, [order.index(i) for i in range(len(dims))])


def _with_parts(e: Emit, x: Value, count: int, *, is_sure: bool) -> Value:
    """Numbers with so many parts, where that is open; an imaginary part that they may lack is 0."""
    *outer, parts = x.sizes
    if not isinstance(parts, Dim):
        return x
    if not is_sure:
        x = padded(e, x, [0] * len(x.sizes), [*[0] * len(outer), max_of(count - parts, 0)])
    return e.agree(x, [*outer, count])


@operator("STFT", since=17)
def _stft(e: Emit, node: Node, signal: Value) -> Any:
    window, onesided = node.input(2), bool(node.attr("onesided", 1))
    if signal.rank == 3:
        signal = _with_parts(e, signal, 1 if onesided else 2, is_sure=onesided)
    dims = signal.sizes
    (step,), given = node.ints(1, "frame_step") or [0], node.ints(3, "frame_length")
    length = given[0] if given else dims[1] if window is None else window.sizes[0]
    if isinstance(length, Dim) or isinstance(step, Dim):
        raise node.refused("has frames of an open length; give frame_length, or a window of a known size")
    parts: Any = dims[2] if len(dims) == 3 else 1
    if parts not in (1, 2) or (onesided and parts == 2):
        raise node.wrong(f"has a signal of {parts} parts, and onesided={int(onesided)}")
    bins = length // 2 + 1 if onesided else length
    _limit(node, length, bins, parts)
    waves = _numbers(length, bins, length, parts, inverse=False)
    kernels = e.const(waves.transpose(2, 3, 1, 0).reshape(bins * 2, parts, length), signal.dtype)
    if window is not None:
        kernels = e.onnx("Mul", kernels, e.agree(window, [length]), opset=14)
    rows = e.transpose(e.reshape(signal, [dims[0], dims[1], parts]), [0, 2, 1])
    result = e.onnx("Conv", rows, kernels, opset=11, strides=(step,), kernel_shape=(length,))
    frames = (result.dims or (0,))[-1]
    return e.transpose(e.reshape(result, [dims[0], bins, 2, frames]), [0, 3, 1, 2])


def _limit(node: Node, used: int, bins: int, parts: int) -> None:
    if used * parts * bins * 2 > _LARGEST:
        raise node.refused(f"would be a matrix of {used * parts} x {bins * 2} numbers; at most {_LARGEST} are made")


def _numbers(length: int, bins: int, used: int, parts: int, inverse: bool) -> np.ndarray:
    """The weight of a part of a sample in a part of a bin: (sample, its part, bin, its part)."""
    turns = np.outer(np.arange(used), np.arange(bins)) % length / length  # whole turns off: exact for any product
    angle = 2 * np.pi * (turns if inverse else -turns)
    cos, sin = np.cos(angle), np.sin(angle)
    waves = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts], 1)
    return waves / length if inverse else waves


def _waves(
    e: Emit, node: Node, length: Size, bins: Size, used: Size, parts: int, inverse: bool, is_real: bool
) -> Value:
    """The matrix of a transform: (samples and their parts, bins and their parts)."""
    if isinstance(length, int) and isinstance(bins, int) and isinstance(used, int):
        _limit(node, used, bins, parts)
        waves = _numbers(length, bins, used, parts, inverse)
        return e.const((_mirrored(waves, length) if is_real else waves).reshape(used * parts, -1))
    made = 1 if is_real else 2

    def compute(length: Any, bins: Any, used: Any) -> Any:
        def turned(sample: Any, bin_: Any) -> Any:
            turns = (sample * bin_ % length).astype("float64") / length.astype("float64")
            return tirx.const(2 * np.pi if inverse else -2 * np.pi, "float64") * turns

        angles = te.compute((used, bins), turned, name="angles")

        def element(row: Any, column: Any) -> Any:
            sample, part, bin_, side = row // parts, row % parts, column // made, column % made
            angle = angles(sample, bin_)
            cos, sin = tirx.cos(angle), tirx.sin(angle)
            value = tirx.Select(side == 0, cos, sin)
            if parts == 2:
                value = tirx.Select(part == 0, value, tirx.Select(side == 0, -sin, cos))
            if inverse:
                value = value / length.astype("float64")
            if is_real:
                once = tirx.any(sample == 0, 2 * sample == length)
                half = tirx.Select(sample <= length // 2, tirx.const(2.0, "float64"), tirx.const(0.0, "float64"))
                value = value * tirx.Select(once, tirx.const(1.0, "float64"), half)
            return value

        return te.compute((used * parts, bins * made), element, name="waves")

    return computed(e, "waves", compute, length, bins, used)


def _mirrored(waves: np.ndarray, length: int) -> np.ndarray:
    """For the first half of the spectrum of a real signal: the other half is its mirror image, and the signal real."""
    bins = np.arange(len(waves))
    weight = np.where((bins == 0) | (2 * bins == length), 1, 2) * (bins <= length // 2)
    return waves[..., 0] * weight[:, None, None]


@operator("MelWeightMatrix", since=17)
def _mel(e: Emit, node: Node, *, output_datatype: int = 1) -> Any:
    """Triangles over the bins of a spectrum, whose corners are equally far from each other in mel."""
    count, length = int_of(e, node, 0, "num_mel_bins"), int_of(e, node, 1, "dft_length")
    rate, *edges = (e.cast(e.reshape(node.needed(i), []), "float64") for i in (2, 3, 4))
    low, high = (e.log(edge * (1 / 700) + 1.0) * _MEL for edge in edges)
    corners = e.cast(e.places(count + 2), "float64")
    mel = corners * ((high - low) / e.cast(whole(count + 2), "float64")) + low
    hertz = (e.exp(mel * (1 / _MEL)) + -1.0) * 700.0
    places = e.cast(e.floor(hertz * e.cast(whole(length + 1), "float64") / rate), "int64")
    left, centre, right = (e.reshape(e.cut(places, 0, i, count + i), [1, count]) for i in range(3))
    at = places_along(e, length // 2 + 1, 0, 2)
    rise, fall = centre - left, right - centre
    up, down = (
        e.cast(distance, "float64") / e.cast(span, "float64")
        for distance, span in ((at - left, rise), (right - at, fall))
    )
    is_rising, is_falling = (at >= left) & (at <= centre), (at >= centre) & (at < right)
    matrix = e.where(is_rising, e.where(e.equal(rise, 0), 1.0, up), 0.0)
    matrix = e.where(is_falling, down, matrix)
    return e.onnx("Cast", matrix, opset=13, to=output_datatype)


#: mel of one e-fold of frequency
_MEL = 2595 / math.log(10)
