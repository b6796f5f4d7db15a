"""Fourier transforms of known lengths as products with a constant matrix.

Real and imaginary parts are columns of one matrix, [n·c, m·2] for n values of c parts and m results; padding and
cutting to another length are rows that are missing or zero.
"""

from __future__ import annotations

import numpy as np
import onnx

from ..onnx_graph import Graph
from .builder import Builder, Nodes
from .integers import dtype_of

_LARGEST = 1 << 22  # elements of the matrix; beyond, the product would cost more than it is worth


def _matrix(taken: int, length: int, results: int, parts: int, inverse: bool) -> np.ndarray:
    """Rows: values (and their parts); columns: results and their two parts."""
    angle = 2 * np.pi * np.outer(np.arange(taken), np.arange(results)) / length
    turn = np.exp((1j if inverse else -1j) * angle) / (length if inverse else 1)
    turn[length:] = 0
    full = np.stack([np.stack([turn.real, turn.imag], -1), np.stack([-turn.imag, turn.real], -1)], 1)
    return full[:, :parts].reshape(taken * parts, results * 2)


def _real_matrix(taken: int, length: int) -> np.ndarray:
    """Back from the first half of the spectrum of a real signal; the other half is its mirror image."""
    bins = np.arange(taken)
    weight = np.where((bins == 0) | (2 * bins == length), 1, 2) * (bins <= length // 2) / length
    angle = 2 * np.pi * np.outer(bins, np.arange(length)) / length
    return np.stack([weight[:, None] * np.cos(angle), -weight[:, None] * np.sin(angle)], 1).reshape(2 * taken, length)


def _dft(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    shape, dtype = graph.static_shape(node.input[0]), dtype_of(graph, node.input[0])
    known = [graph.constant(n) if n else None for n in b.inputs[1:3]]
    unknown = any(n and value is None for n, value in zip(b.inputs[1:3], known, strict=True))
    inverse, one_sided = bool(b.attrs.get("inverse", 0)), bool(b.attrs.get("onesided", 0))
    if shape is None or dtype is None or unknown:
        return None
    real = inverse and one_sided
    rank, (length_given, axis_given) = len(shape), known
    default = b.attrs.get("axis", 1) if graph.opset < 20 else -2
    axis = (default if axis_given is None else int(axis_given.reshape(()))) % rank
    whole = 2 * (shape[axis] - 1) if real else shape[axis]
    length = whole if length_given is None else int(length_given.reshape(()))
    results = length // 2 + 1 if one_sided and not real else length
    if shape[axis] * shape[-1] * results * 2 > _LARGEST:
        return None
    order = [i for i in range(rank - 1) if i != axis] + [axis, rank - 1]
    lead = [shape[i] for i in order[:-2]]
    moved = b.add("Transpose", [node.input[0]], perm=order)
    flat = b.add("Reshape", [moved, b.ints([*lead, shape[axis] * shape[-1]])])
    if real:
        matrix = _real_matrix(shape[axis], length)
    else:
        matrix = _matrix(shape[axis], length, results, shape[-1], inverse)
    product = _product(b, flat, matrix.astype(dtype))
    split = b.add("Reshape", [product, b.ints([*lead, results, 1 if real else 2])])
    b.add("Transpose", [split], node.output[0], perm=np.argsort(order).tolist())
    return b.nodes


def _stft(graph: Graph, node: onnx.NodeProto) -> Nodes | None:
    b = Builder(graph, node)
    signal, step_name, window, length_name = b.inputs[:4]
    shape, dtype = graph.static_shape(signal), dtype_of(graph, signal)
    step = graph.constant(step_name)
    if shape is None or dtype is None or step is None:
        return None
    given = graph.constant(length_name) if length_name else None
    of_window = graph.static_shape(window) if window else None
    if given is None and (length_name or of_window is None):
        return None
    length = int(given.reshape(())) if given is not None else int((of_window or (0,))[0])
    batch, samples, parts = shape if len(shape) == 3 else (*shape, 1)
    frames = (samples - length) // int(step.reshape(())) + 1
    results = length // 2 + 1 if b.attrs.get("onesided", 1) else length
    if frames < 1 or length * parts * results * 2 > _LARGEST:
        return None
    starts = np.arange(frames)[:, None] * int(step.reshape(()))
    places = graph.add_constant(f"{node.output[0]}_places", starts + np.arange(length))
    framed = b.add("Gather", [signal, places], axis=1)
    framed = b.add("Reshape", [framed, b.ints([batch, frames, length, parts])])
    if window:
        framed = b.add("Mul", [framed, b.add("Reshape", [window, b.ints([length, 1])])])
    flat = b.add("Reshape", [framed, b.ints([batch, frames, length * parts])])
    product = _product(b, flat, _matrix(length, length, results, parts, inverse=False).astype(dtype))
    b.add("Reshape", [product, b.ints([batch, frames, results, 2])], node.output[0])
    return b.nodes


def _product(b: Builder, value: str, matrix: np.ndarray) -> str:
    return b.add("MatMul", [value, b.graph.add_constant(f"{b.old.output[0]}_turns", matrix)])


RULES = {("", "DFT"): _dft, ("", "STFT"): _stft}
