"""ONNX files, read without a detour for large weights: these go to where they stay.

protobuf would copy each byte of a file at least twice. Here a walk over the file's fields finds the large weights of
the graph, protobuf parses what is left, and threads read the weights straight into tensors while the model is imported:
most of that time the system clears their pages. The weights are initializers, or, as PaddlePaddle writes them, results
of ``Constant`` nodes, which become initializers.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import onnx
import tvm
from onnx.external_data_helper import uses_external_data

from ...core.compilation import OverwritableWeights
from ...core.entries import external_ranges
from ...core.errors import InputError
from ...core.files import opened

_Piece = tuple[int, memoryview]  # where it begins in the file, and what is to be filled

_LARGE = 1 << 14  # bytes of a weight that is read apart
_GAP = 1 << 16  # bytes that are read in vain rather than by a call more
_MOST_THREADS = 8
_MOST_PIECES = 500  # of one call: the system takes 1024 buffers
# Fields of onnx.proto, by message.
_GRAPH = 7
_NODE, _INITIALIZER = 1, 5
_NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOC, _NODE_DOMAIN = 2, 3, 4, 5, 6, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR = 1, 5
_TENSOR_NAME, _RAW_DATA = 8, 9
#: of a ``Constant`` that may become an initializer
_NODE_FIELDS = {_NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOC, _NODE_DOMAIN}
_BYTES = 2  # the wire type of messages and byte strings
_DTYPES = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
}


class Weights(dict[str, np.ndarray]):
    """Weights by name. Threads read them while the model is imported: their values are there after `complete`."""

    def __init__(self, arrays: Mapping[str, np.ndarray], reading: Iterable[Future[None]] = ()) -> None:
        super().__init__(arrays)
        self._reading = list(reading)
        self.own: OverwritableWeights | None = None

    def complete(self) -> None:
        """Wait until all are read: an error says that the file changed meanwhile, or cannot be read."""
        while self._reading:
            self._reading[-1].result()
            self._reading.pop()


def read_model(path: Path) -> tuple[onnx.ModelProto, Weights]:
    """A model, and its large weights by name, whose data are not in the model.

    A model with large weights in other files, with functions or of an old opset, comes with all weights inside.
    """
    try:
        with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            text, parts = _without_weights(data)
            model = onnx.ModelProto.FromString(text)
            if not model.functions and not any(map(uses_external_data, model.graph.initializer)):
                return model, _weights(model, parts, file.fileno())
    except Exception:  # a damaged file: onnx says what is wrong with it
        pass
    return load_whole(path), Weights({})


def load_whole(path: Path) -> onnx.ModelProto:
    """A model with all weights inside."""
    with opened(path) as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                outline = onnx.ModelProto.FromString(_without_weights(data)[0])
        except Exception:  # a damaged file: onnx says what is wrong with it
            outline = onnx.ModelProto()
    for name in external_ranges(path, outline):
        opened(path.parent / name).close()  # whatever is no file would be waited for
    return onnx.load(path)


def _weights(model: onnx.ModelProto, parts: dict[int, tuple[int, int]], file: int) -> Weights:
    """The weights whose bytes lie at (begin, end) of the file, by their number among the initializers."""
    arrays: dict[str, np.ndarray] = {}
    pieces: list[_Piece] = []
    for number, (begin, end) in parts.items():
        proto = model.graph.initializer[number]
        array = np.from_dlpack(tvm.runtime.empty(tuple(proto.dims), _DTYPES[proto.data_type]))
        if array.nbytes != end - begin:
            raise ValueError(f"{proto.name} has {end - begin} bytes")
        arrays[proto.name] = array
        pieces.append((begin, array.data.cast("B")))
    pool, ready = ThreadPoolExecutor(_MOST_THREADS), Event()
    shares = _shares(pieces, min(os.cpu_count() or 1, _MOST_THREADS))
    try:
        reading = [pool.submit(_fill, os.dup(file), share, ready) for share in shares]
    finally:
        ready.set()  # to start a thread beside one that reads takes ten times as long
        pool.shutdown(wait=False)
    return Weights(arrays, reading)


def _shares(pieces: list[_Piece], count: int) -> list[list[_Piece]]:
    """Equal numbers of bytes of these pieces, for so many threads."""
    shares: list[list[_Piece]] = [[] for _ in range(count)]
    size, done = -(-sum(len(view) for _, view in pieces) // count), 0
    for begin, view in pieces:
        while len(view):
            part = view[: size - done % size]
            shares[done // size].append((begin, part))
            begin, done, view = begin + len(part), done + len(part), view[len(part) :]
    return [share for share in shares if share]


def _fill(file: int, pieces: list[_Piece], ready: Event) -> None:
    """Read the pieces when all is ready, and close the file; by few calls: after each one waits for Python's lock."""
    try:
        ready.wait()
        while pieces:
            begin = end = pieces[0][0]
            buffers: list[bytearray | memoryview] = []
            for start, view in pieces[:_MOST_PIECES]:
                if start - end > _GAP:
                    break
                buffers += [bytearray(start - end), view]
                end = start + len(view)
            count = os.preadv(file, buffers, begin)
            if count == 0:
                raise InputError("the file of the ONNX model became shorter while it was read")
            end = begin + count
            pieces = [(max(at, end), view[max(0, end - at) :]) for at, view in pieces if at + len(view) > end]
    finally:
        os.close(file)


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
    """The text of the graph whose fields lie at [begin, end); where the data of its large weights lie is added."""
    text: list[bytes | memoryview] = []
    count, copied = 0, begin  # all before `copied` is in the text
    for number, kind, start, inner, stop in _fields(data, begin, end):
        if number not in (_NODE, _INITIALIZER) or kind != _BYTES:
            continue
        lighten = _light_tensor if number == _INITIALIZER else _light_constant
        found = lighten(data, inner, stop) if stop - inner >= _LARGE else None
        if found is not None:
            light, weights[count] = found
            text += [whole[copied:start], light]
            copied = stop
        count += number == _INITIALIZER or found is not None
    return [*text, whole[copied:end]]


