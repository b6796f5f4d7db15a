"""The cost of a workload: from the database, from the vendor's own model, or measured now."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import Shape

from ..core.compilation import compiling, knowing
from ..core.tensor_info import TensorInfo, random_arrays
from ..ir.tvm_compat import dtype_of
from ..pipeline import PIPELINE
from ..regions.cost import shape_of, size_of, usual_sizes
from ..regions.failure import describe
from ..runtime.runner import Runner
from ..vendors.namespace import Namespace, told
from ..vendors.namespaces import HOST, namespace
from .candidates import known_times
from .database import Database, Timing, measure
from .workload import Workload

_logger = logging.getLogger("tvm_byoc_dnnl")

_EACH_S = 2.0  # for the measurement of one workload


@dataclass
class Costs:
    """Seconds of workloads.

    Parameters
    ----------
    database : Database
        Where times are looked up and kept.
    measures : bool
        Whether a time that is missing is measured.
    target : str or Target
        TVM's target for the calls that stay with TVM.
    tell : callable
        Called with a line about each measurement.

    Attributes
    ----------
    measured : int
        Workloads that were measured.
    has_models : bool
        Whether a vendor's own model was asked.
    longest_s : float
        Seconds of the longest measurement, with the compilation before it.
    """

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
        """Seconds of one call, ``None`` if they are not known and cannot be measured.

        TVM may need many seconds for one call of a whole network. So calls that stay with TVM are not measured where
        they would take longer than ``limit`` at the best rate, in FLOP/s, of such calls before.
        """
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
        """The seconds that a vendor's own model says; what it cannot say is measured."""
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
    with compiling(), knowing(times=known_times(mod, choices)):
        runner = Runner(tvm.compile(mod, target=target, relax_pipeline=PIPELINE))
    return lambda: runner.run_tvm(*arguments)


def _argument(position: int, ty: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(ty, relax.ShapeType):
        return Shape([size_of(d, sizes) for d in ty.values])
    info = TensorInfo(f"input {position}", dtype_of(ty), shape_of(ty, sizes))
    (array,) = random_arrays([info], position, {})
    return tvm.runtime.tensor(array)
