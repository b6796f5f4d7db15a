"""The share of this machine's limits that each layer reaches."""

from __future__ import annotations

from typing import Any

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.report.measured import Roof, StepTime

__all__ = ["layers"]


def _name(step: StepTime) -> str:
    what = " + ".join(op.removeprefix("relax.").removeprefix("nn.") for op in step.source) or step.kind
    shape = step.layouts[-1].rpartition(":")[2] if step.layouts else ""
    return f"{what} → {shape}" if shape else what


def layers(path: str, inputs: Any, limit: Roof, count: int) -> dict[str, Any]:
    """The layers of a model that lose most time against the roof, and the sums over all of them."""
    report = byoc.profile(byoc.compile(path), inputs, repeat=10)
    rows = []
    for step in report.steps:
        size = step.bytes
        least = limit.seconds(step.flops, size)
        names = {"layer": _name(step), "implementation": step.implementation}
        numbers = {
            "ms": step.seconds * 1e3,
            "gflop": step.flops / 1e9,
            "mbytes": size / 1e6,
            "roof_ms": least * 1e3,
        }
        rows.append((names, numbers))
    rows.sort(key=lambda row: row[1]["roof_ms"] - row[1]["ms"])
    return {
        "ms": sum(numbers["ms"] for _, numbers in rows),
        "roof_ms": sum(min(numbers["roof_ms"], numbers["ms"]) for _, numbers in rows),
        "layers": [{**names, **{k: round(v, 4) for k, v in numbers.items()}} for names, numbers in rows[:count]],
    }
