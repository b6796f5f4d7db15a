"""Errors of the package: one class per kind, each message says what, got, expected and what to do.

Nothing of TVM is imported here: the runtime that does without it raises the same errors.
"""

from __future__ import annotations

import errno
import functools
import importlib
import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_TOO_LARGE = 2**31  # for a C int
_FILES, _MEMORY = (errno.EMFILE, errno.ENFILE), (errno.ENOMEM,)


class ByocError(Exception):
    """Base class of every error that this package raises on purpose."""


class GraphError(ByocError, ValueError):
    """A portable graph (or a Relax region) is malformed."""


class InputError(ByocError, ValueError):
    """A call's argument has the wrong number, dtype, rank, shape, layout or name."""


class ArgumentTypeError(InputError, TypeError):
    """An argument of a public function has another type than documented."""


class MissingFileError(InputError, FileNotFoundError):
    """There is no such file."""


class InputIndexError(InputError, IndexError):
    """An index that a call gives, or makes the model compute, is out of range."""


class InputValueError(InputError):
    """A value that a call gives, or makes the model compute, has no result: a divisor of 0, a size below 0."""


class OutOfMemoryError(ByocError, MemoryError):
    """A model or a call needs more memory than there is."""


class OutOfFilesError(ByocError, OSError):
    """The process, or the system, has as many open files as it may have."""


def out_of_resources(error: BaseException) -> ByocError | None:
    """The error for one of Python or C++ whose cause is that no memory or no descriptor was left, else ``None``."""
    number, text = getattr(error, "errno", None), str(error)
    if number in _FILES or any(os.strerror(n) in text for n in _FILES):
        return OutOfFilesError(errno.EMFILE, f"{text}; close files, or raise the limit (ulimit -n)")
    if isinstance(error, MemoryError) or number in _MEMORY or any(os.strerror(n) in text for n in _MEMORY):
        return OutOfMemoryError(f"no memory was left: {text or type(error).__name__}")
    return None


class UnsupportedError(ByocError):
    """The library has no implementation for exactly this on this machine, or an op is not expressible."""

    #: finds what an error with such a text was raised from: tvm-ffi copies one that comes out of a pass without it
    cause_of: ClassVar[Callable[[str], BaseException | None]] = staticmethod(lambda _text: None)

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if (cause := type(self).cause_of(str(self))) is not None:
            self.__cause__ = cause


class ArtifactError(ByocError, ValueError):
    """A saved module or file is damaged, or of a version that this package does not read."""


class ExportError(ByocError, RuntimeError):
    """A compiled model cannot be linked into a library, or the library not be written."""


class VendorError(ByocError, RuntimeError):
    """A vendor's function failed, or gave what the contract does not say; the message names both."""


class NativeLibraryError(ByocError, ImportError):
    """The native library, or one that it needs, is missing, cannot be loaded or belongs to another package."""


def reloading() -> bool:
    """Whether modules run again by ``importlib.reload``, as a notebook's autoreload has it.

    What they register then takes the place of what they registered before.
    """
    return bool(getattr(importlib, "_RELOADING", None))


def did_you_mean(got: Any, known: Iterable[Any]) -> str:
    """``; did you mean 'a' or 'b'?``, or nothing."""
    if not isinstance(got, str):
        return ""
    near = get_close_matches(got, [str(name) for name in known if name is not None], n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def one_of(name: str, got: Any, allowed: Sequence[Any]) -> None:
    if not any(_is_same(got, value) for value in allowed):
        expected = ", ".join(map(repr, allowed))
        raise InputError(f"{name} is {short(got)}; expected one of {expected}{did_you_mean(got, allowed)}")


def _is_same(got: Any, value: Any) -> bool:
    return isinstance(got, type(value)) and isinstance(got, bool) == isinstance(value, bool) and got == value


def check_number(name: str, value: int | None) -> int | None:
    """``threads`` or ``workers`` of a public function; `InputError` unless it is a positive number or ``None``."""
    if value is not None and not is_number(value, 1):
        raise InputError(f"{name} is {short(value)}; expected a number from 1 on, or None for the usual one")
    return value


def is_number(value: Any, least: int) -> bool:
    """Whether a value is a whole number from ``least`` on that C has room for."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _TOO_LARGE


_KINDS = {
    int: "a positive integer",
    float: "a number from 0 on",
    str: "a text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def of_kind(path: Any, name: str, value: Any, kind: type[_T], least: int = 1) -> _T:
    """A value that a file has under a name; an ``int`` is ``least`` or more, a ``float`` perhaps written as one."""
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {int: is_number(value, least), float: is_real and 0 <= value < math.inf}
    if not fits.get(kind, isinstance(value, kind)):
        raise wrong_value(path, name, value, _KINDS[kind])
    return value


def wrong_value(path: Any, name: str, value: Any, expected: str) -> InputError:
    """The error for a value that a file has under a name."""
    got = "is missing" if value is None else f"is {value!r:.80}"
    return InputError(f"{path}: {name} {got}; expected {expected}")


def first_line(error: BaseException) -> str:
    """What an error says, in one line: its name if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def of_type(name: str, value: Any, kind: type[_T]) -> _T:
    """An argument of a public function, if it is a ``kind``; `ArgumentTypeError` otherwise."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"{name} is {short(value)}; expected {kind.__module__.split('.')[0]}.{kind.__name__}")
    return value


def names_of(argument: str, value: Any) -> Sequence[str]:
    """``value``, if it is a sequence of names; `ArgumentTypeError` otherwise."""
    names = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else None  # read once
    if names is None or not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"{argument} is {short(value)}; expected a sequence of names, such as ['name']")
    return names


def takes(**kinds: type | tuple[type, ...]) -> Callable[[_Function], _Function]:
    """Where a function fails, say which of its arguments is of none of these types; nothing is looked at before."""

    def of(function: _Function) -> _Function:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                given = inspect.signature(function).bind(*args, **kwargs).arguments
                for name, kind in kinds.items():
                    if name in given and not isinstance(given[name], kind):
                        names = [k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,))]
                        raise ArgumentTypeError(
                            f"{function.__name__}: {name} is {short(given[name])}; expected {' or '.join(names)}"
                        ) from error
                raise

        return called  # type: ignore[return-value]

    return of


def renamed(**names: str) -> Callable[[_Function], _Function]:
    """Take an argument by its former name, too, with a warning: ``renamed(placement="place")``."""

    def of(function: _Function) -> _Function:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    warnings.warn(
                        f"{old}= is called {new}= now, and will go with the next release", DeprecationWarning, 2
                    )
                    if new in kwargs:
                        raise InputError(f"{old} is the former name of {new}; give {new} alone")
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    return of


def short(value: Any) -> str:
    """The ``repr`` of a value in a message; of a long one its type."""
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
