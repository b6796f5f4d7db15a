"""AnnotateExternalCompiler: patterns and predicates → Composite functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from ..core.compilation import ALONE, ASKED, MATCH, Compilation, Fact, OverwritableWeights, stage, with_facts
from ..core.tvm_fast import ByIdentity
from ..core.verdict import Crash, Reject, as_reject, verdict_of
from ..graph import PortableGraph
from ..ir.order import IN_PLACE, WritersBetween
from ..ir.relax_utils import codegen_of, composite_of, is_host_function, is_op_call, op_calls, ops_of, with_functions
from ..prepare import FoldTransposed, Prepare
from ..prepare.compression import compress_weights, round_sources
from ..vendors import Namespace, Pattern
from ..vendors.namespaces import compilation_of, get_target_options, namespace
from ..vendors.quantised_groups import CONVERSIONS, Matched
from ..whole.table import expand, whole_ops
from .matches import Composites, Group, Searched, ops_in_pattern, ops_of_pattern, refuse_escape
from .search_forms import OwnCopies, spread_tuples, with_unique_names
from .trial import (
    Choice,
    Match,
    PlacedBy,
    Trial,
    answers_of,
    ask,
    first_in_order,
    refused_whole,
    trial_of,
    unknown_whole,
)
from .vendor_forms import Convertible, Places, VendorForms, is_in_other_layout

#: function attribute that names the compiler(s) of a function
COMPILER_ATTR = "compiler"


def compilers_of(func: relax.Function, default: Sequence[str] | None) -> list[str]:
    if default is not None:
        return list(default)
    value = func.attrs[COMPILER_ATTR] if func.attrs and COMPILER_ATTR in func.attrs else []
    return [str(value)] if isinstance(value, str) else [str(v) for v in value]


@dataclass(frozen=True)
class _Candidate:
    compiler: str
    #: of the pattern, "" for single calls
    name: str
    #: ``check(context)`` gives the attributes of a pattern's composite function, or None; for single calls
    #: ``check(variable, call)`` gives the group, or None
    check: Callable[..., Any]
    pattern: Any = None
    annotations: Mapping[str, Any] = field(default_factory=dict)


class Matcher:
    """The candidates for composite functions: compilers in order, each with its patterns before its single calls.

    Patterns with an operator that is not in ``ops`` are not tried. ``choice`` decides who gets a match, of all
    compilers that would take it. The compilation has the options and the answers so far, and gets those of single
    calls.
    """

    def __init__(
        self,
        compilers: Sequence[str],
        ops: set[str],
        choice: Choice = first_in_order,
        compilation: Compilation | None = None,
    ) -> None:
        self._compilers = list(compilers)
        self._compilation = compilation or Compilation()
        self._ops = ops
        self._choice = choice
        self._trials: ByIdentity[Trial | None] = ByIdentity()  # of single calls, by variable, that were lowered ahead
        self._writers: list[WritersBetween] = []  # of the functions that are searched
        self._function = ""  # that is searched
        #: matches and single calls that were refused, crashes, and calls that the choice gave to another
        self.facts: list[Fact] = []
        #: in order of priority
        self.candidates: list[_Candidate] = []
        for ns in map(namespace, compilers):
            for p in ns.patterns.values():
                check = self._pattern_check(ns, p)
                self.candidates.append(_Candidate(ns.name, p.name, check, p.pattern, p.annotations))
            if not ops.isdisjoint(ns.ops()):
                self.candidates.append(_Candidate(ns.name, "", self._call_check(ns)))

    def _call_check(self, ns: Namespace) -> Callable[[Any, Any], Group | None]:
        known = set(ns.ops())

        def check(var: Any, call: Any) -> Group | None:
            if not is_op_call(call) or (name := call.op.name) not in known or is_in_other_layout(ns, call):
                return None
            trial = self._trials.pop(var, None) or trial_of(ns, call, self._compilation)
            refusal = self._ask(ns, var.name, call, trial)
            if not self._settle(var, {var: call}, ns, name, "annotate", refusal):
                return None
            return Group([(var, call)], {"Composite": f"{ns.name}.{name}"})

        return check

    def _pattern_check(self, ns: Namespace, pattern: Pattern) -> Callable[[Any], dict[str, Any] | None]:
        def check(context: Any) -> dict[str, Any] | None:
            if any(is_in_other_layout(ns, value) for value in context.matched_bindings.values()):
                return None
            refusal = refuse_escape(context, pattern.outputs, self._writers)
            if refusal is not None:
                self._refuse(context, ns, pattern, refusal)
                return None
            match = {str(name): expr for name, expr in context.annotated_expr.items()}
            var = context.value_to_bound_var[context.matched_expr]
            found = Matched({**match, "root": context.matched_expr}, context.matched_bindings, context)
            refusal = ask_pattern(ns, pattern, found, self._compilation)
            if refusal is not None:
                self._refuse(context, ns, pattern, refusal)
            accepted = self._settle(var, context.matched_bindings, ns, pattern.name, "pattern", refusal)
            return {"Composite": f"{ns.name}.{pattern.name}"} if accepted else None

        return check

    def _refuse(self, context: Any, ns: Namespace, pattern: Pattern, refusal: Reject) -> None:
        names = tuple(sorted(var.name for var in context.matched_bindings))
        op = f"{ns.name}.{pattern.name}"
        self.facts.append(Fact(self._function, "", op, ns.name, MATCH, refusal.reason, names))

    def _settle(
        self, result: Any, bindings: Mapping[Any, Any], ns: Namespace, name: str, stage: str, refusal: Reject | None
    ) -> bool:
        """Whether the match of ``bindings`` is taken, of which ``result`` is the last; notes who else would take it."""
        if refusal is None:
            calls = {v.name: c for v, c in bindings.items() if isinstance(getattr(c, "op", None), tvm.ir.Op)}
            # The candidates before them were asked already, and refused.
            behind = self._compilers[self._compilers.index(ns.name) + 1 :]
            would = [o for o in behind if all(self._ask(namespace(o), n, c) is None for n, c in calls.items())]
            chosen = self._choice(Match(f"{ns.name}.{name}", result.name, calls, [ns.name, *would]))
            found = [(v, c) for v, c in bindings.items() if v.name in calls]
            if chosen != ns.name:
                self._note(found, ns, "placement", f"placed with {chosen!r}")
            for other in would:
                self._note(found, namespace(other), ALONE, "")
            return chosen == ns.name
        if isinstance(refusal, Crash):
            self._note([(result, bindings[result])], ns, stage, refusal.reason)
        return False

    def _ask(self, ns: Namespace, name: str, call: Any, trial: Trial | None = None) -> Reject | None:
        refusal = ask(ns, call, self._compilation, trial)
        if refusal is not None and not isinstance(refusal, Crash):
            self.facts.append(Fact(self._function, name, call.op.name, ns.name, ALONE, refusal.reason))
        return refusal

    def _note(self, calls: Iterable[tuple[Any, Any]], ns: Namespace, stage: str, reason: str) -> None:
        for var, call in calls:
            op = str(getattr(call.op, "name", ""))
            self.facts.append(Fact(self._function, var.name, op, ns.name, stage, reason))

    def skip_to_behind(self, name: str) -> None:
        """Keep the candidates after the pattern called ``name``; for any other name those after its compiler."""
        compiler, _, pattern = name.partition(".")
        found = [i for i, c in enumerate(self.candidates) if (c.compiler, c.name) == (compiler, pattern)]
        if pattern and found:
            del self.candidates[: found[0] + 1]
            return
        later = self._compilers[self._compilers.index(compiler) + 1 :] if compiler in self._compilers else []
        self.candidates = [c for c in self.candidates if c.compiler in later]

    def run(self, mod: tvm.IRModule, functions: Sequence[str]) -> tvm.IRModule:
        if not self.candidates:
            return mod
        wanted = [c for c in self.candidates if c.pattern is None or ops_of_pattern(c.pattern) <= self._ops]
        for is_pattern, group in groupby(wanted, key=lambda candidate: candidate.pattern is not None):
            mod = (self._matches if is_pattern else self._single_calls)(mod, functions, list(group))
        return mod

    def _matches(self, mod: tvm.IRModule, functions: Sequence[str], candidates: list[_Candidate]) -> tvm.IRModule:
        own = OwnCopies() if any(CONVERSIONS & ops_in_pattern(c.pattern) for c in candidates) else None
        if own is not None:
            mod = _changed(mod, functions, own.made)
        if not IN_PLACE.isdisjoint(self._ops):
            self._writers = [WritersBetween(mod[name]) for name in functions]
        searched = {name: Searched(mod[name]) for name in functions}
        for candidate in candidates:
            composites = Composites(mod)
            for name in functions:
                self._function = name
                groups = searched[name].matches(candidate.pattern, candidate.annotations, candidate.check)
                if groups:
                    func = composites.replace_in(mod[name], partial(lambda found, var, _value: found.get(var), groups))
                    mod = with_functions(mod, {mod.get_global_var(name): func})
                    searched[name] = Searched(func)
            mod = with_functions(mod, composites.functions) if composites.functions else mod
        return mod if own is None else _changed(mod, functions, own.joined)

    def _single_calls(self, mod: tvm.IRModule, functions: Sequence[str], candidates: list[_Candidate]) -> tvm.IRModule:
        mod = FoldTransposed(mod)  # of those that no pattern took
        for candidate in candidates:
            self._ask_about_all(namespace(candidate.compiler), [mod[name] for name in functions])
            composites = Composites(mod)
            hosts = {}
            for self._function in functions:
                host = mod.get_global_var(self._function)
                hosts[host] = composites.replace_in(mod[host], candidate.check)
            self._trials.clear()
            mod = with_functions(mod, {**hosts, **composites.functions})
        return mod

    def _ask_about_all(self, ns: Namespace, functions: Iterable[relax.Function]) -> None:
        """Lower single calls before the first verdict is needed, and ask their library about all of them at once."""
        if ns.functions.probe_many is None:
            return
        answers, graphs = self._compilation.answers, dict[Any, PortableGraph]()
        for var, call in (found for func in functions for found in op_calls(func)):
            trial = self._trials[var] = trial_of(ns, call, self._compilation)
            if trial is None or trial.question in answers or trial.question in graphs:
                continue
            if (graph := trial.graph()) is not None:
                graphs[trial.question] = graph
        answers.update(zip(graphs, answers_of(ns, list(graphs.values())), strict=False))


def _changed(
    mod: tvm.IRModule, functions: Sequence[str], change: Callable[[relax.Function], relax.Function]
) -> tvm.IRModule:
    return with_functions(mod, {mod.get_global_var(name): change(mod[name]) for name in functions})


def ask_pattern(
    ns: Namespace, pattern: Pattern, match: Mapping[str, Any], compilation: Compilation | None = None
) -> Reject | None:
    who = f"the check of pattern {ns.name}.{pattern.name}"
    own = Matched(match, getattr(match, "bindings", {}), getattr(match, "context", None))
    check, lower = pattern.check, pattern.lower
    if check is not None:
        refusal = verdict_of(who, lambda: as_reject(check(own), who), around=[own.bindings])
        if refusal is not None:
            return refusal
    if lower is None:
        return None
    return Trial(ns, pattern.name, [pattern.name], lambda g: lower(g, match), compilation or Compilation()).verdict()


def AnnotateExternalCompiler(
    compiler: str | Sequence[str] | None = None,
    *,
    prepare: bool = True,
    choice: Choice = first_in_order,
    own: OverwritableWeights | None = None,
) -> tvm.transform.Pass:
    """Pass: put every call that an external compiler takes into a composite function of that compiler.

    Each registered pattern and each single operator is tried in order of priority; calls that no compiler takes stay.
    Where several compilers would take a match, ``choice`` decides, and the ledger has all of them.
    Functions that belong to a compiler already are left alone.

    Parameters
    ----------
    compiler : str or sequence of str, optional
        Namespace, or several in order of priority. Without it each function's attribute ``compiler`` (a string or an
        array of strings) decides, and functions without that attribute stay with TVM.
    prepare : bool
        Run the common preparing passes and those of the namespaces first (`tvm_byoc_dnnl.prepare`).
    choice : callable
        ``choice(match) -> candidate``; by default the first one in order of priority (`first_in_order`).
    own : OverwritableWeights, optional
        Weights of the module that `Prepare` may overwrite.

    Returns
    -------
    tvm.transform.Pass

    Raises
    ------
    ValueError
        When the pass runs, if a compiler is not registered.
    """
    default = None if compiler is None else [compiler] if isinstance(compiler, str) else list(compiler)
    for name in default or ():
        namespace(name)  # an unknown name fails where it is written, not later
    return _Annotate(default, prepare, choice, own)


@tvm.transform.module_pass(opt_level=0, name="AnnotateExternalCompiler")
class _Annotate:
    def __init__(
        self, default: list[str] | None, prepare: bool, choice: Choice, own: OverwritableWeights | None
    ) -> None:
        self._default = default
        self._prepares = prepare
        self._choice = choice
        self._own = own

    def transform_module(self, mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        mod = expand(mod, lambda func: unknown_whole(func, self._compilers(func)))
        names: set[str] = set()
        mod, is_left = self._once(mod, names)
        while is_left:  # operators that are kept whole and that no compiler has taken
            mod, is_left = self._once(expand(mod, lambda f: whole_ops(f) if self._compilers(f) else ()), names)
        if isinstance(self._choice, PlacedBy):
            self._choice.check(names)
        return mod

    def _compilers(self, func: relax.Function) -> list[str]:
        return compilers_of(func, self._default)

    def _once(self, mod: tvm.IRModule, names: set[str]) -> tuple[tvm.IRModule, bool]:
        """The module with the composites that can be found in it; ``names`` gets those of its calls."""
        owned = {gv: f for gv, f in mod.functions.items() if codegen_of(f) or composite_of(f)}
        facts: list[Fact] = []
        if self._prepares:
            mod, facts = prepared(mod, self._default, self._own)
        else:
            # A result without readers would count as a reader of values that a pattern needs for itself.
            mod = relax.transform.DeadCodeElimination()(relax.transform.ConvertToDataflow(min_size=1)(mod))
        groups = _by_compilers(mod, self._default)
        is_left = False
        for compilers, functions in groups.items():
            compilation = compilation_of(mod, compilers)
            with stage("annotate"):
                ready, mod, found = _matched(mod, functions, compilers, compilation, self._choice)
            names.update(var.name for func in ready.values() for var, _ in op_calls(func))
            left = {gv.name_hint: mod[gv] for gv in functions if whole_ops(mod[gv])}
            facts += [*found, *refused_whole(left, compilers, compilation)]
            is_left = is_left or bool(left)
        mod = with_functions(mod, owned)  # the passes above rewrite every function
        facts += [Fact(compiler=name, stage=ASKED) for compilers in groups for name in compilers]
        return with_facts(mod, facts), is_left


def prepared(
    mod: tvm.IRModule, default: Sequence[str] | None, own: OverwritableWeights | None = None
) -> tuple[tvm.IRModule, list[Fact]]:
    """The module in the forms that patterns know, in dataflow blocks; and the passes of vendors that failed."""
    facts: list[Fact] = []
    groups = _by_compilers(mod, default)
    wanted = dict.fromkeys(c for compilers in groups for c in compilers)
    with stage("prepare"):
        transposed = bool(wanted) and all(map(_reads_transposed, wanted))
        canonical = Prepare(keep_transposed=transposed, own=own)
        forms, canonised = VendorForms(canonical, places_taken), canonical(mod)
        mod = canonised
        for name in wanted:
            functions = [gv.name_hint for compilers, of in groups.items() if name in compilers for gv in of]
            mod, lost = forms.of(namespace(name), mod, functions)
            facts += lost
            chosen = get_target_options(mod, name)
            mod = compress_weights(mod, chosen.get("weights", "float32"))
            mod = round_sources(mod, chosen.get("activations", "stored"))
    return mod if mod.same_as(canonised) else relax.transform.ConvertToDataflow(min_size=1)(mod), facts


def _matched(
    mod: tvm.IRModule,
    functions: Sequence[Any],
    compilers: Sequence[str],
    compilation: Compilation,
    choice: Choice = first_in_order,
) -> tuple[dict[Any, relax.Function], tvm.IRModule, list[Fact]]:
    """Functions as they are searched; the module with the composites that were found in them; what was decided."""
    known = {op for name in compilers for op in namespace(name).ops()}
    ready = {gv: with_unique_names(spread_tuples(mod[gv], known)) for gv in functions}
    # The attribute tells PartitionGraph which compilers it may ask next.
    ready = {gv: func.with_attr(COMPILER_ATTR, tvm_ffi.Array(compilers)) for gv, func in ready.items()}
    ops = {op for func in ready.values() for op in ops_of(func)}
    matcher = Matcher(compilers, ops, choice, compilation)
    made = matcher.run(with_functions(mod, ready), [gv.name_hint for gv in functions])
    return ready, made, matcher.facts


def places_taken(
    ns: Namespace, mod: tvm.IRModule, functions: Sequence[str], calls: Convertible
) -> tuple[Places, dict[str, relax.Function], list[Fact]]:
    """Which calls a namespace alone would take, see `laid_out`; the functions it was asked about; what it refused."""
    searched = [mod.get_global_var(name) for name in functions]
    ready, made, facts = _matched(mod, searched, [ns.name], compilation_of(mod, [ns.name]))
    asked = {gv.name_hint: func for gv, func in ready.items()}
    left = {name: {var.name for var, _ in op_calls(made[name])} for name in asked}
    places = {
        name: {i for i, var in enumerate(calls.variables(func)) if var.name not in left[name]}
        for name, func in asked.items()
    }
    return places, asked, facts


def _reads_transposed(compiler: str) -> bool:
    """Whether a compiler has a pattern for a product with transposed weights, and reads them as they are stored."""
    patterns = namespace(compiler).patterns.values()
    return any(ops_of_pattern(p.pattern) == {"relax.matmul", "relax.permute_dims"} for p in patterns)


def _by_compilers(mod: tvm.IRModule, default: Sequence[str] | None) -> dict[tuple[str, ...], list[Any]]:
    groups: dict[tuple[str, ...], list[Any]] = {}
    for gv, func in sorted(mod.functions.items(), key=lambda item: item[0].name_hint):
        if is_host_function(func) and (compilers := compilers_of(func, default)):
            groups.setdefault(tuple(compilers), []).append(gv)
    return groups
