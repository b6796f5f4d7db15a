"""Failures of regions, and how they are described."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..core.compilation import note_cause
from ..core.errors import NativeLibraryError
from ..core.verdict import Reject

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

# Characters of a long message that are shown.
_BEGINNING, _END = 120, 480


@dataclass(frozen=True)
class Failure:
    """The stage at which a region failed, as in `tvm_byoc_dnnl.core.ledger.Fact`, and the reason."""

    stage: str
    reason: str


def describe(error: BaseException) -> str:
    """An error in one line; of a long message the beginning, which says what failed, and the end, which says why."""
    text = " ".join(str(error).split())
    text = text if len(text) <= _BEGINNING + _END else f"{text[:_BEGINNING]} … {text[-_END:]}"
    text = text if isinstance(error, Reject) else f"{type(error).__name__}: {text}"
    note_cause(text, error)
    return text


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
