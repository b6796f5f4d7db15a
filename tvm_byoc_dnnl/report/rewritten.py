"""Patterns that match a model as it was imported, and no longer as it was prepared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import tvm

from ..calls.model import CallReport
from ..ir.relax_utils import composite_of, is_host_function, ops_of
from ..partitioning.annotate.passes import AnnotateExternalCompiler
from ..prepare import Prepare
from ..vendors.namespace import Namespace
from .formats import count


def rewritten_patterns(
    mod: tvm.IRModule, namespaces: Sequence[Namespace], calls: Sequence[CallReport]
) -> Iterator[str]:
    """A sentence for each pattern that lost all of its matches to the preparing passes.

    Parameters
    ----------
    mod : IRModule
        The module before it was prepared.
    namespaces : sequence of Namespace
        Who was asked.
    calls : sequence of CallReport
        The calls of the partitioned module.
    """
    # Without a region the module stays as it was imported.
    is_prepared = any(call.region for call in calls)
    gone = _ops(mod) - ({call.op for call in calls} if is_prepared else _ops(Prepare()(mod)))
    matched = {call.pattern for call in calls}
    lost = {
        f"{ns.name}.{pattern.name}": sorted(gone & set(re.findall(r"relax\.[\w.]+", str(pattern.pattern))))
        for ns in namespaces
        for pattern in ns.patterns.values()
        if f"{ns.name}.{pattern.name}" not in matched
    }
    lost = {name: ops for name, ops in lost.items() if ops}
    if not lost:
        return
    annotated = AnnotateExternalCompiler([ns.name for ns in namespaces], prepare=False)(mod)
    found = [composite_of(f) for f in annotated.functions.values()]
    for name, ops in lost.items():
        if name in found:
            places = count(found.count(name), "place")
            yield (
                f"{name} matches {places} of the model as imported and none as prepared, which rewrites "
                f"{', '.join(ops)}: write the pattern for the prepared form, or give prepare=False to partition and "
                "compile."
            )


def _ops(mod: tvm.IRModule) -> set[str]:
    return {op for f in mod.functions.values() if is_host_function(f) for op in ops_of(f)}
