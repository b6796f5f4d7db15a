"""The content of Python values as bytes: equal in every process for values that compute the same.

A function is its code, with the values that it closes over, its defaults, and those globals that it reads; an object of
a class is the class, with its code, and the object's state. Addresses are never a part of it: another value may have
the same one later.
"""

from __future__ import annotations

import copyreg
import dis
import enum
import functools
import logging
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import PurePath
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..core.entries import content_key
from ..core.errors import InputError
from .relax_utils import constant_numpy
from .tvm_compat import is_constant

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
#: what a class has besides its state and its code
_OF_EVERY_CLASS = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__", "_abc_impl"),
}
_OF_CLASSES = (
    *(types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType),
)
#: what cannot change a result
_NO_STATE = (logging.Logger, type(threading.Lock()), type(threading.RLock()))
#: of these packages the version is a part of the key by itself, or the source
_KNOWN = frozenset(
    {__name__.partition(".")[0], "tvm", "tvm_ffi", "numpy", "ml_dtypes", "onnx", "torch", *sys.stdlib_module_names}
)


def fingerprint(value: Any, what: str, *, strict: bool = True) -> str:
    """A name for the content of a value: data, containers, arrays, TVM's objects, functions, classes, their objects.

    A part whose content cannot be seen, such as an open file, is an `InputError` about ``what`` with ``strict``; else
    its type counts.
    """
    return _Walk(what, strict).digest(value).decode()


