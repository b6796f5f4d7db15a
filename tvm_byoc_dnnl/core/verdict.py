"""A verdict is yes, or a reason; and failures of regions, and how they are described.

Code of vendors while it runs: what would end the process is an error like any other, and says whose it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import tvm

from .compilation import knowing, note_cause
from .errors import ByocError, NativeLibraryError, VendorError


class Reject(Exception):
    """A refusal of a call or a match. It is falsy, and works both ways: ``return Reject(..)`` or ``raise Reject(..)``.

    Parameters
    ----------
    reason : str
        The reason, with the offending value: ``"dilation 3 with ceil_mode"``.
    """

    def __init__(self, reason: str) -> None:
        reason = str(reason).strip() or "it gives no reason"
        super().__init__(reason)
        self.reason = reason

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Reject({self.reason!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reject) and other.reason == self.reason

    def __hash__(self) -> int:
        return hash(self.reason)


@dataclass(frozen=True)
class Works:
    """The answer of a blob runner's ``check`` that bytes can be loaded here, and compiled here would be better.

    Parameters
    ----------
    reason : str
        What differs: ``"made for chip 1, here is chip 2"``. Whoever loads the model is warned.
    """

    reason: str


class Crash(Reject):
    """A refusal that no code decided: the code that was asked raised an error."""


class Unexplained(Reject):
    """A refusal by ``False``, which gives no reason."""


def require(condition: bool, reason: str) -> None:
    """Raise `Reject` with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise Reject(reason)


def as_reject(answer: Any, who: str) -> Reject | None:
    """``None`` for yes, a `Reject` for no; `TypeError` names ``who`` gave another answer."""
    if isinstance(answer, Reject):
        return answer
    if isinstance(answer, bool):
        return None if answer else Unexplained(f"{who} says no")
    raise TypeError(f"{who} returned {answer!r}; expected True, False or byoc.Reject(reason)")


#: TVM's words for a pass that returns nothing
_NO_MODULE = "The return value of a module pass must be set"


@contextmanager
def calling(
    what: str, *, named: bool = False, refuses: bool = True, around: Sequence[Any] | None = None
) -> Iterator[None]:
    """Inside, a function of a vendor runs: ``what``, such as ``the probe of 'acme'``.

    What is no `Exception`, such as ``sys.exit``, becomes a `VendorError` that says so; with ``named`` every exception
    does but this package's own and, where it ``refuses``, a `Reject`. ``around`` has the functions, or variable →
    value, that it looks at.
    """
    try:
        with nullcontext() if around is None else knowing(around=tuple(around)):
            yield
    except (KeyboardInterrupt, ByocError):
        raise
    except BaseException as error:
        if (isinstance(error, Reject) and refuses) or (isinstance(error, Exception) and not named):
            raise
        # contextlib takes a RuntimeError whose cause is a StopIteration for its own, and drops it
        cause = None if isinstance(error, StopIteration) else error
        raise VendorError(f"{what} raised {_said(error)}") from cause


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    note_cause(said, error)
    return said


def expect(value: Any, kind: type | tuple[type, ...], what: str, expected: str) -> Any:
    if not isinstance(value, kind):
        raise VendorError(f"{what} returned {value!r}; expected {expected}")
    return value


def with_options(function: Callable[..., Any], most: int = 2) -> Callable[..., Any]:
    """A vendor's function of the first of some values, such as a value, options …, as one of all of them."""
    count = most
    try:
        signature = inspect.signature(function)
    except ValueError:  # of C, which cannot be looked at
        return function
    while count > 1 and not _takes(signature, count):
        count -= 1
    return function if count == most else lambda *values: function(*values[:count])


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def run_pass(make: Any, mod: tvm.IRModule, what: str) -> tvm.IRModule:
    """The module behind a vendor's pass, which gets a module of its own to change.

    ``make`` is the pass or makes it. A `VendorError` names it, and ``what`` it was registered as: ``prepare= of
    'acme'``.
    """
    with calling(what, named=True):
        one = make if isinstance(make, tvm.transform.Pass) else make()
    who = f"the pass {one.info.name!r} ({what})" if isinstance(one, tvm.transform.Pass) else what
    expect(one, tvm.transform.Pass, what, "a pass of TVM (tvm.transform.module_pass makes one)")
    own = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs, global_infos=mod.global_infos)
    try:
        with calling(who, named=True):
            made = one(own)
    except VendorError as error:
        if _NO_MODULE not in str(error):
            raise
        raise VendorError(f"{who} returned None; expected an IRModule") from error
    return expect(made, tvm.IRModule, who, "an IRModule")


_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

# Characters of a long message that are shown.
_BEGINNING, _END = 120, 480


@dataclass(frozen=True)
class Failure:
    """The stage at which a region failed, as in `tvm_byoc_dnnl.core.compilation.Fact`, and the reason."""

    stage: str
    reason: str


def describe(error: BaseException) -> str:
    """An error in one line; of a long message the beginning, which says what failed, and the end, which says why."""
    text = " ".join(str(error).split())
    text = text if len(text) <= _BEGINNING + _END else f"{text[:_BEGINNING]} … {text[-_END:]}"
    text = text if isinstance(error, Reject) else f"{type(error).__name__}: {text}"
    note_cause(text, error)
    return text


def verdict_of(who: str, ask: Callable[[], Reject | None], around: Sequence[Any] | None = None) -> Reject | None:
    """What ``ask``, which runs code of a vendor, finds against something; a `Crash` where it raises an error."""
    try:
        with calling(who, around=around):
            return ask()
    except Reject as refusal:
        return refusal.with_traceback(None)  # whose frames would keep alive what they look at
    except Exception as error:  # a vendor's bug must not cost the user the build
        return Crash(f"{who} failed: {describe(error)}")


class BrokenRegions(Exception):
    """Regions, or PrimFuncs, that cannot be built; ``together`` is why, where only all of them together cannot."""

    def __init__(self, failures: Mapping[Any, Failure], together: Failure | None = None) -> None:
        super().__init__("; ".join(f"{gv.name_hint}: {failure.reason}" for gv, failure in failures.items()))
        self.failures = dict(failures)
        self.together = together


def all_or_each(
    items: Sequence[_Item], make: Callable[[Sequence[_Item]], _Made]
) -> tuple[list[tuple[Sequence[_Item], _Made]], dict[_Item, Exception], Exception | None]:
    """What was made of all items at once, else of each; why each of the others fails; and why all at once do."""
    try:
        return [(items, make(items))], {}, None
    except NativeLibraryError:
        raise
    except Exception as error:
        together = error
    made: list[tuple[Sequence[_Item], _Made]] = []
    errors: dict[_Item, Exception] = {}
    for item in items:
        try:
            made.append(([item], make([item])))
        except NativeLibraryError:
            raise
        except Exception as error:
            errors[item] = error
    return made, errors, together
