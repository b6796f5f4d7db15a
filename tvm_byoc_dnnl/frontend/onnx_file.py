"""ONNX files, read without a detour for large weights: these go to where they stay.

protobuf would copy each byte of a file at least twice. Here a walk over the file's fields finds the large weights of
the graph, protobuf parses what is left, and the weights are read straight into tensors.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import tvm

__all__ = ["read_model"]

_LARGE = 1 << 14  # bytes of a weight that is read apart
_OPSET = 7  # of older models the converter wants to see everything
# Fields of onnx.proto, by message.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_BYTES = 2  # the wire type of messages and byte strings
_DTYPES = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
}


def read_model(path: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model, and its large weights by name, whose data are not in the model.

    A model with large weights in other files, with functions or of an old opset, comes with all weights inside.

    Parameters
    ----------
    path : Path
        The file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            text, parts = _without_weights(data)
            model = onnx.ModelProto.FromString(text)
            if _is_plain(model):
                return model, _weights(model, parts, file.fileno())
    except Exception:  # a damaged file: onnx says what is wrong with it
        pass
    return onnx.load(path), {}


def _is_plain(model: onnx.ModelProto) -> bool:
    opsets = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    outside = any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)
    return not outside and not model.functions and min(opsets, default=0) >= _OPSET


def _weights(model: onnx.ModelProto, parts: dict[int, tuple[int, int]], file: int) -> dict[str, np.ndarray]:
    """The weights whose bytes lie at (begin, end) of the file, by their number among the initializers."""

    def read(item: tuple[int, tuple[int, int]]) -> tuple[str, np.ndarray]:
        number, (begin, end) = item
        proto = model.graph.initializer[number]
        array = np.from_dlpack(tvm.runtime.empty(tuple(proto.dims), _DTYPES[proto.data_type]))
        if array.nbytes != end - begin:
            raise ValueError(f"{proto.name} has {end - begin} bytes")
        view = array.data.cast("B")
        done = 0
        while done < len(view):
            count = os.preadv(file, [view[done:]], begin + done)
            if count == 0:
                raise ValueError("the file became shorter")
            done += count
        return proto.name, array

    with ThreadPoolExecutor() as pool:
        return dict(pool.map(read, parts.items()))


def _without_weights(data: mmap.mmap) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """The bytes of the model without those of large weights, and where these begin and end."""
    text: list[bytes | memoryview] = []
    weights: dict[int, tuple[int, int]] = {}
    graphs = 0
    whole = memoryview(data)  # its parts are copied once, when all are joined
    for number, kind, start, begin, end in _fields(data, 0, len(data)):
        if (number, kind) == (_GRAPH, _BYTES):
            graphs += 1
            graph = _light_graph(data, whole, begin, end, weights)
            text += [_head(_GRAPH, sum(map(len, graph))), *graph]
        else:
            text.append(whole[start:end])
    if graphs != 1:
        raise ValueError(f"{graphs} graphs")
    return b"".join(text), weights


def _light_graph(
    data: mmap.mmap, whole: memoryview, begin: int, end: int, weights: dict[int, tuple[int, int]]
) -> list[bytes | memoryview]:
    text: list[bytes | memoryview] = []
    count, copied = 0, begin  # all before `copied` is in the text
    for number, kind, start, inner, stop in _fields(data, begin, end):
        if (number, kind) != (_INITIALIZER, _BYTES):
            continue
        if stop - inner >= _LARGE:
            fields = list(_fields(data, inner, stop))
            raw = [f for f in fields if f[:2] == (_RAW_DATA, _BYTES) and f[4] - f[3] >= _LARGE]
            light = b"".join(data[f[2] : f[4]] for f in fields if f not in raw)
            if len(raw) == 1 and onnx.TensorProto.FromString(light).data_type in _DTYPES:
                weights[count] = raw[0][3:]
                text += [whole[copied:start], _head(_INITIALIZER, len(light)), light]
                copied = stop
        count += 1
    return [*text, whole[copied:end]]


def _head(number: int, length: int) -> bytes:
    """What a message of this length begins with, as a field of another."""
    return _varint(number << 3 | _BYTES) + _varint(length)


def _varint(value: int) -> bytes:
    groups = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def _fields(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Number and wire type of each field of a message, where it begins, and where its content begins and ends."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128 or shift > 63:
                return value, at

    at = begin
    while at < end:
        start = at
        key, at = varint(at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            stop = varint(at)[1]
        elif kind == _BYTES:
            length, at = varint(at)
            stop = at + length
        else:
            stop = at + {1: 8, 5: 4}[kind]
        if stop > end:
            raise ValueError("a field that is longer than its message")
        yield number, kind, start, at, stop
        at = stop
