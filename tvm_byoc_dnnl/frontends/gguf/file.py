"""What a GGUF file says: its values by name, and its tensors as they are stored.

In blocks, each with a scale and perhaps a minimum, tensors are as ``MatMulNBits`` stores weights:

    weight = (number - 2^(bits - 1)) · scale + shift

``number`` is stored in 4 or 8 bits. ``shift`` is what the products of ONNX Runtime cannot say with whole zero points.
Numbers of 5 and 6 bits take 8 here.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...core.errors import InputError, first_line, of_kind, out_of_resources
from ...core.files import opened

SUFFIX = ".gguf"

_T = TypeVar("_T", int, float, str, bool, list)
_NEEDED: Any = object()
FLOATS = ("F32", "F16", "BF16")
#: types of values, in the order of their numbers: as `struct` names them
_VALUES = (*"BbHhIif?", "text", "list", *"Qqd")


class Tensor(NamedTuple):
    """``data`` is uint8 [.., bytes of a row]: what the file has, read where it is used."""

    kind: str
    shape: tuple[int, ...]
    data: np.ndarray


class File:
    """A GGUF file, whose tensors by name stay on the disk until they are read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with opened(path) as file, self._reading():
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._at = 0
            if self._number("4s") != b"GGUF":
                raise ValueError("it does not begin with GGUF")
            version = self._number("I")
            if version not in (2, 3):
                raise ValueError(f"it has version {version}; expected 2 or 3, with the last byte of a number first")
            tensors, values = self._number("Q"), self._number("Q")
            self._values = {self._text(): self._value(self._number("I")) for _ in range(values)}
            found = [self._described() for _ in range(tensors)]
            alignment = self.get("general.alignment", int, 32)
            start = -(-self._at // alignment) * alignment
            self.tensors = {name: self._tensor(kind, shape, start + at) for name, kind, shape, at in found}
            if (len(self._values), len(self.tensors)) != (values, tensors):
                raise ValueError("two values or two tensors have one name")

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # of a damaged file: NumPy's, Python's
            if (resources := out_of_resources(error)) is not None:
                raise resources from error
            why = first_line(error)
            raise InputError(
                f"cannot read `{self.path}` as a GGUF file: {why}; download or convert it again"
            ) from error

    def _number(self, code: str) -> Any:
        (number,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(f"<{code}")
        return number

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        data, at, texts, size_at = self._data, self._at, [], struct.Struct("<Q").unpack_from
        for _ in range(count):
            (size,) = size_at(data, at)
            at += 8 + size
            if at > len(data):
                raise ValueError("it ends in a text")
            texts.append(str(data[at - size : at], "utf-8"))
        self._at = at
        return texts

    def _value(self, kind: int) -> Any:
        name = _VALUES[kind]
        if name == "text":
            return self._text()
        return self._list() if name == "list" else self._number(name)

    def _list(self) -> list[Any]:
        kind, count = self._number("I"), self._number("Q")
        name = _VALUES[kind]
        if name == "text":
            return self._texts(count)
        if name == "list":
            return [self._list() for _ in range(count)]
        numbers = np.frombuffer(self._data, np.dtype(name).newbyteorder("<"), count, self._at)
        self._at += numbers.nbytes
        return numbers.tolist()

    def _described(self) -> tuple[str, int, tuple[int, ...], int]:
        """A tensor's name, kind and shape, and where it begins behind the first."""
        name = self._text()
        shape = tuple(self._number("Q") for _ in range(self._number("I")))[::-1]
        return name, self._number("I"), shape, self._number("Q")

    def _tensor(self, number: int, shape: tuple[int, ...], at: int) -> Tensor:
        kind, block, size = _layout(number)
        *rows, columns = shape
        if columns % block:
            raise ValueError(f"rows of {columns} numbers in blocks of {block}")
        row = columns // block * size
        data = np.frombuffer(self._data, "uint8", math.prod(rows) * row, at)
        return Tensor(kind, shape, data.reshape(*rows, row))

    def get(self, name: str, kind: type[_T], default: Any = _NEEDED, *, least: int = 1) -> _T:
        """A value; an ``int`` is ``least`` or more."""
        value = self._values.get(name)
        if value is None and default is not _NEEDED:
            return default
        return of_kind(self.path, name, value, kind, least)


def _layout(number: int) -> tuple[str, int, int]:
    """Name of a type, the numbers of a block and its bytes."""
    for name, (code, block, size, _) in _TYPES.items():
        if code == number:
            return name, block, size
    gguf = _package(f"type {number}")
    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError as error:
        raise ValueError(f"no type of tensors has the number {number}") from error
    return kind.name, *gguf.GGML_QUANT_SIZES[kind]


def _package(what: str) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise InputError(f"tensors of {what} need the package gguf: pip install 'tvm-byoc-dnnl[gguf]'") from error
    return gguf


_Parts = tuple[int, np.ndarray, np.ndarray, "np.ndarray | None"]


class Stored(NamedTuple):
    """``numbers`` uint8 [N, K · bits / 8], the first of two in the lower half; the others float32 [N, K / block]."""

    bits: int
    block: int
    numbers: np.ndarray
    scales: np.ndarray
    shifts: np.ndarray | None


def stored(kind: str, data: np.ndarray, columns: int) -> Stored | None:
    """A tensor [N, ``columns``] of a type, from its bytes [N, …]; nothing for types in other blocks."""
    _, _, size, read = _TYPES.get(kind, (0, 0, 0, None))
    if read is None:
        return None
    bits, numbers, scales, shifts = read(np.ascontiguousarray(data).reshape(-1, size))
    rows = numbers.reshape(len(data), columns)
    if bits == 4:
        rows = rows[:, ::2] | rows[:, 1::2] << 4
    scales = scales.reshape(len(data), -1)
    shifts = None if shifts is None else shifts.reshape(scales.shape)
    return Stored(bits, columns // scales.shape[1], rows, scales, shifts)


def floats(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor as float32; a `NotImplementedError` if the package gguf cannot read its type."""
    if tensor.kind == "BF16":
        return (tensor.data.view("<u2").astype("uint32") << 16).view("float32")
    if tensor.kind in FLOATS:
        return tensor.data.view(f"<f{_TYPES[tensor.kind][2]}").astype("float32")
    from gguf.quants import dequantize

    kind = _package(f"the type {tensor.kind}").GGMLQuantizationType[tensor.kind]
    return dequantize(tensor.data, kind)


def joined(tensors: Sequence[Stored]) -> Stored | None:
    """The rows of all tensors in one, if they are stored alike."""
    first = tensors[0]
    if len({(t.bits, t.block, t.shifts is None) for t in tensors}) > 1:
        return None
    shifts = [t.shifts for t in tensors if t.shifts is not None]
    numbers, scales = (np.concatenate([t[i] for t in tensors]) for i in (2, 3))
    return Stored(first.bits, first.block, numbers, scales, np.concatenate(shifts) if shifts else None)


def _half(block: np.ndarray, at: int) -> np.ndarray:
    """A float16 of each block, as float32 [blocks, 1]."""
    return np.ascontiguousarray(block[:, at : at + 2]).view("float16").astype("float32")


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Lower halves of all bytes, then the upper ones."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _fifth(block: np.ndarray, at: int) -> np.ndarray:
    """The fifth bits of 32 numbers, in their place."""
    return np.unpackbits(block[:, at : at + 4], axis=1, bitorder="little") << 4


def _scales(block: np.ndarray, centre: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift [blocks, 8] of the blocks of 32 numbers in one of 256: 6 bits each, times a float16.

    The shift is that of numbers from ``centre`` less than they are stored.
    """
    packed = block[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    least = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    scales = _half(block, 0) * scale
    return scales, -_half(block, 2) * least + centre * scales


def _fifths(block: np.ndarray) -> np.ndarray:
    return np.stack([block[:, 16:48] >> i & 1 for i in range(8)], axis=1)


def _pairs(data: np.ndarray) -> np.ndarray:
    """Numbers [blocks, 8, 32]: each 32 bytes hold those of two blocks."""
    groups = data.reshape(-1, 4, 32)
    return np.stack([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32)


def _q6_k(block: np.ndarray) -> _Parts:
    low = _nibbles(block[:, :128].reshape(-1, 2, 64))
    upper = block[:, 128:192].reshape(-1, 2, 32)
    high = np.concatenate([upper >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    scale = _half(block, 208) * np.ascontiguousarray(block[:, 192:208]).view("int8")
    return 8, (low | high << 4) + np.uint8(128 - 32), scale, None


#: type → its number, the numbers of a block and its bytes, and how it is read: bits, numbers, scales and shifts
_TYPES: dict[str, tuple[int, int, int, Callable[[Any], _Parts] | None]] = {
    "F32": (0, 1, 4, None),
    "F16": (1, 1, 2, None),
    "BF16": (30, 1, 2, None),
    "Q8_0": (8, 32, 34, lambda block: (8, block[:, 2:] ^ 0x80, _half(block, 0), None)),
    "Q4_0": (2, 32, 18, lambda block: (4, _nibbles(block[:, 2:]), _half(block, 0), None)),
    "Q4_1": (
        3,
        32,
        20,
        lambda block: (4, _nibbles(block[:, 4:]), _half(block, 0), _half(block, 2) + 8 * _half(block, 0)),
    ),
    "Q5_0": (
        6,
        32,
        22,
        lambda block: (8, (_nibbles(block[:, 6:]) | _fifth(block, 2)) + np.uint8(128 - 16), _half(block, 0), None),
    ),
    "Q5_1": (
        7,
        32,
        24,
        lambda block: (8, _nibbles(block[:, 8:]) | _fifth(block, 4) | np.uint8(128), _half(block, 0), _half(block, 2)),
    ),
    "Q4_K": (12, 256, 144, lambda block: (4, _pairs(block[:, 16:]), *_scales(block, 8))),
    "Q5_K": (
        13,
        256,
        176,
        lambda block: (8, _pairs(block[:, 48:]) | _fifths(block) << 4 | np.uint8(128), *_scales(block)),
    ),
    "Q6_K": (14, 256, 210, _q6_k),
}
