"""Cases in, results out: many functions in one module, compiled once by TVM alone and once with the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...annotate.passes import AnnotateExternalCompiler
from ...annotate.trial import ask
from ...codegen.pipeline import PIPELINE
from ...log import read_log
from ...partitioning.attempt import describe
from ...partitioning.passes import PartitionGraph
from ...partitioning.policy import RegionPolicy
from ...registry import Namespace
from ...relax_utils import composite_of, op_calls
from ...verdict import Crash, Reject
from .case import Case

__all__ = ["FAILED", "KEPT", "SKIPPED", "TAKEN", "TOLERANCES", "Result", "judge"]

#: Largest error, relative to the largest value of the result. TVM approximates several functions to float32's
#: precision whatever the dtype; float16 rounds each tensor once.
TOLERANCES: dict[str, float] = {"float64": 1e-5, "float32": 1e-5, "float16": 2**-8}

#: statuses of a result
TAKEN, KEPT, SKIPPED, FAILED = "taken", "kept", "skipped", "failed"

#: results of a function, or why there are none
Outcome = list[np.ndarray] | Exception
_Build = Callable[[tvm.IRModule], Any]


@dataclass(frozen=True)
class Result:
    """What came of a case.

    Attributes
    ----------
    subject, what : str
        The case's.
    status : str
        ``taken`` (the backend computes it, and right), ``kept`` (it stays with TVM, for a reason), ``skipped`` (TVM
        itself cannot say what is right) or ``failed``.
    detail : str
        The reason, or what is wrong.
    """

    subject: str
    what: str
    status: str
    detail: str = ""

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return f"{self.subject}: {self.what}"


def judge(
    ns: Namespace, cases: Sequence[Case], compilers: Sequence[str], tolerances: Mapping[str, float]
) -> list[Result]:
    """The results of some cases. One that does not compile costs time, but not the results of the others.

    Parameters
    ----------
    ns : Namespace
        The backend.
    cases : sequence of Case
        What to ask; not too many at once.
    compilers : sequence of str
        Who may take calls, in order of priority; ``ns`` is one of them.
    tolerances : mapping of str to float
        Dtype → largest error, see `TOLERANCES`.
    """
    verdicts = {case: _Verdict(ns, case) for case in cases}
    wanted = dict(zip(cases, _outcomes(cases, [c.reference for c in cases], _by_tvm), strict=True))
    # What TVM cannot compile cannot be left with it either.
    hopeless = {case for case in cases if case.by is not None and not verdicts[case].accepted}
    known = [case for case in cases if case not in hopeless and not isinstance(wanted[case], Exception)]
    missed = _missed(ns, known, compilers)
    build = _by(compilers)
    got = dict(zip(known, _outcomes(known, [c.main for c in known], build), strict=True))
    wide = _widened(known)
    results = []
    for case in cases:
        verdict, want = verdicts[case], wanted[case]
        wrong = verdict.complaint
        if not wrong and case in missed:
            assert isinstance(want, list)
            wrong = missed[case] or _difference(got[case], [want, *wide.get(case, [])], tolerances)
        if wrong:
            results.append(Result(case.subject, case.what, FAILED, wrong))
        elif isinstance(want, Exception):
            results.append(Result(case.subject, case.what, SKIPPED, f"TVM alone: {describe(want)}"))
        else:
            status = TAKEN if verdict.accepted else KEPT
            results.append(Result(case.subject, case.what, status, verdict.reason))
    return results


# ---------------------------------------------------------------- verdicts
class _Verdict:
    """What the backend says of the calls that a case is about."""

    def __init__(self, ns: Namespace, case: Case) -> None:
        self.reason, self.complaint = "", ""
        self.accepted = case.given is not None  # whether a pattern matches is seen after partitioning
        for _, call in op_calls(case.main):
            if call.op.name == case.subject:
                self._note(ns, call)

    def _note(self, ns: Namespace, call: Any) -> None:
        refusal = ask(ns, call)
        if refusal is None:
            self.accepted = True
            return
        self.reason = refusal.reason
        if isinstance(refusal, Crash):
            self.complaint = refusal.reason
        elif not refusal.reason.strip() or _says_no_more_than_no(ns, call):
            self.complaint = "rejected without a reason; return byoc.Reject(reason) instead of False"


def _says_no_more_than_no(ns: Namespace, call: Any) -> bool:
    predicate = ns.predicates.get(call.op.name)
    try:
        return predicate is not None and predicate(call.attrs, list(call.args)) is False
    except Reject:
        return False


def _missed(ns: Namespace, cases: Sequence[Case], compilers: Sequence[str]) -> dict[Case, str]:
    """Case → which accepted call is not in a region, ``""`` when all are."""
    found = {}
    annotated = AnnotateExternalCompiler(compilers, prepare=False)(_module([c.main for c in cases]))
    composites = {composite_of(f) for f in annotated.functions.values()}
    partitioned = PartitionGraph(policy=RegionPolicy())(annotated)
    why: dict[str, list[str]] = {}
    for entry in read_log(partitioned):
        why.setdefault(entry.function, []).append(f"{entry.stage}: {entry.reason}")
    for i, case in enumerate(cases):
        function = partitioned[_name(i)]
        left = [c for _, c in op_calls(function) if c.op.name == case.subject and ask(ns, c) is None]
        reasons = "; ".join(why.get(_name(i), ["no reason was given"]))
        if case.given is not None and case.subject not in composites:
            found[case] = f"the pattern does not match its own example: {reasons}"
        else:
            found[case] = f"accepted, and still left with TVM: {reasons}" if left else ""
    return found


# ---------------------------------------------------------------- compiling and running
def _name(index: int) -> str:
    return f"case_{index}"


def _module(functions: Sequence[Any]) -> tvm.IRModule:
    return tvm.IRModule({tvm.ir.GlobalVar(n): f.with_attr("global_symbol", n) for n, f in _named(functions)})


def _named(functions: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(_name(i), f) for i, f in enumerate(functions)]


def _by_tvm(mod: tvm.IRModule) -> Any:
    return tvm.compile(mod, "llvm")


def _by(compilers: Sequence[str]) -> _Build:
    passes = [AnnotateExternalCompiler(compilers, prepare=False), PartitionGraph(policy=RegionPolicy(), strict=True)]

    def build(mod: tvm.IRModule) -> Any:
        mod = tvm.transform.Sequential(passes)(mod)
        return tvm.compile(mod, "llvm", relax_pipeline=relax.get_pipeline(PIPELINE, strict=True))

    return build


def _outcomes(cases: Sequence[Case], functions: Sequence[Any], build: _Build) -> list[Outcome]:
    """Results of each case's function; what does not build is found by halves."""
    if not cases:
        return []
    try:
        machine = relax.VirtualMachine(build(_module(functions)), tvm.cpu())
    except Exception as error:
        if len(cases) == 1:
            return [error]
        half = len(cases) // 2
        return _outcomes(cases[:half], functions[:half], build) + _outcomes(cases[half:], functions[half:], build)
    return [_run(machine[_name(i)], case.inputs) for i, case in enumerate(cases)]


