"""A backend's code in a process of its own: one that crashes or hangs costs its case, and the others go on.

The process is forked, so that it has all registrations, and is used for all cases. It says what it begins and what it
has found. Where it ends early, or says nothing for too long, the next process gets what is known so far, and judges the
suspected cases apart from the others, until one case is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...core.errors import ByocError
from ...core.own_process import death, own_process
from .judge import FAILED, Result

#: while so many cases are compiled together, they may take the time of one case more
_COMPILED_IN_TIME = 16


@dataclass
class Journal:
    """What is known of the cases, by their numbers, and what is being done."""

    #: number of a case → its result
    results: dict[int, Result] = field(default_factory=dict)
    #: number of a case → label; cases with the same label are judged together, those without one with their batch
    groups: dict[int, str] = field(default_factory=dict)
    #: subject whose cases cannot be made → why
    lost: dict[str, str] = field(default_factory=dict)
    #: passes on a message; nobody listens to it where the cases are judged in the same process
    tell: Callable[..., None] = lambda *message: None
    _making: str | None = None
    _judging: Sequence[tuple[int, str, str]] = ()
    _running: int | None = None

    # ------------------------------------------------------------ in the process of the backend
    def say(self, text: str) -> None:
        """A line about the progress."""
        self.tell("say", text)

    def make(self, subject: str) -> None:
        """The cases of a subject are going to be made."""
        self.tell("make", subject)

    def judge(self, cases: Sequence[tuple[int, str, str]]) -> None:
        """Cases (number, subject, what) are going to be judged together."""
        self.tell("judge", cases)

    def run(self, number: int | None) -> None:
        """One of them is going to run; or, without a number, all are compiled."""
        self.tell("run", number)

    def found(self, results: dict[int, Result]) -> None:
        """Results of the cases that were judged together."""
        self.results.update(results)
        self.tell("found", results)

    # ------------------------------------------------------------ in the process that waits for it
    def follow(self, what: str, value: Any) -> None:
        """Take note of a message."""
        if what == "make":
            self._making = value
        elif what == "judge":
            self._making, self._judging, self._running = None, value, None
        elif what == "run":
            self._running = value
        elif what == "found":
            self.results.update(value)
            self._judging, self._running = (), None

    def patience(self, limit: float) -> float:
        """Seconds to wait for the next message, where one case may take ``limit``."""
        return limit if self._running is not None else limit * (1 + len(self._judging) / _COMPILED_IN_TIME)

    def after(self, death: str) -> None:
        """Prepare for the next process: one case that ended this one is a failure, of several some are suspected.

        Raises
        ------
        ByocError
            If nothing of the backend was being done.
        """
        if len(self._judging) == 1:
            ((number, subject, what),) = self._judging
            self.results[number] = Result(subject, what, FAILED, death)
        elif self._running is not None:
            self.groups[self._running] = f"alone {self._running}"
        elif self._judging:
            for place, (number, _, _) in enumerate(self._judging):
                half = int(2 * place >= len(self._judging))
                self.groups[number] = f"{self.groups.get(number, '')}{half}"
        elif self._making is not None:
            self.lost[self._making] = death
        else:
            raise ByocError(f"the process of the conformance kit did not begin: {death}")
        self._making, self._judging, self._running = None, (), None


def in_own_process(work: Callable[[Journal], Any], time_limit: float, say: Callable[[str], None]) -> Any:
    """The value of ``work(journal)``, which runs in a process that is started again after it crashes or hangs.

    ``work`` does the same in the same order each time, leaves out what the journal knows, and tells it what it does.
    One case may take ``time_limit`` seconds.
    """
    journal = Journal()
    while True:
        with own_process(partial(_told, work, journal)) as (process, pipe):
            while True:
                try:
                    if not pipe.poll(journal.patience(time_limit)):
                        ended = f"hangs: nothing came for {journal.patience(time_limit):g} s, and it was ended"
                        break
                    what, value = pipe.recv()
                except (EOFError, OSError):
                    process.join()
                    ended = death(process.exitcode)
                    break
                if what == "done":
                    return value
                if what == "error":
                    raise value
                say(value) if what == "say" else journal.follow(what, value)
        journal.after(ended)


def _told(work: Callable[[Journal], Any], journal: Journal, tell: Callable[[str, Any], None]) -> Any:
    journal.tell = tell
    return work(journal)
