"""The second stage: a TE graph defines the compute, a scheduler decides how it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx

from ..core.errors import InputError
from .graph import TEGraph

Scheduler = Callable[[s_tir.Schedule, TEGraph], Any]


def schedule_te(
    graph: TEGraph, target: str | dict[str, Any] | tvm.target.Target = "llvm", scheduler: Scheduler | None = None
) -> tirx.PrimFunc:
    """Turn a TE graph into a scheduled PrimFunc.

    Parameters
    ----------
    graph : TEGraph
        The graph to schedule.
    target : str, dict or tvm.target.Target
        The target where it will run; the current target while the scheduler runs.
    scheduler : callable, optional
        ``scheduler(sch, graph)`` changes the ``s_tir.Schedule`` in place, or returns another one, or a PrimFunc.
        ``graph.anchor`` names the call to start from, ``graph.blocks(sch)`` finds its blocks. By default TVM's CPU
        rules are tried (matrix-vector product, reduction); where none applies the function stays as it is.

    Returns
    -------
    tirx.PrimFunc
        A private function, with the parameters of :meth:`TEGraph.to_primfunc`.
    """
    func = graph.to_primfunc()
    target = tvm.target.Target(target)
    with target:
        if scheduler is None:
            return _default(func, target)
        sch = s_tir.Schedule(func)
        result = scheduler(sch, graph)
    result = sch if result is None else result
    if isinstance(result, s_tir.Schedule):
        result = result.mod["main"]
    if not isinstance(result, tirx.PrimFunc):
        raise InputError(
            f"schedule_te: the scheduler returned {type(result).__name__}, expected None, a Schedule or a PrimFunc"
        )
    return _finish(result)


def _default(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    for rule in (s_tir.dlight.cpu.GEMV(), s_tir.dlight.cpu.Reduction()):
        try:
            sch = rule.apply(func, target, False)
        except s_tir.ScheduleError:  # the rule cannot finish it, as a function with two outputs
            continue
        if isinstance(sch, s_tir.Schedule):
            return _finish(sch.mod["main"])
    return func


def _finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
