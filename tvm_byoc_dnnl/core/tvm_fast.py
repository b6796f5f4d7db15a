"""Quick access to many TVM objects from Python.

Each access to a field makes a new Python object, and to compare two of them by ``==``, as a dict does, TVM asks for the
type of the expression.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

import tvm_ffi

_V = TypeVar("_V")

_item = tvm_ffi.get_global_func("ffi.ArrayGetItem")
_size = tvm_ffi.get_global_func("ffi.ArraySize")
_item.release_gil = _size.release_gil = False  # to release the lock and take it again takes a sixth of such a call


def items(array: Any) -> list[Any]:
    return [_item(array, i) for i in range(_size(array))]


class ByIdentity(MutableMapping[Any, _V]):
    """A dict whose keys are TVM objects: the same object is the same key."""

    def __init__(self) -> None:
        # The hash of an object is its address, which is its own while the entry keeps the object alive.
        self._entries: dict[int, tuple[Any, _V]] = {}

    @classmethod
    def of(cls, entries: Iterable[tuple[Any, _V]]) -> ByIdentity[_V]:
        made = cls()
        for key, value in entries:
            made[key] = value
        return made

    def __getitem__(self, key: Any) -> _V:
        return self._entries[hash(key)][1]

    def __setitem__(self, key: Any, value: _V) -> None:
        self._entries[hash(key)] = (key, value)

    def __delitem__(self, key: Any) -> None:
        del self._entries[hash(key)]

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def is_a(value: Any, kind: type | tuple[type, ...]) -> bool:
    """``isinstance`` for classes of TVM, where that takes long: their metaclass is `abc.ABCMeta`."""
    own: Any = type(value)
    return own is kind or is_subclass(own, kind)


@functools.cache
def is_subclass(own: Any, kind: type | tuple[type, ...]) -> bool:
    """``issubclass``, which would look through all classes below ``kind`` when it is first asked."""
    return any(one in own.__mro__ for one in (kind if isinstance(kind, tuple) else (kind,)))
