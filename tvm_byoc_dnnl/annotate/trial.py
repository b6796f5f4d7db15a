"""Trial lowering: the default predicate is "the lowering does not refuse, and the library can do it"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from ..lower.builder import GraphBuilder
from ..namespace import Namespace, Predicate
from ..namespaces import compilers, namespace
from ..regions.failure import describe
from ..verdict import Crash, Reject, as_reject

__all__ = ["ask", "get_annotate_compiler", "trial_call", "trial_lowering"]


def trial_lowering(
    ns: Namespace,
    name: str,
    source: list[str],
    lower: Callable[[GraphBuilder], Any],
    accepted: set[tuple[str, str]] | None = None,
) -> Reject | None:
    """Run ``lower`` on a fresh builder and ask the namespace's library about the result.

    ``accepted`` has the graphs that were accepted before, each with its namespace, and gets those that are accepted
    now: most calls of a large model are equal to one before them.
    """
    g = GraphBuilder("trial")
    g.begin(source)
    try:
        out = lower(g)
        if isinstance(out, Reject):
            return out
        graph = g.finish(out)
        question = (ns.name, graph.to_json(anonymous=True))
        if accepted is not None and question in accepted:
            return None
        if ns.optimize is not None:  # as the region of just this call will be
            graph = ns.optimize(graph)
        refusal = ns.probe(graph) if ns.probe is not None else None
        if accepted is not None and refusal is None:
            accepted.add(question)
        return refusal
    except Reject as refusal:
        return refusal
    except Exception as error:  # a vendor's bug must not cost the user the build
        return Crash(f"the lowering of {name} in {ns.name!r} failed: {describe(error)}")


def trial_call(ns: Namespace, call: Any, accepted: set[tuple[str, str]] | None = None) -> Reject | None:
    """Whether ``ns`` can lower this one call (and its library run it); ``accepted`` as for `trial_lowering`."""
    name = call.op.name
    return trial_lowering(ns, name, [name], lambda g: ns.lowerings[name](g, call), accepted)


def _trial_predicate(ns: Namespace, op: str) -> Predicate:
    """The default predicate of ``op``, in the form ``predicate(attrs, args)``."""

    def predicate(attrs: Any, args: Sequence[Any]) -> bool | Reject:
        call = relax.BlockBuilder().normalize(relax.Call(tvm.ir.Op.get(op), list(args), attrs))
        refusal = trial_call(ns, call)
        return True if refusal is None else refusal  # a Reject is falsy

    return predicate


def ask(ns: Namespace, call: Any, accepted: set[tuple[str, str]] | None = None) -> Reject | None:
    """The verdict of a namespace on one call, by whichever predicate it has; ``accepted`` as for `trial_lowering`."""
    op = call.op.name
    predicate = ns.predicates.get(op)
    if predicate is None:
        return trial_call(ns, call, accepted) if op in ns.lowerings else ns.no_predicate(op)
    try:
        return as_reject(predicate(call.attrs, list(call.args)), f"the predicate of {ns.name!r} for {op}")
    except Reject as refusal:
        return refusal
    except Exception as error:
        return Crash(f"the predicate of {ns.name!r} for {op} failed: {describe(error)}")


def get_annotate_compiler(compiler: str, op: str) -> Predicate:
    """The predicate of ``compiler`` for ``op``.

    Where none was registered by hand but the namespace can lower ``op``, the predicate is "the lowering does not
    refuse, and the library has an implementation". An unknown compiler or op gives a predicate that rejects with
    the reason.
    """
    if compiler not in compilers():
        return lambda attrs, args: Reject(f"no compiler {compiler!r} is registered")
    ns = namespace(compiler)
    if op in ns.predicates:
        return ns.predicates[op]
    if op in ns.lowerings:
        return _trial_predicate(ns, op)
    return lambda attrs, args: ns.no_predicate(op)
