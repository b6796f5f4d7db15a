"""The table of operators: for each domain, operator and version one entry."""

from __future__ import annotations

import bisect
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...core.errors import reloading
from .value import Node, Type, Value

if TYPE_CHECKING:
    from .emit import Emit

#: the newest version of each domain that the entries were compared with; newer models are refused
NEWEST = {"": 28, "ai.onnx.ml": 5, "com.microsoft": 1}

Types = Callable[[Node], list[Type]]
Converter = Callable[["Emit", Node], Any]
_C = TypeVar("_C", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """What one operator means, from one version up to the next entry."""

    domain: str
    op: str
    since: int
    types: Types | None = None  # of the results; operators that stay whole need them, the others have Relax's own
    convert: Converter | None = None  # without it, the definition that the standard gives
    whole: bool = False  # one call until nobody takes it
    sizes: frozenset[int] = frozenset()  # inputs of such an operator that are sizes; only a call may know them


#: (domain, operator) → its entries, the oldest first; those of before, when this module is reloaded
_ENTRIES: dict[tuple[str, str], list[Entry]] = globals().get("_ENTRIES", {})


def entry_of(domain: str, op: str, opset: int) -> Entry | None:
    entries = _ENTRIES.get((domain, op))
    if entries is None:
        return None
    found = bisect.bisect_right([entry.since for entry in entries], opset)
    return entries[found - 1] if found else None


def entries() -> list[Entry]:
    return [entry for those in _ENTRIES.values() for entry in those]


def _add(entry: Entry) -> None:
    those = _ENTRIES.setdefault((entry.domain, entry.op), [])
    if reloading():
        those[:] = [other for other in those if other.since != entry.since]
    elif any(entry.since == other.since for other in those):
        raise ValueError(f"{entry.domain}.{entry.op} has two entries since {entry.since}")
    bisect.insort(those, entry, key=lambda e: e.since)


def operator(
    *ops: str,
    since: int = 1,
    domain: str = "",
    types: Types | None = None,
    whole: bool = False,
    sizes: frozenset[int] = frozenset(),
) -> Callable[[_C], _C]:
    """Declare the function below as the conversion of operators, from a version up to their next entry; see `Entry`.

    Behind the `Emit`, its parameters are the node's inputs in their order, those with a default may be left out. Its
    keyword-only parameters are attributes, with their defaults. One that is named ``node`` is the node itself.
    """

    def declare(convert: _C) -> _C:
        for op in ops:
            _add(Entry(domain, op, since, types, _bound(convert), whole, sizes))
        return convert

    return declare


def _bound(convert: Callable[..., Any]) -> Converter:
    parameters = list(inspect.signature(convert).parameters.values())[1:]
    # Attributes are float32, their defaults as well.
    attributes = {
        p.name: float(np.float32(p.default)) if isinstance(p.default, float) else p.default
        for p in parameters
        if p.kind is p.KEYWORD_ONLY
    }
    rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    has_node = any(p.name == "node" for p in parameters)
    needed = [p.default is p.empty for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "node"]

    def converted(e: Emit, node: Node) -> Any:
        inputs = [node.needed(i) if is_needed else node.input(i) for i, is_needed in enumerate(needed)]
        more = node.inputs[len(needed) :] if rest else ()
        given = {name: node.attr(name, default) for name, default in attributes.items()}
        return convert(e, *([node] if has_node else []), *inputs, *more, **given)

    return converted


def definition(*ops: str, since: int = 1, domain: str = "") -> None:
    """Declare operators that are imported as the standard defines them by others."""
    for op in ops:
        _add(Entry(domain, op, since))


def outputs(result: Any) -> list[Any]:
    return list(result) if isinstance(result, Sequence) and not isinstance(result, Value) else [result]
