"""Relax -> TE: the compute of a function, as unscheduled tensors; schedules are a second stage."""

# ruff: noqa: I001 - it would give each name a statement of its own
from .computes import (
    TVM_LEGALIZATION as TVM_LEGALIZATION,
    TECompute as TECompute,
    cheapest as cheapest,
    default_selector as default_selector,
    prefer as prefer,
    register_te_compute as register_te_compute,
    te_candidates as te_candidates,
    unregister_te_compute as unregister_te_compute,
)
from .graph import TEConstant as TEConstant, TEGraph as TEGraph, TENode as TENode, schedule_te as schedule_te
from .translate import translate_to_te as translate_to_te