def _run(function: Any, inputs: Sequence[np.ndarray]) -> Outcome:
    try:
        return _tensors(function(*map(tvm.runtime.tensor, inputs)))
    except Exception as error:
        return error


def _tensors(result: Any) -> list[np.ndarray]:
    if isinstance(result, tvm.runtime.Tensor):
        return [result.numpy()]
    return [array for item in result for array in _tensors(item)]


def _widened(cases: Sequence[Case]) -> dict[Case, list[list[np.ndarray]]]:
    """The results of the cases in float16, computed in float32: TVM may round where a library does not."""
    wide = [(case, other) for case in cases if (other := case.widened()) is not None and other.reference is not None]
    outcomes = _outcomes([w for _, w in wide], [w.reference for _, w in wide], _by_tvm)
    return {case: [o] for (case, _), o in zip(wide, outcomes, strict=True) if isinstance(o, list)}


# ---------------------------------------------------------------- comparing
def _difference(got: Outcome, accepted: Sequence[list[np.ndarray]], tolerances: Mapping[str, float]) -> str:
    """What is wrong with the results, ``""`` where they equal one of ``accepted``."""
    if isinstance(got, Exception):
        return f"does not compile or run: {describe(got)}"
    found = [_gap(got, want, tolerances) for want in accepted]
    return "" if not all(found) else found[0]


def _gap(got: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerances: Mapping[str, float]) -> str:
    if len(got) != len(want):
        return f"{len(got)} results instead of {len(want)}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if g.shape != w.shape:
            return f"result {i} has shape {g.shape} instead of {w.shape}"
        within = tolerances.get(str(g.dtype), 0.0)
        a, b = g.astype("float64"), w.astype("float64")
        finite = np.abs(b[np.isfinite(b)])
        scale = finite.max(initial=0)
        if not np.allclose(a, b, rtol=within, atol=within * scale, equal_nan=True):
            worst = np.unravel_index(np.nanargmax(np.where(a == b, 0, np.abs(a - b)).reshape(a.shape)), a.shape)
            place = tuple(map(int, worst))
            return f"result {i} differs: {g[worst]} instead of {w[worst]} at {place}, tolerance {within:g} ({g.dtype})"
    return ""
