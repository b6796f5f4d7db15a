"""The results of a conformance run, as text and as data; and the table of the operators that a namespace may take.

The table comes from the registry and from trial calls: the dtypes are found by lowering the calls that the kit has of
each operator, in each dtype. The library is not asked, so the answer is the same on every machine.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

import tvm
from tvm import relax

from ...core.machine import own_version
from ...ir.relax_utils import op_calls
from ...partitioning.trial import ask
from ...vendors import Namespace
from .calls import written_cases
from .judge import FAILED, KEPT, SKIPPED, TAKEN, Case, Result

_STATUSES = (TAKEN, KEPT, SKIPPED, FAILED)

_LETTER = 6.6  # pixels of a letter of the badge
_BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {text}">
<title>{label}: {text}</title>
<rect width="{width}" height="20" rx="3" fill="#555"/>
<path d="M{left} 0h{rest}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{rest}z" fill="{colour}"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{label_middle}" y="14">{label}</text><text x="{text_middle}" y="14">{text}</text></g></svg>
"""


def _badge(label: str, text: str, colour: str) -> str:
    left, right = (round(_LETTER * len(words)) + 12 for words in (label, text))
    places = {"width": left + right, "left": left, "rest": right - 3}
    middles = {"label_middle": left / 2, "text_middle": left + right / 2}
    return _BADGE.format(label=label, text=text, colour=colour, **places, **middles)


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
    share : float
        The share of the cases that was drawn.
    seed : int
        What they were drawn by.
    api : int
        The version of the contract that the backend was written for.
    """

    namespace: str
    cases: Sequence[Result]
    notes: Sequence[str]
    seconds: float
    share: float = 1.0
    seed: int = 0
    api: int = 1

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
        total = Counter(case.status for case in self.cases)
        return {
            "namespace": self.namespace,
            "api": self.api,
            "ok": self.ok,
            "share": self.share,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "date": datetime.now(timezone.utc).date().isoformat(),
            "versions": {"tvm-byoc-dnnl": own_version(), "apache-tvm": tvm.__version__},
            "counts": {status: total[status] for status in _STATUSES},
            "cases": [asdict(case) for case in self.cases],
            "notes": list(self.notes),
        }

    def to_badge(self) -> str:
        """A small picture for a page of the backend, as SVG text."""
        taken = sum(case.status == TAKEN for case in self.cases)
        part = "" if self.share == 1 else f" of a share of {self.share:g}"
        right = f"{taken:,} calls right" if self.ok else f"{len(self.failures):,} of {len(self.cases):,} failed"
        return _badge("tvm-byoc conformance", right + part, "#2e7d32" if self.ok else "#c62828")

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


# ---- the table of operators -------------------------------------------------------------------------

#: dtype → its name in the table
DTYPES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float64": "f64",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
}


@dataclass(frozen=True)
class Support:
    """One row."""

    #: Relax operator, or a pattern's name
    name: str
    #: ``predicate``, ``lowering``, ``predicate + lowering`` or ``pattern``
    how: str
    #: short names of the dtypes that are taken; empty where that is not known
    dtypes: tuple[str, ...]
    #: first sentence of the vendor's docstring
    notes: str
    #: where it is written
    function: Callable[..., Any] | None


def support_of(ns: Namespace) -> list[Support]:
    """The operators of a namespace by name, then its patterns in order of priority."""
    rows = []
    for op in ns.ops():
        how = " + ".join(w for w, table in (("predicate", ns.predicates), ("lowering", ns.lowerings)) if op in table)
        # The docstring of the lowering describes the nodes; a namespace without lowerings has that of its predicate.
        function = ns.lowerings.get(op) or ns.predicates[op]
        rows.append(Support(op, how, _dtypes(ns, op), _first_sentence(function), function))
    for name, pattern in ns.patterns.items():
        code = pattern.check or pattern.lower
        notes = _first_sentence(code) if code else "Its operators, one by one."
        rows.append(Support(name, "pattern", (), notes, code))
    return rows


def _first_sentence(function: Callable[..., Any]) -> str:
    text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return text.replace("``", "`")


def _dtypes(ns: Namespace, op: str) -> tuple[str, ...]:
    """Those in which it takes a call of the kit, as it is or with constants behind the first operand."""
    alone = replace(ns, functions=replace(ns.functions, probe=None))
    cases = [c for c in written_cases(op) if all(a.size for a in c.arrays)]
    cases += [replace(case, constants=tuple(range(1, len(case.arrays)))) for case in cases if len(case.arrays) > 1]
    return tuple(n for dtype, n in DTYPES.items() if any(_takes(alone, case.of_dtype(dtype)) for case in cases))


def _takes(ns: Namespace, case: Case) -> bool:
    calls = () if case.main is None else (call for _, call in op_calls(case.main) if call.op.name == case.subject)
    tensors = (relax.TensorType, relax.TupleType)  # a call without any has the same dtype in all cases
    return any(isinstance(a.ty, tensors) and ask(ns, call) is None for call in calls for a in call.args[:1])
