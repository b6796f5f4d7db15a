"""One compilation: what is known while a model is built, loaded or timed, and forgotten when that ends.

`compile`, `partition`, `explain` and `tune` begin one. Passes, codegens and errors ask for it by `current`: TVM calls
them, and hands no argument of ours on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from tvm_ffi import register_error

from . import errors
from .tvm_fast import ByIdentity

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


# The errors that C++ throws by name arrive in Python as the package's classes.
for _kind in ("Graph", "Input", "InputValue", "Unsupported", "Artifact", "Export", "Vendor", "NativeLibrary"):
    register_error(f"Byoc{_kind}Error", getattr(errors, f"{_kind}Error"))

# tvm-ffi knows the exceptions that are errors. Ctrl-C inside of a pass or a hook would come out as `RuntimeError('')`,
# and be taken for a vendor's failure on its way, and `sys.exit(7)` as `RuntimeError('7')`, which says nothing.
register_error("KeyboardInterrupt", KeyboardInterrupt)
register_error("SystemExit", SystemExit)

errors.UnsupportedError.cause_of = staticmethod(cause_of)
