"""profile: how the time of a compiled model is spent, primitive by primitive, TVM's own calls included."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..core import _native
from ..core._native import limited
from ..core.compilation import knowing
from ..core.errors import InputError, is_number, short
from ..core.files import write_text
from ..core.machine import QUIET, Neighbours
from ..partitioning.report_data import ReportData, Totals
from ..pipeline.metadata import read_account, read_kernels
from ..runtime.base import Company
from ..runtime.runner import Runner
from ..vendors.blobs import Opening
from ..vendors.namespaces import HOST
from .html import render_html
from .measured import Instrument, Names, Roof, StepTime, runner_of, tensors_of
from .measured import roof as measure_roof
from .text import Shown, count


@dataclass(repr=False)
class Profile(Shown):
    """Times of one model: medians over the repetitions, in seconds.

    Attributes
    ----------
    steps : list of StepTime
        In order of execution.
    total : float
        One call, measured without any instrument.
    repeat : int
        Number of repetitions.
    others : float
        Share of the usable cores that other processes took meanwhile; above 0.1 the times say little.
    company : Company
        Calls that were late, and calls on fewer threads, since the model was loaded.
    plans : dict
        Of each region with open sizes, since it was loaded: ``plans`` and ``bytes`` that it keeps, calls of a size seen
        before (``hits``), plans ``made`` and ``dropped``, the ``seconds`` spent making them, and the calls of a new
        batch that ran the plans of smaller ones (``parts``).
    roof : Roof or None
        The limits of this machine, where they were measured, too.
    account : ReportData or None
        The calls of the model, where it says what runs where.
    """

    steps: list[StepTime] = field(default_factory=list)
    total: float = 0.0
    repeat: int = 0
    others: float = 0.0
    company: Company = field(default_factory=Company)
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    roof: Roof | None = None
    account: ReportData | None = field(default=None, repr=False)

    def _said(self) -> str:
        return f"{1e3 * self.total:.3f} ms, {count(len(self.steps), 'step')}, medians of {self.repeat}"

    @property
    def reorder_share(self) -> float:
        """Share of the steps' time in which layouts are changed."""
        return self._share(s for s in self.steps if s.is_reorder)

    @property
    def tvm_share(self) -> float:
        """Share of the steps' time that TVM's own functions take."""
        return self._share(s for s in self.steps if s.region == HOST)

    @property
    def overhead(self) -> float:
        """Seconds of a call that no step accounts for; below 0 where measuring the steps cost more."""
        return self.total - sum(s.seconds for s in self.steps)

    def _share(self, steps: Iterable[StepTime]) -> float:
        whole = sum(s.seconds for s in self.steps)
        return sum(s.seconds for s in steps) / whole if whole else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The data: steps, and the totals."""
        return {
            "total_seconds": self.total,
            "repeat": self.repeat,
            "reorder_share": self.reorder_share,
            "tvm_share": self.tvm_share,
            "overhead_seconds": self.overhead,
            "others_share": self.others,
            "company": self.company._asdict(),
            "plans": self.plans,
            "roof": None if self.roof is None else vars(self.roof),
            "steps": [
                {
                    **asdict(s),
                    "dtypes": s.dtypes,
                    "bytes": s.bytes,
                    "gflops_per_second": s.gflops_per_second,
                    "is_reorder": s.is_reorder,
                }
                for s in self.steps
            ],
        }

    def to_chrome_trace(self) -> str:
        """JSON text for chrome://tracing and Perfetto: one row per region."""
        events = [
            {
                "name": f"{s.kind} {s.implementation}".strip(),
                "cat": "reorder" if s.is_reorder else s.kind,
                "ph": "X",
                "ts": s.start * 1e6,
                "dur": s.seconds * 1e6,
                "pid": 0,
                "tid": s.region,
                "args": {
                    "source": s.source,
                    "calls": s.calls,
                    "dtypes": s.dtypes,
                    "gflops_per_second": round(s.gflops_per_second, 1),
                },
            }
            for s in self.steps
        ]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """One self-contained page: longest steps, timeline, roofline, the graph by time; also written to ``path``."""
        page = render_html(self.account or ReportData([], [], [], Totals(0, 0, 0, 0, 0)), self.to_dict())
        if path is not None:
            write_text(path, page)
        return page

    def to_text(self, top: int = 20) -> str:
        """A table of the slowest steps, and the totals."""
        whole = sum(s.seconds for s in self.steps) or 1.0
        lines = [
            f"{'ms':>9} {'%':>5} {'GFLOP/s':>8}  {'where':<10} {'what':<20} {'dtypes':<9} implementation  (from)  nodes"
        ]
        for s in sorted(self.steps, key=lambda s: -s.seconds)[:top]:
            rate = f"{s.gflops_per_second:8.1f}" if s.flops else " " * 8
            what = "reorder (layout)" if s.is_reorder else s.kind
            source = " + ".join(op.removeprefix("relax.") for op in s.source)
            origin = (f"  ({source})" if source else "") + (f"  {', '.join(s.calls)}" if s.calls else "")
            lines.append(
                f"{s.seconds * 1e3:9.3f} {100 * s.seconds / whole:5.1f} {rate}  {s.region:<10} {what:<20} "
                f"{s.dtypes:<9} {s.implementation}{origin}"
            )
        if len(self.steps) > top:
            rest = sum(s.seconds for s in sorted(self.steps, key=lambda s: -s.seconds)[top:])
            lines.append(f"{rest * 1e3:9.3f} {100 * rest / whole:5.1f}           … {len(self.steps) - top} more steps")
        overhead = f"overhead {self.overhead * 1e3:.3f} ms" if self.overhead > 0 else "overhead too small to see"
        lines.append(
            f"one call {self.total * 1e3:.3f} ms; of the steps' {whole * 1e3:.3f} ms: "
            f"{100 * self.reorder_share:.1f} % reorders, {100 * self.tvm_share:.1f} % TVM; "
            f"{overhead}; medians of {self.repeat}"
        )
        lines += [
            f"open sizes of {name}: {p['hits']} calls of a size seen before; {p['made']} plans made in "
            f"{p['seconds'] * 1e3:.1f} ms, {p['plans']} kept ({p['bytes'] / 2**20:.1f} MB), {p['dropped']} dropped"
            + (f"; {count(p['parts'], 'call')} of a new size in parts" if p["parts"] else "")
            for name, p in self.plans.items()
        ]
        if self.company.narrowed:
            lines.append(
                f"{count(self.company.narrowed, 'call')} of a region ran on fewer threads than it may use, after "
                f"{self.company.late} that were late: the steps are those of all threads"
            )
        if self.others > QUIET:
            lines.append(
                f"the machine was not quiet: others took {self.others:.0%} of the cores meanwhile; measure again when "
                f"they take less than {QUIET:.0%}"
            )
        return "\n".join(lines)


