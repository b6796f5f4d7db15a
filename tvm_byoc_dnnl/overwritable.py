"""Weights that one compilation has read from a file for itself, and may therefore overwrite.

A constant belongs to whoever holds the module, so a product with weights is a new constant. Its memory is new as well,
which the system clears page by page: that takes ten times as long as the product, and was more than half of the time in
which ResNet-50 was prepared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from .handles import ByIdentity

__all__ = ["OverwritableWeights", "overwritable_weights", "overwriting_weights"]


@dataclass
class OverwritableWeights:
    """Constants that one call alone reads, in memory of their own, and whether one has been overwritten."""

    constants: ByIdentity[None] = field(default_factory=ByIdentity)
    overwritten: bool = False


_CURRENT: ContextVar[OverwritableWeights | None] = ContextVar("overwritable_weights", default=None)


@contextmanager
def overwriting_weights() -> Iterator[OverwritableWeights]:
    """The first sweep of `Prepare` inside may overwrite the weights of a model that was imported inside.

    Whoever needs the module as it was imported has to import it again.
    """
    own = OverwritableWeights()
    token = _CURRENT.set(own)
    try:
        yield own
    finally:
        _CURRENT.reset(token)
        own.constants.clear()


def overwritable_weights() -> OverwritableWeights:
    """Those of the block around; none outside of one."""
    return _CURRENT.get() or OverwritableWeights()