class _Walk:
    """One walk through a value; each object is read once, and one that contains itself is said by its depth there."""

    def __init__(self, what: str, strict: bool) -> None:
        self._what = what
        self._strict = strict
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the object, so that its address is not used again
        self._inside: dict[int, int] = {}

    def digest(self, value: Any) -> bytes:
        if id(value) in self._inside:
            return f"circle {self._inside[id(value)]}".encode()
        if id(value) not in self._known:
            self._inside[id(value)] = len(self._inside)
            found = content_key(self._content(value)).encode()
            del self._inside[id(value)]
            self._known[id(value)] = value, found
        return self._known[id(value)][1]

    def _content(self, value: Any) -> Iterator[bytes]:
        if type(value) in _PLAIN:
            yield f"{type(value).__name__} {value!r}".encode()
        elif isinstance(value, (types.FunctionType, types.CodeType, types.MethodType, functools.partial)):
            yield from self._function(value)
        elif isinstance(value, types.BuiltinFunctionType):
            yield from self._named(f"built in {value.__qualname__}", {"of": value.__self__})
        elif isinstance(value, types.ModuleType):
            own = {} if _is_known(value.__name__) else {n: v for n, v in vars(value).items() if type(v) in _PLAIN}
            yield from self._named(f"module {value.__name__}", own)
        elif isinstance(value, _OF_CLASSES):
            yield f"{type(value).__name__} {value.__qualname__}".encode()
        elif isinstance(value, (staticmethod, classmethod)):
            yield from self._named(type(value).__name__, {"of": value.__func__})
        elif isinstance(value, property):
            yield from self._named("property", {"get": value.fget, "set": value.fset, "delete": value.fdel})
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, enum.Enum):
            yield from self._named("enum", {"name": value.name, "value": value.value, "class": type(value)})
        elif isinstance(value, (Mapping, Set, list, tuple)):
            yield from self._container(value)
        elif isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
            yield f"array {value.dtype} {value.shape}".encode()
            yield np.ascontiguousarray(value).tobytes()
        elif isinstance(value, (np.dtype, PurePath, range, slice)):
            yield f"{type(value).__name__} {value!r}".encode()
        elif isinstance(value, tvm_ffi.Object):
            yield from self._of_tvm(value)
        else:
            yield from self._object(value)

    def _function(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, functools.partial):
            yield from self._named("partial", {"of": value.func, "args": value.args, "keywords": value.keywords})
        elif isinstance(value, types.MethodType):
            yield from self._named("method", {"self": value.__self__, "function": value.__func__})
        elif isinstance(value, types.CodeType):
            yield f"code {value.co_name} {value.co_flags} {value.co_argcount} {value.co_varnames}".encode()
            yield value.co_code
            yield from self._named("names", {"names": value.co_names, "constants": value.co_consts})
        else:
            captured = {name: _held(cell) for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ())}
            known = _is_known(value.__module__)
            names = () if known else _names(value.__code__)
            read = {name: value.__globals__[name] for name in names if name in value.__globals__}
            yield from self._named(
                f"function {value.__module__} {value.__qualname__}",
                {
                    "code": value.__code__,
                    "captured": captured,
                    "defaults": [value.__defaults__, value.__kwdefaults__],
                    "read": read,
                    "state": vars(value),
                },
            )

    def _class(self, value: type) -> Iterator[bytes]:
        yield f"class {value.__module__} {value.__qualname__}".encode()
        if not _is_known(value.__module__):
            own = {name: part for name, part in vars(value).items() if name not in _OF_EVERY_CLASS}
            yield from self._named("of", {"bases": value.__bases__, **own})

    def _container(self, value: Any) -> Iterator[bytes]:
        yield self.digest(type(value))
        if getattr(value, "__dict__", None):
            yield from self._named("state", vars(value))
        yield f"{type(value).__name__} {len(value)}".encode()
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield self.digest(key)
                yield self.digest(item)
        elif isinstance(value, Set):
            yield from sorted(map(self.digest, value))
        else:
            for item in value:
                yield self.digest(item)

    def _of_tvm(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, tvm.runtime.Tensor):
            yield from self._content(value.numpy())
            return
        if is_constant(value):
            yield from self._content(constant_numpy(value))
            return
        text = value.script() if hasattr(value, "script") else str(value)
        if " at 0x" in text or "(0x" in text:
            yield from self._unseen(value)
        yield f"{type(value).__name__} {text}".encode()

    def _object(self, value: Any) -> Iterator[bytes]:
        """An object's own attributes, and what Python would save of it, which holds the state of a class in C."""
        if isinstance(value, _NO_STATE):
            yield type(value).__name__.encode()
            return
        state: dict[str, Any] = dict(getattr(value, "__dict__", {}))
        for owner in type(value).__mro__:
            slots = vars(owner).get("__slots__", ())
            state |= {n: getattr(value, n) for n in ([slots] if isinstance(slots, str) else slots) if hasattr(value, n)}
        try:
            save = copyreg.dispatch_table.get(type(value))
            saved = value.__reduce_ex__(2) if save is None else save(value)
        except Exception:  # a class in C that nobody can save
            yield from self._unseen(value)
            saved = ""
        parts = saved if isinstance(saved, str) else [*saved[:3], *(list(items or ()) for items in saved[3:5])]
        yield from self._named("object", {"class": type(value), "saved": parts, **state})

    def _named(self, what: str, parts: Mapping[str, Any]) -> Iterator[bytes]:
        yield f"{what} {len(parts)}".encode()
        for name, part in parts.items():
            yield str(name).encode()
            yield self.digest(part)

    def _unseen(self, value: Any) -> Iterator[bytes]:
        if self._strict:
            raise InputError(
                f"cache_dir: {self._what} has a value of type {type(value).__name__}, whose content cannot be seen; "
                "keep plain data, functions and objects with attributes there, or leave out cache_dir"
            )
        yield f"a {type(value).__qualname__}".encode()


def _names(code: types.CodeType) -> Iterable[str]:
    """The global names that a function may read, those of the functions inside of it among them."""
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)]
    return sorted({*own, *inner})


def _held(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return "nothing"


def _is_known(module: str | None) -> bool:
    """Whether a module is of a package whose version or source is a part of the key by itself."""
    top = (module or "").partition(".")[0]
    return top in _KNOWN and top != "__main__"
