"""Steps of a vendor around the annotation, without which a build goes on: preparing passes, many answers at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tvm

from ...core.errors import NativeLibraryError, VendorError
from ...core.ledger import Fact
from ...core.vendor_code import run_pass
from ...core.verdict import Reject
from ...graph.graph import PortableGraph
from ...ir.hidden import without_hidden
from ...regions.failure import describe
from ...vendors.namespace import Namespace, told
from .layout import Convertible, Places, laid_out, layouts_of_pictures
from .trial import may_take

_logger = logging.getLogger("tvm_byoc_dnnl")


class VendorForms:
    """The forms in which namespaces want to see a model, one after the other, in order of priority.

    Parameters
    ----------
    canonical : Pass
        What makes the common form.
    taken : callable
        ``taken(namespace, module, functions, convertible)``: see `laid_out`.
    """

    def __init__(self, canonical: tvm.transform.Pass, taken: Callable[..., Places]) -> None:
        self._canonical = canonical
        self._taken = taken
        self._settled: set[str] = set()  # layouts of those so far

    def of(self, ns: Namespace, mod: tvm.IRModule, functions: Sequence[str]) -> tuple[tvm.IRModule, list[Fact]]:
        """The module behind the preparing passes of a namespace, and in its layout.

        They see what it may take in these functions; one that fails is left out, and noted.
        """
        failures: list[Fact] = []
        for step in [*(partial(self._prepared, ns, p) for p in ns.prepare), partial(self._in_layout, ns)]:
            try:
                mod = step(mod, functions)
            except NativeLibraryError:
                raise
            except Exception as error:
                reason = f"{describe(error)}; the model goes on without this pass"
                failures.append(Fact("the module", "all calls", "prepare", ns.name, "prepare", reason))
        return mod, failures

    def _prepared(self, ns: Namespace, make_pass: Any, mod: tvm.IRModule, functions: Sequence[str]) -> tvm.IRModule:
        ops = may_take(ns)

        def run(seen: tvm.IRModule) -> tvm.IRModule:
            return run_pass(make_pass, seen, f"prepare= of {ns.name!r}")

        return without_hidden(mod, map(mod.get_global_var, functions), lambda _, call: call.op.name in ops, run)

    def _in_layout(self, ns: Namespace, mod: tvm.IRModule, functions: Sequence[str]) -> tvm.IRModule:
        if ns.layouts is None:
            return mod
        calls = Convertible(may_take(ns), ns.layouts, self._settled)
        self._settled.update(layouts_of_pictures(ns.layouts[0]))
        hosts = map(mod.get_global_var, functions)
        made = laid_out(mod, hosts, ns.layouts, calls, lambda asked: self._taken(ns, asked, functions, calls))
        return mod if made is mod else self._canonical(made)  # folds permutations of constants, and two that cancel


def answers_of(ns: Namespace, graphs: Sequence[PortableGraph]) -> Sequence[Reject | None]:
    """What ``probe_many`` of a namespace says of graphs; nothing where it fails, and each is asked about by itself."""
    try:
        answers = told(ns, "probe_many", graphs)
        if len(answers) == len(graphs) and all(isinstance(answer, (Reject, type(None))) for answer in answers):
            return answers
        raise VendorError(f"probe_many of {ns.name!r} returned {answers!r}; expected an answer to {len(graphs)} graphs")
    except NativeLibraryError:
        raise
    except Exception as error:
        _logger.warning("%s; the answers are asked for one by one", describe(error))
        return ()
