"""Run TVM's legalisers on TE tensors.

A legaliser is a Python function ``(BlockBuilder, Call) -> Expr`` in a C++ function table. It gets a new
:class:`BlockBuilder` that is made from a handle, so it would not see a subclass or another object. But it uses the
class attribute ``call_te``, so that attribute is replaced while a legaliser runs. Only calls on the capturing
builder, in the capturing thread, are intercepted; all others get TVM's method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvm import relax

# One thread at a time builds TE: TVM keeps the tag of the op under construction in a global of the process.
TE_LOCK = threading.RLock()

CallTE = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], relax.Expr]


@contextmanager
def capture_call_te(builder: relax.BlockBuilder, handler: CallTE) -> Iterator[None]:
    """Send ``builder.call_te(func, *args, **kwargs)`` to ``handler(func, args, kwargs)`` in this thread.

    Parameters
    ----------
    builder : relax.BlockBuilder
        The builder that is given to the legaliser; calls on any other builder are not touched.
    handler : callable
        Replaces ``call_te``; returns the Relax expression of the result.
    """
    thread = threading.get_ident()
    with TE_LOCK:
        original = relax.BlockBuilder.call_te

        def call_te(self: relax.BlockBuilder, func: Callable[..., Any], *args: Any, **kwargs: Any) -> relax.Expr:
            if threading.get_ident() == thread and builder.same_as(self):
                return handler(func, args, kwargs)
            return original(self, func, *args, **kwargs)

        relax.BlockBuilder.call_te = call_te
        try:
            yield
        finally:
            # Somebody else may have replaced it meanwhile: then it is not ours to restore.
            if relax.BlockBuilder.call_te is call_te:
                relax.BlockBuilder.call_te = original