def _light_constant(data: mmap.mmap, begin: int, end: int) -> tuple[bytes, tuple[int, int]] | None:
    """A ``Constant`` node as an initializer without its data, and where these lie; ``None`` for other nodes."""
    node = _by_number(data, begin, end)
    if not {_NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE} <= node.keys() <= _NODE_FIELDS:
        return None
    if data[slice(*node[_NODE_OPERATOR])] != b"Constant" or data[slice(*node.get(_NODE_DOMAIN, (0, 0)))]:
        return None
    attribute = _by_number(data, *node[_NODE_ATTRIBUTE])
    if not {_ATTRIBUTE_NAME, _ATTRIBUTE_TENSOR} <= attribute.keys():
        return None
    return _light_tensor(data, *attribute[_ATTRIBUTE_TENSOR], data[slice(*node[_NODE_OUTPUT])])


def _light_tensor(
    data: mmap.mmap, begin: int, end: int, name: bytes | None = None
) -> tuple[bytes, tuple[int, int]] | None:
    """A tensor as an initializer, maybe of a new name, without its large raw data, and where these lie."""
    fields = list(_fields(data, begin, end))
    raw = [f for f in fields if f[:2] == (_RAW_DATA, _BYTES) and f[4] - f[3] >= _LARGE]
    light = b"".join(data[f[2] : f[4]] for f in fields if f not in raw)
    if name is not None:  # of a field that comes twice the last counts
        light += _head(_TENSOR_NAME, len(name)) + name
    if len(raw) != 1 or onnx.TensorProto.FromString(light).data_type not in _DTYPES:
        return None
    return _head(_INITIALIZER, len(light)) + light, raw[0][3:]


def _by_number(data: mmap.mmap, begin: int, end: int) -> dict[int, tuple[int, int]]:
    """Where the content of each field of a message lies; nothing if a field comes twice."""
    fields = list(_fields(data, begin, end))
    places = {number: (inner, stop) for number, _, _, inner, stop in fields}
    return places if len(places) == len(fields) else {}


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
