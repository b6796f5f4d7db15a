"""The results of a conformance run, as text and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .judge import FAILED, KEPT, SKIPPED, TAKEN, Result

__all__ = ["Report"]

_STATUSES = (TAKEN, KEPT, SKIPPED, FAILED)


@dataclass(frozen=True)
class Report:
    """The results of `run_conformance`.

    Attributes
    ----------
    namespace : str
        The backend.
    cases : sequence of Result
        One per case.
    notes : sequence of str
        What could not be asked.
    seconds : float
        How long it took.
    """

    namespace: str
    cases: Sequence[Result]
    notes: Sequence[str]
    seconds: float

    @property
    def failures(self) -> list[Result]:
        """The cases that failed."""
        return [case for case in self.cases if case.status == FAILED]

    @property
    def ok(self) -> bool:
        """Whether something was taken, and nothing failed."""
        return not self.failures and any(case.status == TAKEN for case in self.cases)

    def counts(self) -> dict[str, Counter[str]]:
        """Operator or pattern → how many of its cases have each status."""
        counts: dict[str, Counter[str]] = {}
        for case in self.cases:
            counts.setdefault(case.subject, Counter())[case.status] += 1
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "namespace": self.namespace,
            "ok": self.ok,
            "seconds": round(self.seconds, 1),
            "cases": [asdict(case) for case in self.cases],
            "notes": list(self.notes),
        }

    def to_text(self, every_case: bool = False) -> str:
        """A table by operator, then the failures; with ``every_case`` each case with its reason."""
        width = max((len(subject) for subject in self.counts()), default=0)
        lines = ["  ".join([f"{self.namespace:<{width}}", *_STATUSES])]
        for subject, count in self.counts().items():
            cells = [f"{count[status] or '-':>{len(status)}}" for status in _STATUSES]
            lines.append("  ".join([f"{subject:<{width}}", *cells]))
        shown = self.cases if every_case else self.failures
        lines += ["", *(f"{c.status:<7}  {c.name}{': ' * bool(c.detail)}{c.detail}" for c in shown)] if shown else []
        lines += ["", *(f"note: {note}" for note in self.notes)] if self.notes else []
        total = Counter(case.status for case in self.cases)
        verdict = "conforms" if self.ok else "does NOT conform"
        numbers = ", ".join(f"{total[status]} {status}" for status in _STATUSES)
        lines += ["", f"{self.namespace} {verdict}: {len(self.cases)} cases, {numbers}; {self.seconds:.0f} s"]
        return "\n".join(lines)

    __str__ = to_text
