"""Questions to a backend: small functions and the arrays that they are called with, and the choice of some out of many.

Cases in, results out: many functions in one module, compiled once by TVM alone and once with the backend.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...core.compilation import MATCH, read_facts, read_log
from ...core.verdict import Crash, Unexplained, describe
from ...graph.cost import RegionPolicy
from ...ir.relax_utils import bindings_of, composite_of, leaf_types, make_constant, module_of, op_calls
from ...ir.tvm_compat import dtype_of
from ...partitioning import PartitionGraph
from ...partitioning.annotate import AnnotateExternalCompiler, places_taken
from ...partitioning.trial import ask, may_take
from ...partitioning.vendor_forms import Convertible, Places, laid_out
from ...pipeline import PIPELINE
from ...prepare.constants import FOLD_TRANSPOSED
from ...prepare.rewrite import rewrite_pass
from ...report.verify import arrays_in
from ...runtime.comparison import differences, nudged, sensitivity
from ...vendors import Namespace

#: ``function(builder, *operands)`` returns an expression, or a tuple of them
Function = Callable[..., Any]


def lifted(call: Callable[..., Any]) -> Function:
    """A function of operands as a `Function`."""
    return lambda builder, *operands: call(*operands)


@dataclass(frozen=True, eq=False)
class Case:
    """One function of one or a few operator calls."""

    #: the Relax operator, or the pattern, that it is about
    subject: str
    #: what is special about it
    what: str
    #: ``function(builder, *operands)``
    function: Function
    #: values of the operands
    arrays: tuple[np.ndarray, ...]
    #: operands that are constants of the function instead of parameters
    constants: tuple[int, ...] = ()
    #: the leading dimension of the first operand is a symbol, and so are those of its size in the others
    symbolic: bool = False
    #: computes what is right, like ``function``, where TVM cannot compile that
    by: Function | None = None
    #: the subject is a pattern, which has to match here
    must_match: bool = False
    #: calls follow on calls, so that rounding errors grow
    is_chain: bool = False
    #: makes ``asked``, the function in the layout that a backend wants, of ``main``
    form: Callable[[relax.Function], relax.Function] | None = None

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.subject}: {self.what}"

    @property
    def inputs(self) -> list[np.ndarray]:
        """Arguments of the function."""
        return [a for i, a in enumerate(self.arrays) if i not in self.constants]

    @functools.cached_property
    def main(self) -> relax.Function | None:
        """The function, ``None`` where Relax does not accept it."""
        return self._built(self.function)

    @functools.cached_property
    def asked(self) -> relax.Function:
        """The function about whose calls the backend is asked."""
        assert self.main is not None
        return self.main if self.form is None else self.form(self.main)

    @functools.cached_property
    def reference(self) -> relax.Function | None:
        """The module with which TVM computes the right results."""
        return self._built(self.by) if self.by is not None else self.main

    def of_dtype(self, dtype: str) -> Case:
        """The same with another dtype of the first operand that is no condition, and of those like it."""
        like = next((a.dtype for a in self.arrays if a.dtype != "bool"), self.arrays[0].dtype)
        return replace(self, arrays=tuple(a.astype(dtype) if a.dtype == like else a for a in self.arrays))

    def widened(self) -> Case | None:
        """The same values in float32, for a case in a shorter type."""
        if not any(a.dtype == "float16" for a in self.arrays):
            return None
        arrays = tuple(a.astype("float32") if a.dtype == "float16" else a for a in self.arrays)
        return replace(self, arrays=arrays)

    def _built(self, function: Function) -> relax.Function | None:
        accepted, operands = True, [self._operand(i) for i in range(len(self.arrays))]

        def body(builder: relax.BlockBuilder) -> Any:
            nonlocal accepted
            try:
                made = function(builder, *operands)
                return builder.normalize(relax.Tuple(list(made)) if isinstance(made, tuple) else made)
            except Exception:  # Relax has no such call: the variation does not apply
                accepted = False
                return relax.const(0)  # the function is ended all the same: TVM warns of builders that were left open

        main = module_of([o for i, o in enumerate(operands) if i not in self.constants], body)["main"]
        return main if accepted else None

    def _operand(self, index: int) -> relax.Expr:
        array = self.arrays[index]
        if index in self.constants:
            return make_constant(array)
        shape: list[Any] = list(array.shape)
        if self.symbolic and _leading(array) == _leading(self.arrays[0]):
            shape[0] = self._symbol
        return relax.Var(f"x{index}", relax.TensorType(shape, str(array.dtype)))

    @functools.cached_property
    def _symbol(self) -> Any:
        return tvm.tirx.Var("n", "int64")


def _leading(array: np.ndarray) -> int | None:
    return array.shape[0] if array.ndim else None


def resized(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Values of ``array`` in another shape."""
    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def drawn(cases: Sequence[Case], share: float, draw: random.Random) -> list[Case]:
    """About ``share`` of the cases in their order, the first of each subject among them."""
    found = []
    for _, group in groupby(cases, key=lambda case: case.subject):
        first, *others = group
        kept = set(draw.sample(range(len(others)), round(len(others) * share)))
        found += [first, *(case for i, case in enumerate(others) if i in kept)]
    return found


