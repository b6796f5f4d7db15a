"""The cost of a workload, and of what a library can choose from: looked up, modelled by a vendor, or measured."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import Shape

from ..core import _native
from ..core.compilation import compiling
from ..core.files import write_text
from ..core.tensor_info import TensorInfo, random_arrays
from ..core.verdict import describe
from ..graph.cost import shape_of, size_of, usual_sizes
from ..graph.graph import PortableGraph
from ..ir.relax_utils import codegen_of
from ..ir.tvm_compat import dtype_of
from ..pipeline import PIPELINE
from ..runtime.runner import Runner
from ..vendors.codegen import Times
from ..vendors.namespace import Namespace, told
from ..vendors.namespaces import HOST, compilers, get_target_options, namespace
from ..vendors.portable import PortableCodegen, lower_region
from .database import Database, Timing, Workload, measure, thread_count

_ROUNDS = 15


def measure_candidates(mod: tvm.IRModule, database: Database, deadline: float, tell: Callable[[str], None]) -> int:
    """Measure what a database does not know of a partitioned module's regions; the number of new workloads."""
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


def known_times(mod: tvm.IRModule, database: Database | None) -> Times | None:
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
    """Measure this machine for each library, into files of the user's cache; yields them, and what they say."""
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
    if not graph.symbols <= sizes.keys():
        return None
    return graph.specialize({name: sizes[name] for name in graph.symbols}) if graph.symbols else graph


_logger = logging.getLogger("tvm_byoc_dnnl")

_EACH_S = 2.0  # for the measurement of one workload


@dataclass
class Costs:
    """Seconds of workloads, looked up in a database; those that are missing are measured, if ``measures``."""

    database: Database
    measures: bool
    target: Any = "llvm"
    tell: Callable[[str], None] = lambda line: None
    measured: int = 0
    has_models: bool = False
    longest_s: float = 0.0
    _known: dict[tuple[str, str], float | None] = field(default_factory=dict)
    _host_s: float = 0.0  # the least time of a FLOP in calls that stay with TVM; 0: none was timed

    def of(self, workload: Workload, limit: float = math.inf) -> float | None:
        """``None`` if unknown, or if calls of TVM's would take longer than ``limit`` at the best rate before."""
        identity = (workload.compiler, workload.key)
        if identity not in self._known:
            is_hopeless = workload.compiler == HOST and self._host_s * workload.flops > limit
            if is_hopeless and self.database.time_of(workload) is None:
                return None
            self._known[identity] = self._asked(workload)
        return self._known[identity]

    def _asked(self, workload: Workload) -> float | None:
        ns = None if workload.compiler == HOST else namespace(workload.compiler)
        if ns is not None and ns.cost is not None:
            self.has_models = True
            seconds = self._modelled(workload, ns)
            if seconds is not None:
                return seconds
        timing = self.database.time_of(workload)
        if timing is None and self.measures:
            timing = self._measure(workload)
        if timing is not None and workload.compiler == HOST and workload.flops:
            self._host_s = min(self._host_s or math.inf, timing.seconds / workload.flops)
        return None if timing is None else timing.seconds

    def _modelled(self, workload: Workload, ns: Namespace) -> float | None:
        try:
            seconds = told(ns, "cost", workload.as_model())
        except Exception as error:
            _logger.warning("%s; %s is measured", describe(error), workload.summary)
            return None
        return None if seconds is None else float(seconds)

    def _measure(self, workload: Workload) -> Timing | None:
        self.tell(f"measuring {workload.compiler}: {workload.summary}")
        started = time.perf_counter()
        try:
            timing = measure(callable_of(workload.as_model(), self.target), _EACH_S)
        except Exception as error:  # what cannot be compiled alone is no candidate; the model itself falls back
            _logger.info("not measured: %s: %s: %s", workload.compiler, workload.summary, describe(error))
            return None
        self.longest_s = max(self.longest_s, time.perf_counter() - started)
        self.measured += 1
        self.database.note_time(workload, timing)
        return timing


def callable_of(mod: tvm.IRModule, target: Any, choices: Database | None = None) -> Callable[[], object]:
    """One call of a partitioned module with random inputs, open dims with the sizes that it is optimised for."""
    sizes = usual_sizes(mod)
    arguments = [_argument(i, p.ty, sizes) for i, p in enumerate(mod["main"].params)]
    with compiling():
        pipeline = relax.get_pipeline(PIPELINE, times=known_times(mod, choices))
        runner = Runner(tvm.compile(mod, target=target, relax_pipeline=pipeline))
    return lambda: runner.run_tvm(*arguments)


def _argument(position: int, ty: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(ty, relax.ShapeType):
        return Shape([size_of(d, sizes) for d in ty.values])
    info = TensorInfo(f"input {position}", dtype_of(ty), shape_of(ty, sizes))
    (array,) = random_arrays([info], position, {})
    return tvm.runtime.tensor(array)
