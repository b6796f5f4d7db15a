"""A second form of a model in which TVM computes what vendors' compilers have got, for when a device fails.

    main           = f(region_0(x))       on the device
    byoc_fallback  = f(calls of region_0)     by TVM, from the same constants

The constants lie in a library once, as data that is read when it is needed.
"""

from __future__ import annotations

import tvm
from tvm import relax

from ..ir.functions import flatten_region, inline_functions
from ..ir.relax_utils import codegen_of, free_name, global_var, is_host_function, with_functions
from ..ir.walker import Substitute
from ..vendors.namespaces import find_namespace

#: how long a model stays with TVM after a failure → the name of its second form
FALLBACK_FUNCTIONS = {True: "byoc_fallback", "once": "byoc_fallback_once"}


def with_host_form(mod: tvm.IRModule, fallback: bool | str) -> tvm.IRModule:
    """The partitioned module with a second form of ``main``, if that calls regions of vendors' compilers."""
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
