"""The codegens, guarded: a region whose code cannot be generated goes back, and the build goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax

from ..codegen.extern import (
    OUTPUTS,
    check_output,
    collect_refusals,
    install_codegen,
    source_builds,
    source_namespaces,
)
from ..codegen.source import check_sources
from ..errors import NativeLibraryError, UnsupportedError
from ..log import Entry, raise_failures, read_log, with_entries
from ..partitioning.attempt import generate_code
from ..partitioning.passes import partition_module
from ..regions.dissolve import dissolve_regions
from ..regions.failure import Failure
from ..regions.policy import RegionPolicy
from ..registry import Namespace, compilers, namespace
from ..relax_utils import codegen_of
from ..target_options import get_target_options
from .external import run_external_codegens

__all__ = ["RunCodegens"]

_logger = logging.getLogger(__name__)


def RunCodegens(*, strict: bool = False) -> tvm.transform.Pass:
    """Pass: the codegen of every region, as by TVM's RunCodegen, with fall-back.

    When it fails, each region's codegen is run by itself, and those that fail are partitioned again around the calls
    that are to blame. A region that cannot be source as asked becomes a module, with a note in the log.

    Parameters
    ----------
    strict : bool
        Raise instead.

    Raises
    ------
    UnsupportedError
        When the pass runs, with ``strict``: lists every call that failed, with the reason.
    NativeLibraryError
        When the pass runs, if a library is missing: that is no fault of a region.
    """

    @tvm.transform.module_pass(opt_level=0, name="RunCodegens")
    def run(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        for compiler in sorted(_owners(mod)):
            if compiler in compilers():
                install_codegen(namespace(compiler))
        while True:
            options = {name: get_target_options(mod, name) for name in _owners(mod) if name in compilers()}
            for given in options.values():
                check_output(given.get("output", OUTPUTS[0]))  # the user's mistake, no region's
            try:
                with collect_refusals() as refusals:
                    built = run_external_codegens(mod, options)
                check_sources(
                    list(built.attrs["external_mods"]) if "external_mods" in (built.attrs or {}) else [],
                    source_builds(source_namespaces(mod)),
                )
            except NativeLibraryError:
                raise
            except Exception as error:
                mod = _without_failures(mod, error, options)
                if strict:
                    raise_failures(read_log(mod))
            else:
                return with_entries(built, _entries(mod, refusals, strict))

    return run


def _entries(mod: tvm.IRModule, refusals: Mapping[str, str], strict: bool) -> list[Entry]:
    """Notes that regions are modules although source was asked for; a region stands for its calls."""
    if refusals and strict:
        lines = "".join(f"\n  {symbol}: {reason}" for symbol, reason in refusals.items())
        raise UnsupportedError(
            f"{len(refusals)} region(s) cannot be source and strict=True forbids to make modules of them:{lines}"
        )
    for symbol, reason in refusals.items():
        _logger.warning("%s is a module, not source as asked: %s", symbol, reason)
    owners = {str(f.attrs["global_symbol"]): codegen_of(f) for f in mod.functions.values() if codegen_of(f)}
    return [
        Entry(symbol, symbol, "region", owners[symbol], "output", f"is a module, not source: {reason}")
        for symbol, reason in refusals.items()
    ]


def _owners(mod: tvm.IRModule) -> set[str]:
    return {codegen_of(f) for f in mod.functions.values()} - {""}


def _without_failures(mod: tvm.IRModule, error: Exception, options: Mapping[str, Any]) -> tvm.IRModule:
    """The module without regions, or parts of regions, whose code cannot be generated."""
    regions = {gv: f for gv, f in mod.functions.items() if codegen_of(f) and isinstance(f, relax.Function)}
    spaces = {name: namespace(name) if name in compilers() else Namespace(name) for name in _owners(mod)}

    def generate(ns: Namespace, functions: Sequence[relax.Function]) -> Failure | None:
        with collect_refusals():
            return generate_code(ns, functions, options.get(ns.name, {}))

    failing = [gv for gv, f in regions.items() if generate(spaces[codegen_of(f)], [f])]
    lost: dict[str, Failure] = {}
    if not failing:  # each works by itself: give up the compilers that cannot do all of theirs at once
        for name, ns in spaces.items():
            own = [f for f in regions.values() if codegen_of(f) == name]
            failure = generate(ns, own)
            if failure is not None:
                lost[name] = Failure(failure.stage, f"all regions of the module together: {failure.reason}")
        failing = [gv for gv, f in regions.items() if codegen_of(f) in lost]
    if not failing:
        raise error

    def attempt(ns: Namespace, func: relax.Function) -> Failure | None:
        return lost.get(ns.name) or generate(ns, [func])

    return partition_module(dissolve_regions(mod, failing), attempt, RegionPolicy())
