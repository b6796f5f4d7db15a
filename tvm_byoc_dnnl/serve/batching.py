"""Requests that wait, joined into the calls of a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from . import TOO_MANY, UNAVAILABLE, Refusal


@dataclass(eq=False)
class Waiting:
    """A request in the queue.

    Attributes
    ----------
    inputs : Any
        What the call takes.
    rows : int
        How many rows of a batch it has.
    key : Hashable
        Requests with the same key may be joined; ``None`` for one that is called alone.
    since : float
        When it came.
    """

    inputs: Any
    rows: int = 1
    key: Hashable = None
    since: float = 0.0
    future: Future[Any] = field(default_factory=Future)


class Queue:
    """The order of calls: the oldest request first, and with it those behind that fit.

    It has no clock and no lock: each method is told the time, and one thread at a time calls. ``most_rows``: rows of a
    call; a request that has more by itself is called alone. ``delay``: seconds that a request waits for others while
    the call has room. ``places``: requests that may wait.
    """

    def __init__(self, most_rows: int = 1, delay: float = 0.0, places: int = 64) -> None:
        self.most_rows, self.delay, self.places = most_rows, delay, places
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: Waiting) -> None:
        """Let a request wait. Raises `Refusal` if no place is left."""
        self._waiting = [each for each in self._waiting if not each.future.cancelled()]
        if len(self._waiting) >= self.places:
            raise Refusal(TOO_MANY, f"{self.places} requests wait already; try again later")
        self._waiting.append(request)

    def take(self, now: float) -> tuple[list[Waiting], float | None]:
        """The requests of the next call, which leave the queue; or none, and when there is one if no other comes."""
        self._waiting = [each for each in self._waiting if not each.future.cancelled()]
        if not self._waiting:
            return [], None
        first = self._waiting[0]
        taken, rows, is_full = [first], first.rows, first.key is None
        for each in self._waiting[1:] if first.key is not None else ():
            if each.key != first.key:
                continue
            if rows + each.rows > self.most_rows:
                is_full = True
                break
            taken.append(each)
            rows += each.rows
        if not is_full and rows < self.most_rows and now < first.since + self.delay:
            return [], first.since + self.delay
        self._waiting = [each for each in self._waiting if each not in taken]
        return [each for each in taken if each.future.set_running_or_notify_cancel()], None


class Batcher:
    """Threads that make the calls of a queue.

    ``call``: of the inputs of one or several requests; it returns the result of each, or raises. ``queue``: the order
    of the calls. ``threads``: calls at the same time.
    """

    def __init__(self, call: Callable[[Sequence[Any]], Sequence[Any]], queue: Queue, threads: int = 1) -> None:
        self._call, self._queue, self._is_open = call, queue, True
        self._changed = threading.Condition()
        for _ in range(threads):
            threading.Thread(target=self._work, name="tvm_byoc_dnnl.serve", daemon=True).start()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, inputs: Any, rows: int = 1, key: Hashable = None) -> Future[Any]:
        """Let a request wait for its call. Cancelling the future takes it out of the queue.

        Raises `Refusal` if no place is left, or the batcher is closed.
        """
        request = Waiting(inputs, rows, key, time.monotonic())
        with self._changed:
            if not self._is_open:
                raise Refusal(UNAVAILABLE, "the model is being closed; try again")
            self._queue.put(request)
            self._changed.notify_all()
        return request.future

    def close(self) -> None:
        """End the threads when no request waits any more."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            self._answer(taken)

    def _next(self) -> list[Waiting] | None:
        """The requests of the next call, as soon as there are some; ``None`` at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                taken, later = self._queue.take(now)
                if taken:
                    return taken
                if later is None and not len(self._queue):
                    if not self._is_open:
                        return None
                    self._changed.wait()
                elif later is not None:
                    self._changed.wait(max(0.0, later - now))

    def _answer(self, taken: Sequence[Waiting]) -> None:
        try:
            results = self._call([each.inputs for each in taken])
        except BaseException as error:  # also of a vendor's code; the thread goes on
            if len(taken) == 1:
                taken[0].future.set_exception(error)
                return
            for each in taken:  # one of them may be at fault: each gets its own answer
                self._answer([each])
            return
        for each, result in zip(taken, results, strict=True):
            each.future.set_result(result)