def spread(cases: Sequence[Case], count: int) -> list[Case]:
    """``count`` of the cases, from all over; all, where there are fewer."""
    if len(cases) <= count:
        return list(cases)
    return [cases[i * len(cases) // count] for i in range(count)]


#: results of a function, or why there are none
Outcome = list[np.ndarray] | Exception
#: The target of TVM's own part. It runs once, so optimising it would take longer than running it.
HOST = {"kind": "llvm", "opt-level": 0}


def function_name(index: int) -> str:
    """The name of the function of this case in the module of a batch."""
    return f"case_{index}"


def module_of_all(functions: Sequence[Any]) -> tvm.IRModule:
    """One module of all functions."""
    names = [function_name(i) for i in range(len(functions))]
    named = zip(names, functions, strict=True)
    return tvm.IRModule({tvm.ir.GlobalVar(n): f.with_attr("global_symbol", n) for n, f in named})


def by_tvm(mod: tvm.IRModule) -> Any:
    """A module, compiled by TVM alone."""
    return tvm.compile(mod, tvm.target.Target(HOST))


def outcomes(cases: Sequence[Case], functions: Sequence[Any], build: Callable[[tvm.IRModule], Any]) -> list[Any]:
    """For each case a function of its inputs, or why it does not build, which is found by halves."""
    if not cases:
        return []
    try:
        machine = relax.VirtualMachine(build(module_of_all(functions)), tvm.cpu())
    except Exception as error:
        if len(cases) == 1:
            return [error]
    else:
        return [machine[function_name(i)] for i in range(len(cases))]
    refused = {i: why for i, f in enumerate(functions) if (why := _why_not_legal(f)) is not None}
    if refused and len(refused) < len(cases):
        kept = [i for i in range(len(cases)) if i not in refused]
        rest = outcomes([cases[i] for i in kept], [functions[i] for i in kept], build)
        return [{**refused, **dict(zip(kept, rest, strict=True))}[i] for i in range(len(cases))]
    half = len(cases) // 2
    return outcomes(cases[:half], functions[:half], build) + outcomes(cases[half:], functions[half:], build)


def _why_not_legal(function: Any) -> Exception | None:
    try:
        with tvm.target.Target(HOST):
            relax.transform.LegalizeOps()(module_of_all([function]))
    except Exception as error:
        return error
    return None


def run(function: Any, inputs: Sequence[np.ndarray]) -> Outcome:
    """The results of what `outcomes` gave for a case."""
    if isinstance(function, Exception):
        return function
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    try:
        results = arrays_in(function(*tensors))
    except Exception as error:
        return error
    for i, (tensor, array) in enumerate(zip(tensors, inputs, strict=True)):
        if tensor.numpy().tobytes() != array.tobytes():
            return ValueError(f"input {i} is overwritten; a region may write nothing but its results")
    return results


#: statuses of a result: computed, and right; left with TVM, for a reason; TVM cannot say what is right; wrong
TAKEN, KEPT, SKIPPED, FAILED = "taken", "kept", "skipped", "failed"


@dataclass(frozen=True)
class Result:
    """The result of a case; ``detail`` has the reason, or what is wrong."""

    subject: str
    what: str
    status: str
    detail: str = ""

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.subject}: {self.what}"


def judge(
    ns: Namespace,
    cases: Sequence[Case],
    compilers: Sequence[str],
    tolerances: Mapping[str, float],
    begin: Callable[[Case | None], None],
) -> list[Result]:
    """``compilers`` may take calls, in order of priority; ``begin`` is told the next case, ``None`` while compiling."""
    verdicts = {case: _Verdict(ns, case) for case in _each(cases, begin)}
    right = _References(cases, tolerances)
    # A call that TVM cannot compile cannot be left with TVM either.
    hopeless = {case for case in cases if case.by is not None and not verdicts[case].accepted}
    known = [case for case in cases if case not in hopeless and not isinstance(right.results[case], Exception)]
    functions = {case: case.asked if verdicts[case].accepted else _as_built(ns, case) for case in known}
    partition = _Partition(ns, functions, compilers)
    got = partition.results(begin)
    results = []
    for case in cases:
        verdict, wrong, want = verdicts[case], verdicts[case].complaint, right.results[case]
        status, detail = KEPT, verdict.reason
        if case in got:
            accepted = (verdict.accepted and case not in partition.unfit) or case in partition.matched
            status = TAKEN if accepted else KEPT
            wrong = wrong or partition.missed[case] or right.gap(case, got[case], tolerances)
            detail = detail or ("" if accepted else partition.why_kept(case))
        elif isinstance(want, Exception):
            status, detail = SKIPPED, f"TVM alone: {describe(want)}"
        status, detail = (FAILED, wrong) if wrong else (status, detail)
        results.append(Result(case.subject, case.what, status, detail))
    return results


def in_layout(ns: Namespace, cases: Sequence[Case]) -> Sequence[Case]:
    """Cases that ask a backend about calls in the layout that it wants, whether it takes them or not."""
    if ns.layouts is None:
        return cases

    def every(calls: Convertible, asked: tvm.IRModule) -> Places:
        return {"main": range(len(calls.variables(asked["main"])))}

    return [replace(case, form=partial(_laid_out, ns, every)) for case in cases]


def _as_built(ns: Namespace, case: Case) -> Any:
    """The function in which calls have that layout that the backend takes, as in a build."""

    def taken(calls: Convertible, asked: tvm.IRModule) -> Places:
        return places_taken(ns, asked, ["main"], calls)[0]

    return case.main if ns.layouts is None else _laid_out(ns, taken, case.main)


def _laid_out(ns: Namespace, taken: Callable[[Convertible, tvm.IRModule], Places], func: Any) -> Any:
    mod = relax.transform.ConvertToDataflow(min_size=1)(tvm.IRModule({"main": func}))
    assert ns.layouts is not None
    calls = Convertible(may_take(ns), ns.layouts, ())
    made = laid_out(mod, [mod.get_global_var("main")], ns.layouts, calls, partial(taken, calls))
    return rewrite_pass("Constants", FOLD_TRANSPOSED)(made)["main"]


def _each(cases: Sequence[Case], begin: Callable[[Case | None], None]) -> Iterator[Case]:
    for case in cases:
        begin(case)
        yield case
    begin(None)


# ---------------------------------------------------------------- verdicts
class _Verdict:
    """The backend's verdict on the calls that a case is about; on a pattern it has none before the pattern matches."""

    def __init__(self, ns: Namespace, case: Case) -> None:
        self.reason, self.complaint = "", ""
        self.accepted = False
        for _, call in op_calls(case.asked):
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
        elif isinstance(refusal, Unexplained) or not refusal.reason.strip():
            self.complaint = "rejected without a reason; return byoc.Reject(reason) instead of False"


# ---------------------------------------------------------------- with the backend
class _Partition:
    """Functions of cases in one module; ``missed`` is what should be in a region, ``unfit`` what ``fits`` refused."""

    def __init__(self, ns: Namespace, cases: Mapping[Case, Any], compilers: Sequence[str]) -> None:
        self._cases, self._functions, self._compilers = list(cases), list(cases.values()), compilers
        self._names = {case: function_name(i) for i, case in enumerate(cases)}
        annotated = AnnotateExternalCompiler(compilers, prepare=False)(module_of_all(self._functions))
        self._mod = PartitionGraph(policy=RegionPolicy())(annotated)
        self._log: dict[str, list[str]] = {}
        for entry in read_log(self._mod):
            self._log.setdefault(entry.function, []).append(f"{entry.stage}: {entry.reason}")
        broken = f"fits of {ns.name!r}"  # what did not say so by Reject
        full = {e.function for e in read_log(self._mod) if e.stage == "fits" and not e.reason.startswith(broken)}
        self.unfit = {case for case, name in self._names.items() if name in full}
        self._found = {c for c in cases if c.subject in {composite_of(f) for f in _callees(annotated, self._names[c])}}
        self.matched = {case for case in self._found if case.subject in self._composites(case)}
        self.missed = {case: self._why_missed(ns, case) for case in cases}

    def _composites(self, case: Case) -> set[str]:
        """The composites in the regions of a case's function."""
        regions = _callees(self._mod, self._names[case])
        return {composite_of(f) for r in regions for _, f in bindings_of(r) if isinstance(f, relax.Function)}

    def why_kept(self, case: Case) -> str:
        """Why the pattern that a case is about is not taken."""
        return self._reasons(case, "the pattern does not match this graph")

    def _reasons(self, case: Case, otherwise: str = "no reason was given") -> str:
        """The entries of the log about the case's function, each once."""
        return "; ".join(dict.fromkeys(self._log.get(self._names[case], [otherwise])))

    def _why_missed(self, ns: Namespace, case: Case) -> str:
        if case.must_match and case not in self._found:
            asked = AnnotateExternalCompiler(self._compilers, prepare=False)(module_of_all([case.asked]))
            refusals = dict.fromkeys(fact.reason for fact in read_facts(asked) if fact.stage == MATCH)
            return f"the pattern does not match its own example: {'; '.join(refusals) or self._reasons(case)}"
        calls = op_calls(self._mod[self._names[case]])
        left = [c for _, c in calls if c.op.name == case.subject and ask(ns, c) is None]
        lost = case in self._found - self.matched
        is_missed = case not in self.unfit and (left or lost)
        return f"accepted, and still left with TVM: {self._reasons(case)}" if is_missed else ""

    def results(self, begin: Callable[[Case | None], None]) -> dict[Case, Outcome]:
        """The results by the strict pipeline: a call that it gives back was accepted and cannot be built."""
        first = [self._mod]

        def build(mod: tvm.IRModule) -> Any:
            if first:  # all cases, which are partitioned already
                mod = first.pop()
            else:
                passes = [AnnotateExternalCompiler(self._compilers, prepare=False)]
                passes.append(PartitionGraph(policy=RegionPolicy(), strict=True))
                mod = tvm.transform.Sequential(passes)(mod)
            pipeline = relax.get_pipeline(PIPELINE, strict=True)
            return tvm.compile(mod, tvm.target.Target(HOST), relax_pipeline=pipeline)

        runnable = outcomes(self._cases, self._functions, build)
        built = dict(zip(self._cases, runnable, strict=True))
        return {case: run(built[case], case.inputs) for case in _each(self._cases, begin)}


def _callees(mod: tvm.IRModule, function: str) -> list[relax.Function]:
    """The global functions that a function calls."""
    calls = [value for _, value in bindings_of(mod[function]) if isinstance(value, relax.Call)]
    return [mod[call.op] for call in calls if isinstance(call.op, tvm.ir.GlobalVar)]


# ---------------------------------------------------------------- without it
class _References:
    """The results of TVM alone, or why there are none."""

    def __init__(self, cases: Sequence[Case], tolerances: Mapping[str, float]) -> None:
        runnable = outcomes(cases, [c.reference for c in cases], by_tvm)
        self.results: dict[Case, Outcome] = {}
        self._slack: dict[Case, list[Any]] = {}
        for case, function in zip(cases, runnable, strict=True):
            self.results[case] = run(function, case.inputs)
            if case.is_chain:
                near = [run(function, inputs) for inputs in nudged(case.inputs, tolerances)]
                if isinstance(want := self.results[case], list):
                    self._slack[case] = sensitivity(want, [n for n in near if isinstance(n, list)])
        # TVM may round to float16 where a library does not
        wide = [(c, other) for c in cases if (other := c.widened()) is not None and other.reference is not None]
        functions = outcomes([w for _, w in wide], [w.reference for _, w in wide], by_tvm)
        computed = {c: run(f, w.inputs) for (c, w), f in zip(wide, functions, strict=True)}
        self._wide = {case: outcome for case, outcome in computed.items() if isinstance(outcome, list)}

    def gap(self, case: Case, got: Outcome, tolerances: Mapping[str, float]) -> str:
        """The error in a backend's results, ``""`` where they are right."""
        if isinstance(got, Exception):
            return f"does not compile or run: {describe(got)}"
        want = self.results[case]
        assert isinstance(want, list)
        wrong = differences(got, want, tolerances, slack=self._slack.get(case, ()))
        if not wrong or case.main is None:
            return wrong
        # TVM's results may have another dtype than the function, such as float32 of a batch_norm of float16
        dtypes = [dtype_of(ty) for ty in leaf_types(case.main.ret_ty)]
        for right in (want, self._wide.get(case, want)):
            if not differences(got, [a.astype(d) for a, d in zip(right, dtypes, strict=True)], tolerances):
                return ""
        return wrong
