"""What a GGUF file says: its values by name, and its tensors as they are stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from ...core.errors import InputError, first_line, out_of_resources
from ...core.files import opened

__all__ = ["SUFFIX", "File"]

SUFFIX = ".gguf"

_T = TypeVar("_T", int, float, str, bool, list)
_NEEDED: Any = object()
_SAID = {int: "a positive integer", float: "a number", str: "a text", bool: "true or false", list: "a list"}


class File:
    """A GGUF file, whose tensors (name → ``gguf.ReaderTensor``) stay on the disk until they are read."""

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise InputError("a .gguf file needs the package gguf: pip install 'tvm-byoc-dnnl[gguf]'") from error
        opened(path).close()  # whatever is no file would be waited for
        self.path = path
        with self._reading():
            reader = GGUFReader(path)
            self.tensors = {tensor.name: tensor for tensor in reader.tensors}
            self._fields = reader.fields

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of a damaged file: NumPy's, Python's, the package's own
            if (resources := out_of_resources(error)) is not None:
                raise resources from error
            why = first_line(error)
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
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits = {int: is_number and isinstance(value, int) and value >= least, float: is_number}
        if not fits.get(kind, isinstance(value, kind)):
            got = "is missing" if value is None else f"is {value!r:.80}"
            raise InputError(f"{self.path}: {name} {got}; expected {_SAID[kind]}")
        return value  # type: ignore[return-value]
