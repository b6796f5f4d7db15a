"""The queue of the server: which requests become one call, in what order, and who is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from tvm_byoc_dnnl.serve import Refusal
from tvm_byoc_dnnl.serve.batching import Batcher, Queue, Waiting


def queue(*requests: tuple[int, str | None, float], most: int = 4, delay: float = 2.0) -> tuple[Queue, list[Waiting]]:
    made = Queue(most, delay, places=8)
    waiting = [Waiting(i, rows, key, since) for i, (rows, key, since) in enumerate(requests)]
    for each in waiting:
        made.put(each)
    return made, waiting


@pytest.mark.parametrize(
    ("requests", "now", "taken", "later"),
    [
        ([], 0.0, [], None),
        ([(1, "a", 0.0)], 1.0, [], 2.0),  # waits for others
        ([(1, "a", 0.0)], 2.0, [0], None),  # has waited
        ([(1, "a", 0.0), (3, "a", 1.0)], 1.0, [0, 1], None),  # full
        ([(1, "a", 0.0), (2, "a", 1.0)], 1.0, [], 2.0),
        ([(3, "a", 0.0), (2, "a", 1.0)], 1.0, [0], None),  # the next does not fit
        ([(3, "a", 0.0), (2, "a", 1.0), (1, "a", 1.0)], 1.0, [0], None),  # and nobody overtakes it
        ([(9, "a", 0.0)], 0.0, [0], None),  # larger than a call is called alone
        ([(1, None, 0.0), (1, None, 0.0)], 0.0, [0], None),
        ([(1, "a", 0.0), (1, "b", 0.0), (1, "a", 1.0)], 2.0, [0, 2], None),
        ([(0, "a", 0.0), (4, "a", 0.0)], 0.0, [0, 1], None),
    ],
)
def test_what_a_call_takes(requests, now: float, taken: list[int], later: float | None) -> None:
    made, waiting = queue(*requests)
    found, when = made.take(now)
    assert ([each.inputs for each in found], when) == (taken, later)
    assert len(made) == len(waiting) - len(taken)


def test_places_are_bounded_and_cancelled_requests_leave_theirs() -> None:
    made, waiting = queue(*[(1, "a", 0.0)] * 8)
    with pytest.raises(Refusal, match="8 requests wait") as refused:
        made.put(Waiting(8))
    assert refused.value.status == 429
    waiting[0].future.cancel()
    made.put(Waiting(9, 1, "a"))
    assert [each.inputs for each in made.take(0.0)[0]] == [1, 2, 3, 4]


class Fake:
    """A model that doubles, and refuses 13; it counts its calls and can be held."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.may_run, self.entered = threading.Event(), threading.Semaphore(0)

    def __call__(self, inputs: list[int]) -> list[int]:
        self.calls.append(list(inputs))
        self.entered.release()
        assert self.may_run.wait(30)
        if 13 in inputs:
            raise ValueError("13")
        return [2 * each for each in inputs]


def test_requests_that_wait_during_a_call_are_one_call() -> None:
    fake = Fake()
    batcher = Batcher(fake, Queue(4, 0.0))
    first = batcher.submit(0, 1, "a")
    assert fake.entered.acquire(timeout=30)
    others = [batcher.submit(i, 1, "a") for i in range(1, 7)]
    fake.may_run.set()
    assert [f.result(30) for f in [first, *others]] == [2 * i for i in range(7)]
    assert fake.calls == [[0], [1, 2, 3, 4], [5, 6]]


def test_a_request_at_fault_takes_nobody_with_it() -> None:
    fake = Fake()
    batcher = Batcher(fake, Queue(4, 0.0))
    first = batcher.submit(0, 1, "a")
    assert fake.entered.acquire(timeout=30)
    futures = [batcher.submit(i, 1, "a") for i in (1, 13, 2)]
    fake.may_run.set()
    wait([first, *futures], 30)
    assert [f.exception() and str(f.exception()) for f in futures] == [None, "13", None]
    assert (futures[0].result(), futures[2].result()) == (2, 4)


def test_many_threads_each_get_their_own_answer() -> None:
    fake = Fake()
    fake.may_run.set()
    batcher = Batcher(fake, Queue(8, 0.0, places=1000), threads=3)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: batcher.submit(i, 1, i % 3).result(30), range(20, 320)))
    assert answers == [2 * i for i in range(20, 320)]
    assert all(len({i % 3 for i in call}) == 1 and len(call) <= 8 for call in fake.calls)
    batcher.close()
    with pytest.raises(Refusal, match="closed"):
        batcher.submit(1)
