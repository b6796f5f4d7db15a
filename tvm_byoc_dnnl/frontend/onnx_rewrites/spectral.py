"""Fourier transforms of a known length, written as a matmul with sines and cosines, or as a convolution (short-time).

A fast transform takes fewer operations, but Relax has none, and at the lengths of speech frames a matmul is as fast.
Complex numbers have a last axis of size two: real and imaginary part.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ...errors import UnsupportedError
from ..onnx_graph import Graph
from .builder import Builder, Nodes

_LARGEST = 1 << 24  # elements of the matrix: 64 MB in float32, a real frame of 4096


def _dft(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    shape, kind = graph.static_shape(node.input[0]), graph.elem_type(node.input[0])
    length, axis = (_integer(graph, name) for name in b.inputs[1:3])
    onesided, inverse = bool(b.attrs.get("onesided")), bool(b.attrs.get("inverse"))
    if shape is None or not kind or (b.inputs[1] and length is None) or (b.inputs[2] and axis is None):
        return None
    if onesided and inverse == (shape[-1] == 1):
        return None
    axis = _axis(b, axis) % len(shape)
    real = onesided and inverse
    if length is None:
        length = 2 * (shape[axis] - 1) if real else shape[axis]
    used = min(shape[axis], length)
    data = node.input[0]
    if used < shape[axis]:
        data = b.add("Slice", [data, b.ints([0]), b.ints([used]), b.ints([axis])])
    bins = length // 2 + 1 if onesided and not real else length
    waves = _waves(b, length, bins, used, shape[-1], inverse)
    matrix = (_mirrored(waves, length) if real else waves).reshape(used * shape[-1], -1)
    # the axis beside the parts, where a matmul sees both at once
    order = [*(i for i in range(len(shape) - 1) if i != axis), axis, len(shape) - 1]
    outer = [shape[i] for i in order[:-2]]
    rows = b.add("Reshape", [b.add("Transpose", [data], perm=order), b.ints([*outer, used * shape[-1]])])
    result = b.add("MatMul", [rows, _constant(b, matrix, kind)])
    result = b.add("Reshape", [result, b.ints([*outer, bins, 1 if real else 2])])
    b.add("Transpose", [result], node.output[0], perm=[order.index(i) for i in range(len(shape))])
    return b.nodes


def _axis(b: Builder, given: int | None) -> int:
    """The axis of time: an input since opset 20, an attribute before."""
    if given is not None:
        return given
    return int(b.attrs.get("axis", 1)) if b.graph.opset < 20 else -2


def _stft(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    shape, kind = graph.static_shape(node.input[0]), graph.elem_type(node.input[0])
    step, length = _integer(graph, b.inputs[1]), _integer(graph, b.inputs[3])
    window = graph.static_shape(b.inputs[2]) if b.inputs[2] else None
    if shape is None or not kind or not step or (b.inputs[2] and window is None) or (b.inputs[3] and length is None):
        return None
    if length is None:
        length = window[0] if window else shape[1]
    parts = shape[2] if len(shape) == 3 else 1
    onesided = bool(b.attrs.get("onesided", 1))
    if onesided and parts == 2:
        return None
    bins = length // 2 + 1 if onesided else length
    waves = _waves(b, length, bins, length, parts, inverse=False)
    known = graph.constant(b.inputs[2]) if window else None
    if known is not None:
        waves = waves * known.astype("float64").reshape(-1, 1, 1, 1)
    kernels = _constant(b, waves.transpose(2, 3, 1, 0).reshape(bins * 2, parts, length), kind)
    if window and known is None:
        kernels = b.add("Mul", [kernels, b.inputs[2]])
    signal = b.add("Reshape", [node.input[0], b.ints([shape[0], shape[1], parts])])
    signal = b.add("Transpose", [signal], perm=[0, 2, 1])
    result = b.add("Conv", [signal, kernels], strides=[step], kernel_shape=[length])
    result = b.add("Reshape", [result, b.ints([shape[0], bins, 2, (shape[1] - length) // step + 1])])
    b.add("Transpose", [result], node.output[0], perm=[0, 3, 1, 2])
    return b.nodes


def _waves(b: Builder, length: int, bins: int, used: int, parts: int, inverse: bool) -> np.ndarray:
    """The weight of a part of a sample in a part of a bin: (sample, its part, bin, its part)."""
    if used * parts * bins * 2 > _LARGEST:
        raise UnsupportedError(
            f"{b.old.op_type} of length {length} would be a matrix of {used * parts} x {bins * 2} numbers; at most "
            f"{_LARGEST} are made (node `{b.old.name or b.old.output[0]}`)"
        )
    turns = np.outer(np.arange(used), np.arange(bins)) % length / length  # whole turns off: exact for any product
    angle = 2 * np.pi * (turns if inverse else -turns)
    cos, sin = np.cos(angle), np.sin(angle)
    waves = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts], 1)
    return waves / length if inverse else waves


def _mirrored(waves: np.ndarray, length: int) -> np.ndarray:
    """For the first half of the spectrum of a real signal: the other half is its mirror image, and the signal real."""
    bins = np.arange(len(waves))
    weight = np.where((bins == 0) | (2 * bins == length), 1, 2) * (bins <= length // 2)
    return waves[..., 0] * weight[:, None, None]


def _integer(graph: Graph, name: str) -> int | None:
    value = graph.constant(name) if name else None
    return None if value is None else int(value.reshape(-1)[0])


def _constant(b: Builder, array: np.ndarray, kind: int) -> str:
    return b.graph.add_constant(f"{b.old.output[0]}_waves", array.astype(helper.tensor_dtype_to_np_dtype(kind)))


RULES = {("", "DFT"): _dft, ("", "STFT"): _stft}
