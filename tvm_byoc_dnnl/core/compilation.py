"""One compilation: what is known while a model is built, loaded or timed, and forgotten when that ends.

`compile`, `partition`, `explain` and `tune` begin one. Passes, codegens and errors ask for it by `current`: TVM calls
them, and hands no argument of ours on.

The ledger of a module: what was decided about its calls, each fact written once, in one attribute.

In it are single calls that were refused, code that crashed, regions that could not be lowered, planned or compiled,
calls that a policy left with TVM, and what nearly matched. A report reads them here, and nowhere else; what the build
had no reason to ask, it asks itself, and says so.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import errors
from .tvm_fast import ByIdentity

if TYPE_CHECKING:
    import tvm

_logger = logging.getLogger("tvm_byoc_dnnl")
_MOST_BY_HAND = 16  # an error keeps alive what its frames hold


class OverwritableWeights(ByIdentity[None]):
    """Constants that one call alone reads, in memory of their own.

    A constant belongs to whoever holds the module, so a product with weights is a new constant. Its memory is new as
    well, which the system clears page by page: that takes far longer than the product.
    """


@dataclass
class Compilation:
    """What one compile, partition, explain or measurement knows until it ends.

    Whoever is called by us gets what he needs as an argument. These are for those whom TVM calls, or a vendor, who have
    no argument of ours: passes, codegens, the openers of regions, errors on their way through TVM.
    """

    is_by_hand: bool = False  #: of passes that no function of ours runs; it does not end, and keeps the last errors
    causes: dict[str, BaseException] = field(default_factory=dict)  #: what a report says of an error → the error
    seconds: dict[str, float] = field(default_factory=dict)  #: stage → seconds, in the order of the stages
    #: namespace → its options, of the module that vendors are asked about
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: content of a region → its graph, what is wrong with it, and the bytes that a library has made of it, each beside
    #: the region: what was tried is what is built. ``None`` by hand
    regions: dict[Any, tuple[Any, Any]] | None = None
    #: namespace, options and form of a graph → the refusal, or ``None``; and what a vendor notes by keys of its own
    answers: dict[Any, Any] = field(default_factory=dict)
    kept: Any = None  #: the `ModelCache`, which keeps such bytes from process to process
    around: tuple[Any, ...] = ()  #: functions or bindings that a vendor's code looks at now, for `quantized`
    opening: Any = None  #: what the regions of the model that is loaded, or profiled, have in common
    emitting: Any = None  #: the `Emit` of the node that is imported, to which Python's operators of its values go


_CURRENT: ContextVar[Compilation | None] = ContextVar("compilation", default=None)


def current() -> Compilation:
    """The compilation in which this is called; in each thread one for all passes that are used by hand."""
    found = _CURRENT.get()
    if found is None:
        found = Compilation(is_by_hand=True)
        _CURRENT.set(found)
    return found


@contextmanager
def compiling() -> Iterator[Compilation]:
    """Inside is one compilation: that around, or a new one that ends with the block."""
    around = current()
    if not around.is_by_hand:
        yield around
        return
    around.causes.clear()
    with knowing(is_by_hand=False, causes={}, seconds={}, regions={}, answers={}) as made:
        yield made


@contextmanager
def knowing(**known: Any) -> Iterator[Compilation]:
    """Inside, the current compilation has these attributes in the place of its own."""
    token = _CURRENT.set(replace(current(), **known))
    try:
        yield current()
    finally:
        _CURRENT.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Count the time of a block as that of stage ``name``."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = current().seconds
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def note_cause(text: str, error: BaseException) -> None:
    """Remember an error that later code only knows as ``text``; its traceback is logged at DEBUG."""
    _logger.debug("%s", text, exc_info=error)
    compilation = current()
    causes = compilation.causes
    if not compilation.is_by_hand:
        causes.setdefault(text, error)  # TVM may have copied later ones, without what they were raised from
        return
    causes.pop(text, None)  # of a build before this one
    causes[text] = error
    for old in list(causes)[:-_MOST_BY_HAND]:
        causes.pop(old, None)


def cause_of(text: str) -> BaseException | None:
    """The last remembered error whose description ``text`` quotes."""
    causes = list(current().causes.items())
    return next((error for said, error in reversed(causes) if said and said in text), None)


errors.UnsupportedError.cause_of = staticmethod(cause_of)


_MOST_NAMES = 3

#: stages that are decisions and no failures
CUT = "cut"
_DECISIONS = ("policy", "placement", CUT)
#: stages of facts that are for reports only
ALONE, MATCH, FORM, ASKED = "alone", "match", "form", "asked"
FOR_REPORTS = (ALONE, MATCH, FORM, ASKED)

_ATTR = "byoc_log"


@dataclass(frozen=True)
class Fact:
    """The reason why one compiler did not get one call, or why calls are not the form or the match that they resemble.

    The stage is ``prepare`` for a vendor's pass that was left out; ``annotate`` or ``pattern`` for code that crashed
    there; ``lower``, ``plan`` or ``codegen`` for a region that failed there; ``cut`` for a call with which another
    region of the same compiler begins, because all calls together failed; ``policy`` for calls not worth a region;
    ``placement`` for calls that were given to another compiler by hand or by measurement; ``output`` for a region that
    is a module although source was asked for. For reports: ``alone`` for what it said of a single call: why it refuses
    that, and nothing where it would take what a compiler before it has got; ``form`` for what looks like a form that
    the preparing rules know; ``match`` for a match of a pattern that was refused; ``asked`` for a compiler that was
    asked for the module's calls.
    """

    function: str = ""
    name: str = ""  #: of the variable that holds the result
    op: str = ""  #: of a form and of a match its name, such as ``prepare.gelu`` or ``<namespace>.<pattern>``
    compiler: str = ""
    stage: str = ""
    reason: str = ""
    calls: tuple[str, ...] = ()  #: of a match, the variables that hold the results of its calls

    def __str__(self) -> str:
        return f"{self.op} ({self.name} in {self.function}): {self.compiler}: {self.stage}: {self.reason}"


def read_facts(mod: tvm.IRModule) -> list[Fact]:
    if not mod.attrs or _ATTR not in mod.attrs:
        return []
    records = json.loads(str(mod.attrs[_ATTR]))
    return [Fact(**{**record, "calls": tuple(record.get("calls", ()))}) for record in records]


def read_log(mod: tvm.IRModule) -> list[Fact]:
    """The failures and decisions of a module, oldest first."""
    if not hasattr(mod, "get_global_vars"):  # TVM is not imported here
        raise errors.ArgumentTypeError(f"mod is {errors.short(mod)}; expected a tvm.IRModule")
    facts = read_facts(mod)
    return [fact for fact in facts if fact.stage not in FOR_REPORTS]


def with_facts(mod: tvm.IRModule, facts: Iterable[Fact]) -> tvm.IRModule:
    """The module with more facts, which are logged; those that it has already are not added again."""
    given = list(facts)
    old = read_facts(mod) if given else []
    merged = list(dict.fromkeys([*old, *given]))
    if len(merged) == len(old):
        return mod
    _warn([fact for fact in merged[len(old) :] if fact.stage not in FOR_REPORTS])
    records = [{name: value for name, value in vars(fact).items() if value} for fact in merged]
    return mod.with_attr(_ATTR, json.dumps(records))


def _warn(facts: Sequence[Fact]) -> None:
    """One line for all calls of an operator with one reason; a decision causes no warning."""
    groups: dict[tuple[str, str, str, str, str], list[str]] = {}
    for e in facts:
        groups.setdefault((e.op, e.function, e.compiler, e.stage, e.reason), []).append(e.name)
    for (op, function, compiler, stage, reason), names in groups.items():
        some = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        calls = f"{len(names)} calls: {some}" if len(names) > 1 else some
        level = logging.INFO if stage in _DECISIONS else logging.WARNING
        what = "in another region" if stage == CUT else "not offloaded as asked"
        _logger.log(level, "%s: %s (%s in %s): %s: %s: %s", what, op, calls, function, compiler, stage, reason)


def raise_failures(facts: Sequence[Fact]) -> None:
    """Raise `UnsupportedError` with each call that failed; a decision of a policy or a placement is no failure."""
    failures = [e for e in facts if e.stage not in _DECISIONS]
    if failures:
        lines = "".join(f"\n  {e}" for e in failures)
        raise errors.UnsupportedError(
            f"{len(failures)} call(s) could not be offloaded and strict=True forbids to leave them with TVM:{lines}"
        )
