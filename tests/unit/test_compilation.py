"""What one compilation knows, and when it is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import Case, data
from tvm_byoc_dnnl.core.compilation import Compilation, cause_of, compiling, current, knowing, note_cause


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Each test in a context of its own: passes used by hand share a compilation."""
    with knowing(is_by_hand=True, causes={}, seconds={}):
        yield


def test_what_is_inside_of_a_compilation_is_part_of_it() -> None:
    with compiling() as outer, compiling() as inner:
        assert inner is outer is current()
        assert not outer.is_by_hand and outer.regions == {} == outer.answers


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_a_compilation_ends(ends: str) -> None:
    error = ZeroDivisionError("of a vendor")
    try:
        with compiling():
            note_cause("said", error)
            current().answers["a question"] = "an answer"
            assert cause_of("nothing of it") is None and cause_of("what was said") is error
            if ends != "well":
                raise error
    except ZeroDivisionError:
        pass
    assert cause_of("what was said") is None
    assert current().is_by_hand and current().regions is None and "a question" not in current().answers


def test_the_first_error_of_a_text_is_kept_and_by_hand_the_last() -> None:
    first, last = KeyError("first"), KeyError("last")
    for error in (first, last):
        note_cause("text", error)
    assert cause_of("a text") is last
    with compiling():
        for error in (first, last):
            note_cause("text", error)
        assert cause_of("a text") is first


def test_passes_by_hand_keep_the_last_errors_only() -> None:
    for number in range(40):
        note_cause(f"<{number}>", KeyError(number))
    assert len(current().causes) == 16
    assert cause_of("<39>") is not None and cause_of("<0>") is None


def test_what_is_known_inside_changes_nothing_outside() -> None:
    with compiling() as outer:
        with knowing(around=(1,)) as inner:
            assert inner.around == (1,) and inner.causes is outer.causes
        assert current().around == ()


@pytest.mark.parametrize("run", [lambda seen: seen(), lambda seen: copy_context().run(seen)])
def test_threads_have_compilations_of_their_own(run: Callable[[Callable[[], None]], None]) -> None:
    seen: list[Compilation] = []
    thread = threading.Thread(target=lambda: run(lambda: seen.append(current())))
    with compiling() as ours:
        thread.start()
        thread.join()
    assert seen[0] is not ours and seen[0].is_by_hand


def test_a_vendor_that_compiles_while_it_is_asked_disturbs_nothing() -> None:
    """A compilation inside of another joins it: equal calls have equal answers."""
    inside: list[Any] = []

    def predicate(_attrs: Any, _args: Any) -> bool:
        inside.append(byoc.partition(Case(relax.op.nn.relu, (data(2, 3),)).module, "acme"))
        return byoc.Reject("no")

    byoc.register_annotate_compiler("acme", "relax.exp", predicate)
    try:
        report = byoc.explain(Case(relax.op.exp, (data(3, 5),)).module, "acme")
    finally:
        byoc.unregister_compiler("acme")
    assert report.calls[0].reasons == ["acme: no"] and len(inside) == 1
