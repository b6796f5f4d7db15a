"""What a library can choose from for one operation, such as Winograd's algorithm or another layout: measured times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tvm

from ..core import _native
from ..core.files import write_text
from ..graph.graph import PortableGraph
from ..ir.relax_utils import codegen_of
from ..regions.cost import usual_sizes
from ..vendors.namespaces import compilers, get_target_options, namespace
from ..vendors.portable import PortableCodegen, lower_region
from .database import Database, thread_count

_ROUNDS = 15


def measure_candidates(mod: tvm.IRModule, database: Database, deadline: float, tell: Callable[[str], None]) -> int:
    """Measure the candidates in the regions of a partitioned module; returns the number of new workloads.

    Parameters
    ----------
    mod : IRModule
        The partitioned module.
    database : Database
        Where the times are kept; what it knows is not measured again.
    deadline : float
        By `time.perf_counter`: no further region is measured after it.
    tell : callable
        Called with a line about each region.
    """
    count, sizes = 0, usual_sizes(mod)
    for codegen, measured, graph in _graphs(mod):
        static = _static(graph, sizes)
        if static is None or time.perf_counter() > deadline:
            continue
        named = measured(static, 0)
        unknown = named["workloads"].keys() - database.candidates_of(codegen.compiler, named).keys()
        if not unknown:
            continue
        tell(f"measuring what {codegen.compiler} can choose from in {graph.name}: {len(unknown)} operations")
        times = measured(static, _ROUNDS)
        new = {name: found for name, found in times["workloads"].items() if name in unknown}
        database.note_candidates(codegen.compiler, {**times, "workloads": new})
        count += len(new)
    return count


def known_times(
    mod: tvm.IRModule, database: Database | None
) -> Callable[[PortableCodegen, PortableGraph], dict[str, Any] | None] | None:
    """How a compilation of a model looks up the times in a database (`Compilation.times`), if that has any."""
    if database is None or not database.has_candidates:
        return None
    sizes = usual_sizes(mod)

    def look_up(codegen: PortableCodegen, graph: PortableGraph) -> dict[str, Any] | None:
        static = _static(graph, sizes)
        if static is None or codegen.measure_candidates is None:
            return None
        named = codegen.measure_candidates(static, 0)
        found = database.candidates_of(codegen.compiler, named)
        return {"setting": named["setting"], "workloads": found} if found else None

    return look_up


def measure_machine(tell: Callable[[str], None]) -> Iterator[str]:
    """Measure this machine for each library that chooses by a description of it: with 1, 2 and all threads.

    The descriptions are files in the user's cache, which processes that start later read. Yields the file of each
    library with what it says of itself.
    """
    threads = sorted({1, min(2, thread_count()), thread_count()})
    for name in compilers():
        codegen = namespace(name).codegen
        if not isinstance(codegen, PortableCodegen) or codegen.measure_machine is None:
            continue
        path = Path(_native.engine_info(name)["machine"]["file"])
        described, found = codegen.measure_machine(threads, tell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(described, indent=1) + "\n")
        yield f"{path}\n{found}"


def _graphs(mod: tvm.IRModule) -> Iterator[tuple[PortableCodegen, Callable[..., Mapping[str, Any]], PortableGraph]]:
    """The graphs of the regions whose library can choose, each with its codegen and the measurement."""
    for gv, func in mod.functions.items():
        codegen = namespace(codegen_of(func)).codegen if codegen_of(func) else None
        if isinstance(codegen, PortableCodegen) and codegen.measure_candidates is not None:
            options = get_target_options(mod, codegen.compiler)
            graph = lower_region(namespace(codegen.compiler), func, gv.name_hint, options=options)
            yield codegen, codegen.measure_candidates, graph


def _static(graph: PortableGraph, sizes: Mapping[str, int]) -> PortableGraph | None:
    """A graph with the usual sizes, if they are known."""
    if not graph.symbols <= sizes.keys():
        return None
    return graph.specialize({name: sizes[name] for name in graph.symbols}) if graph.symbols else graph