def _plans(module: Any) -> dict[str, dict[str, Any]]:
    counters = {name: json.loads(region["plans"]()) for name, region in _native.regions([module]).items()}
    return {name: each for name, each in counters.items() if each.pop("symbolic")}


def profile(
    ex: Any, inputs: Any = None, *, repeat: int = 20, warmup: int = 3, roof: bool = False, **how: Any
) -> Profile:
    """Measure how the time of a compiled model is spent.

    Parameters
    ----------
    ex : Executable, Module, Runner or path, or a model
        What `compile` or `load` returned, or the path of a library: it is measured itself, and not compiled again.
    inputs : mapping or sequence, optional
        Inputs by name or in order; random ones where the model's shapes are all fixed.
    repeat, warmup : int
        Counted and uncounted calls; the figures are medians.
    roof : bool
        Measure the limits of this machine, too: a second, and 256 MB of memory.
    **how
        For a model that is compiled: arguments of `compile`.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        If ``inputs`` do not fit the model, or are missing and cannot be made up.
    """
    runner = runner_of(ex, **how)
    for name, value, least in (("repeat", repeat, 1), ("warmup", warmup, 0)):
        if not is_number(value, least):
            raise InputError(f"{name} is {short(value)}; expected at least {least}")
    tensors = tensors_of(runner, inputs)
    with Neighbours() as others:
        totals = _plain_times(runner, tensors, repeat, warmup)
        runs = _step_times(runner, tensors, repeat, warmup)
        limits = measure_roof(len(os.sched_getaffinity(0))) if roof else None
    plans, account = _plans(runner.module), read_account(runner.module)
    times = _medians(runs), statistics.median(totals)
    return Profile(*times, repeat, others.share, runner.company, plans, limits, account)


def _step_times(runner: Runner, tensors: Sequence[Any], repeat: int, warmup: int) -> list[list[StepTime]]:
    runs: list[list[StepTime]] = []
    layers: list[tuple[str, float]] = []
    with knowing(opening=Opening({}, layers=layers)):
        vm = relax.VirtualMachine(runner.module, tvm.cpu())
        names = Names(read_account(runner.module), read_kernels(vm))
        call = limited(vm[runner.entry], runner.threads)
        profilers = {name: region["profile"] for name, region in _native.regions([runner.module]).items()}
        instrument = Instrument(profilers, names, layers)
        vm.set_instrument(instrument)
        for k in range(warmup + repeat):
            instrument.start()
            call(*tensors)
            instrument.finish()
            if k >= warmup:
                runs.append(instrument.steps)
    return runs


def _plain_times(runner: Runner, tensors: Sequence[Any], repeat: int, warmup: int) -> list[float]:
    times = []
    for k in range(warmup + repeat):
        start = time.perf_counter()
        runner.run_tvm(*tensors)
        if k >= warmup:
            times.append(time.perf_counter() - start)
    return times


def _medians(runs: Sequence[list[StepTime]]) -> list[StepTime]:
    """The run with the median total, each step's time replaced by its median."""
    order = sorted(range(len(runs)), key=lambda i: sum(s.seconds for s in runs[i]))
    steps = runs[order[len(order) // 2]]
    same = [r for r in runs if len(r) == len(steps)]  # control flow may take another way
    end, shift = 0.0, 0.0
    for i, step in enumerate(steps):
        pause = max(0.0, step.start - end)
        end = step.start + step.seconds
        step.seconds = float(np.median([r[i].seconds for r in same]))
        step.start = shift + pause
        shift = step.start + step.seconds
    return steps
