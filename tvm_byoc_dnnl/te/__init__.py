"""Relax -> TE: the compute of a function, as unscheduled tensors; schedules are a second stage."""

from .computes import (
    TVM_LEGALIZATION,
    TECompute,
    cheapest,
    default_selector,
    prefer,
    register_te_compute,
    te_candidates,
    unregister_te_compute,
)
from .graph import TEConstant, TEGraph, TENode, schedule_te
from .translate import translate_to_te

__all__ = [
    "TVM_LEGALIZATION",
    "TECompute",
    "TEConstant",
    "TEGraph",
    "TENode",
    "cheapest",
    "default_selector",
    "prefer",
    "register_te_compute",
    "schedule_te",
    "te_candidates",
    "translate_to_te",
    "unregister_te_compute",
]
