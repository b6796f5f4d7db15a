"""Steps of a vendor around the annotation, without which a build goes on: its preparing passes, its library's start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm

from ..errors import NativeLibraryError
from ..log import Entry
from ..lower.graph import PortableGraph
from ..namespace import Namespace
from ..regions.failure import describe
from ..vendor_code import calling, run_pass

__all__ = ["asking", "prepared_by"]

_logger = logging.getLogger("tvm_byoc_dnnl")


def prepared_by(ns: Namespace, mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Entry]]:
    """The module behind the preparing passes of a namespace; one that fails is left out, and noted."""
    failures: list[Entry] = []
    for make_pass in ns.prepare:
        try:
            mod = run_pass(make_pass, mod, f"prepare= of {ns.name!r}")
        except NativeLibraryError:
            raise
        except Exception as error:
            reason = f"{describe(error)}; the model goes on without this pass"
            failures.append(Entry("the module", "all calls", "prepare", ns.name, "prepare", reason))
    return mod, failures


@contextmanager
def asking(ns: Namespace) -> Iterator[Callable[[PortableGraph], None]]:
    """``probing_ahead`` of a namespace, as it is to be used; where it fails, its library is asked later."""
    who = f"probing_ahead of {ns.name!r}"
    stack = ExitStack()
    ahead: Any = None

    def guarded(step: Callable[[], Any]) -> Any:
        try:
            with calling(who, named=True):
                return step()
        except NativeLibraryError:
            raise
        except Exception as error:
            _logger.warning("%s; the answers are asked for one by one", describe(error))
            return None

    def ask(graph: PortableGraph) -> None:
        nonlocal ahead
        if callable(ahead):
            given, ahead = ahead, None  # not asked again if it fails
            if guarded(lambda: (given(graph), True)) is not None:
                ahead = given

    if ns.probing_ahead is not None:
        begin = ns.probing_ahead
        ahead = guarded(lambda: stack.enter_context(begin()))
    try:
        yield ask
    finally:
        guarded(stack.close)
