"""Language models in GGUF files, the format of llama.cpp: their values by name, and their tensors as they are stored.

In blocks, each with a scale and perhaps a minimum, tensors are as ``MatMulNBits`` stores weights:

    weight = (number - 2^(bits - 1)) · scale + shift

``number`` is stored in 4 or 8 bits. ``shift`` is what the products of ONNX Runtime cannot say with whole zero points.
Numbers of 5 and 6 bits take 8 here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...core.errors import InputError, MissingFileError, first_line, of_kind, out_of_resources
from ...core.files import opened

SUFFIX = ".gguf"

_T = TypeVar("_T", int, float, str, bool, list)
_NEEDED: Any = object()
#: the bytes of a reader as an array of NumPy's own class, not a ``memmap``: it cuts them in hundreds of thousands of
#: pieces, and each of those would take several times as long
_PLAIN = property(lambda reader: reader.bytes, lambda reader, data: setattr(reader, "bytes", np.asarray(data)))


class File:
    """A GGUF file, whose tensors (name → ``gguf.ReaderTensor``) stay on the disk until they are read."""

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise InputError("a .gguf file needs the package gguf: pip install 'tvm-byoc-dnnl[gguf]'") from error
        self.path = path
        with self._reading():
            opened(path).close()  # whatever is no file would be waited for
            reader = type("Reader", (GGUFReader,), {"data": _PLAIN})(path)
            self.tensors = {tensor.name: tensor for tensor in reader.tensors}
            self._fields = reader.fields

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFileError(f"no file `{self.path}`; give the path of an .onnx or .gguf file") from error
        except Exception as error:  # of a damaged file: NumPy's, Python's, the package's own
            if (resources := out_of_resources(error)) is not None:
                raise resources from error
            why = "it ends too early" if isinstance(error, IndexError) else first_line(error)
            raise InputError(
                f"cannot read `{self.path}` as a GGUF file: {why}; download or convert it again"
            ) from error

    def get(self, name: str, kind: type[_T], default: Any = _NEEDED, *, least: int = 1) -> _T:
        """A value; an ``int`` is ``least`` or more."""
        field = self._fields.get(name)
        if field is None and default is not _NEEDED:
            return default
        with self._reading():
            value = None if field is None else field.contents()
        return of_kind(self.path, name, value, kind, least)


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
    if kind not in _TYPES:
        return None
    size, read = _TYPES[kind]
    bits, numbers, scales, shifts = read(np.ascontiguousarray(data).reshape(-1, size))
    rows = numbers.reshape(len(data), columns)
    if bits == 4:
        rows = rows[:, ::2] | rows[:, 1::2] << 4
    scales = scales.reshape(len(data), -1)
    shifts = None if shifts is None else shifts.reshape(scales.shape)
    return Stored(bits, columns // scales.shape[1], rows, scales, shifts)


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


#: type → bytes of a block, and how it is read: bits, numbers, scales and shifts
_TYPES: dict[str, tuple[int, Callable[[Any], _Parts]]] = {
    "Q8_0": (34, lambda block: (8, block[:, 2:] ^ 0x80, _half(block, 0), None)),
    "Q4_0": (18, lambda block: (4, _nibbles(block[:, 2:]), _half(block, 0), None)),
    "Q4_1": (20, lambda block: (4, _nibbles(block[:, 4:]), _half(block, 0), _half(block, 2) + 8 * _half(block, 0))),
    "Q5_0": (
        22,
        lambda block: (8, (_nibbles(block[:, 6:]) | _fifth(block, 2)) + np.uint8(128 - 16), _half(block, 0), None),
    ),
    "Q5_1": (
        24,
        lambda block: (8, _nibbles(block[:, 8:]) | _fifth(block, 4) | np.uint8(128), _half(block, 0), _half(block, 2)),
    ),
    "Q4_K": (144, lambda block: (4, _pairs(block[:, 16:]), *_scales(block, 8))),
    "Q5_K": (176, lambda block: (8, _pairs(block[:, 48:]) | _fifths(block) << 4 | np.uint8(128), *_scales(block))),
    "Q6_K": (210, _q6_k),
}
