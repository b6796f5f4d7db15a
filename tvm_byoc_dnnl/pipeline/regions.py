"""The stage that builds the regions, each namespace by its route; a region that fails goes back to TVM.

And the form of a model in which TVM computes them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from ..core.compilation import Fact, raise_failures, read_log, with_facts
from ..core.errors import NativeLibraryError, UnsupportedError
from ..core.verdict import BrokenRegions, Failure
from ..ir.functions import flatten_region, inline_functions
from ..ir.relax_utils import codegen_of, free_name, global_var, is_host_function, with_functions
from ..ir.walker import Substitute
from ..partitioning import partition_again
from ..vendors import Namespace
from ..vendors.codegen import Terms, Times
from ..vendors.codegen import attempt as route_attempt
from ..vendors.namespaces import find_namespace, get_target_options
from ..vendors.portable import install_codegen
from .metadata import FALLBACK_FUNCTIONS

_logger = logging.getLogger("tvm_byoc_dnnl")


def build_regions(
    mod: tvm.IRModule, *, strict: bool = False, times: Times | None = None
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """The module with the regions that can be built as functions, and the same one with these regions built.

    One namespace after the other, by their names. What cannot be built is partitioned again around the calls that are
    to blame, and then all are built again: others may have got what it lost. With ``strict``, `UnsupportedError` lists
    these calls instead. A region that cannot be source as asked becomes a module, with a note in the log.
    `NativeLibraryError` if a library is missing: that is no fault of a region.
    """
    notes: dict[str, dict[str, str]] = {}
    mod, built = _built(mod, notes, times, strict=strict)
    return mod, with_facts(built, [fact for name, refusals in notes.items() for fact in _facts(name, refusals, strict)])


def settle_regions(mod: tvm.IRModule, *, dry_run: bool = False) -> tvm.IRModule:
    """The regions that `build_regions` would build in the end, as regions; calls that cannot be built went back before.

    A namespace without its library keeps its regions, and in a ``dry_run`` so does one with a compiler of its own.
    """
    with tvm.target.Target("llvm"):
        return _built(mod, {}, needs_all=False, dry_run=dry_run)[0]


def _built(
    mod: tvm.IRModule,
    notes: dict[str, dict[str, str]],
    times: Times | None = None,
    *,
    strict: bool = False,
    needs_all: bool = True,
    dry_run: bool = False,
) -> tuple[tvm.IRModule, tvm.IRModule]:
    """See `build_regions`; ``notes`` gets what is no source. Without ``needs_all``, regions without a library stay."""
    built, done = mod, set[str]()
    while owners := {codegen_of(f) for f in built.functions.values()} - done - {""}:
        name = min(owners)
        ns, notes[name] = find_namespace(name) or Namespace(name), {}
        done.add(name)
        if dry_run and ns.route.compiles:
            continue
        try:
            install_codegen(ns)
            options = _options(mod, ns)
            built = ns.route.build(built, options, Terms(times, notes[name]))
        except NativeLibraryError:
            if needs_all:
                raise
        except BrokenRegions as broken:
            built = mod = _without(mod, ns, broken)
            done.clear()  # other compilers may have got calls that this one lost
            notes.clear()
            if strict:
                raise_failures(read_log(mod))
    return mod, built


def _options(mod: tvm.IRModule, ns: Namespace) -> dict[str, Any]:
    return get_target_options(mod, ns.name) if find_namespace(ns.name) else {}


def _without(mod: tvm.IRModule, ns: Namespace, broken: BrokenRegions) -> tvm.IRModule:
    """The module without regions, or parts of regions, that cannot be built, and with the reasons in its log."""
    regions = [gv for gv in broken.failures if isinstance(mod[gv], relax.Function)]
    for gv, failure in broken.failures.items():
        if gv not in regions:  # TVM's lowering takes a PrimFunc as it is
            mod = with_functions(mod, {gv: mod[gv].without_attr("Codegen")})
            name = gv.name_hint
            mod = with_facts(mod, [Fact(name, name, "tirx.PrimFunc", ns.name, failure.stage, failure.reason)])

    def attempt(other: Namespace, region: relax.Function) -> Failure | None:
        if other.name != ns.name:
            return route_attempt(other.route, region, _options(mod, other))
        return broken.together or route_attempt(ns.route, region, _options(mod, ns), fully=True)

    return partition_again(mod, regions, attempt) if regions else mod


def _facts(name: str, refusals: Mapping[str, str], strict: bool) -> list[Fact]:
    """Notes that regions are modules although source was asked for; a region stands for its calls."""
    if refusals and strict:
        lines = "".join(f"\n  {symbol}: {reason}" for symbol, reason in refusals.items())
        raise UnsupportedError(
            f"{len(refusals)} region(s) cannot be source and strict=True forbids to make modules of them:{lines}"
        )
    for symbol, reason in refusals.items():
        _logger.warning("%s is a module, not source as asked: %s", symbol, reason)
    return [
        Fact(symbol, symbol, "region", name, "output", f"is a module, not source: {reason}")
        for symbol, reason in refusals.items()
    ]


def with_host_form(mod: tvm.IRModule, fallback: bool | str) -> tvm.IRModule:
    """The partitioned module with a second form of ``main`` for when a device fails, if vendors' regions are called.

        main           = f(region_0(x))       on the device
        byoc_fallback  = f(calls of region_0)     by TVM, from the same constants

    The constants lie in a library once, as data that is read when it is needed.
    """
    bodies = {
        gv: flatten_region(f).without_attr("Codegen")
        for gv, f in mod.functions.items()
        if (ns := find_namespace(codegen_of(f))) and ns.route.compiles
    }
    hosts = {gv: f for gv, f in mod.functions.items() if is_host_function(f) and gv not in bodies}
    read = {gv: set(relax.analysis.all_global_vars(f)) for gv, f in hosts.items()}
    reaching = {gv for gv, others in read.items() if others & bodies.keys()}
    while more := {gv for gv, others in read.items() if others & reaching} - reaching:
        reaching |= more
    main = next((gv for gv in reaching if gv.name_hint == "main"), None)
    if main is None:
        return mod
    taken, form = {gv.name_hint for gv in mod.get_global_vars()}, FALLBACK_FUNCTIONS[fallback]
    copies, functions = {}, {}
    for gv in sorted(reaching, key=lambda gv: gv.name_hint):
        name = form if gv is main else free_name(f"{gv.name_hint}_host", taken, 0)
        func = relax.utils.copy_with_new_vars(inline_functions(mod[gv], bodies))
        functions[gv] = func.with_attr("global_symbol", form) if gv is main else func.without_attr("global_symbol")
        copies[gv] = global_var(name, functions[gv])
    renamed = Substitute(copies)
    made = tvm.IRModule({copies[gv]: renamed.function(f) for gv, f in functions.items()})
    passes = [relax.transform.ConvertToDataflow(min_size=1), relax.transform.CanonicalizeBindings()]
    tidy = tvm.transform.Sequential(passes)(made)
    return with_functions(mod, {copies[gv]: tidy[copies[gv].name_hint] for gv in functions})
