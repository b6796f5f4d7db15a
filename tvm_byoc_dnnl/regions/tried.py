"""Notes the regions that have been tried: a pass that runs after partitioning may change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tvm_ffi
from tvm import relax

from ..handles import ByIdentity

__all__ = ["mark_as_tried", "trying_once", "was_tried"]

#: attribute of a region: the hash of the function that was tried
_TRIED_ATTR = "byoc.tried"
#: the bodies that were tried, instead of hashes, which take longer; only inside of `trying_once`
_BODIES: ContextVar[ByIdentity[None] | None] = ContextVar("tried", default=None)


@contextmanager
def trying_once() -> Iterator[None]:
    """Remember the regions that are tried inside, until the end of the block."""
    token = _BODIES.set(ByIdentity())
    try:
        yield
    finally:
        _BODIES.reset(token)


def _hash(func: relax.Function) -> str:
    plain = relax.Function(func.params, func.body, func.ret_ty, func.is_pure)
    return str(tvm_ffi.structural_hash(plain, skip_tensor_content=True))


def mark_as_tried(func: relax.Function) -> relax.Function:
    """``func``, noted as tried: in an attribute, or inside of `trying_once` in memory."""
    bodies = _BODIES.get()
    if bodies is None:
        return func.with_attr(_TRIED_ATTR, _hash(func))
    bodies[func.body] = None
    return func


def was_tried(func: relax.Function) -> bool:
    """Whether ``func`` has been tried, and not been changed since then."""
    bodies = _BODIES.get()
    if bodies is not None and func.body in bodies:
        return True
    return bool(func.attrs) and _TRIED_ATTR in func.attrs and str(func.attrs[_TRIED_ATTR]) == _hash(func)
