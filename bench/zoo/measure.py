"""Measure a model: does it import, how much of it is offloaded, and are the numbers right?"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm

from tvm_byoc_dnnl.api import partition
from tvm_byoc_dnnl.core.errors import ByocError
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.pipeline import PIPELINE
from tvm_byoc_dnnl.report import Report, explain
from tvm_byoc_dnnl.runtime.runner import Runner
from tvm_byoc_dnnl.testing.models import ort_run

from . import ZooModel

__all__ = ["FORMS", "Result", "measure"]

FORMS = ("onnx", "torch.export")


@dataclass
class Result:
    """One model in one form.

    Attributes
    ----------
    refusal : str
        Why it cannot be imported; everything else is 0 then.
    calls, offloaded_calls, regions : int
        Of `explain`.
    flops_share : float
        Share of the FLOPs that are offloaded.
    error : float
        Against ONNX Runtime on the ONNX form; see `ZooModel.error`.
    seconds : float
        Import, preparation and partitioning.
    stays : dict
        Operator and reason → number of calls that stay with TVM.
    """

    name: str
    form: str = "onnx"
    refusal: str = ""
    calls: int = 0
    offloaded_calls: int = 0
    flops_share: float = 0.0
    regions: int = 0
    error: float = float("inf")
    seconds: float = 0.0
    stays: dict[tuple[str, str], int] = field(default_factory=dict)


def measure(entry: ZooModel, form: str = "onnx") -> Result:
    """Import, partition, explain, compile and run one model.

    Parameters
    ----------
    entry : ZooModel
        The model.
    form : str
        One of :data:`FORMS`.
    """
    result = Result(entry.name, form)
    source: Any = entry.model if form == "onnx" else entry.exported_program()
    begin = time.perf_counter()
    try:
        mod = partition(to_relax(source, shapes=entry.shapes or None))
    except ByocError as refusal:
        result.refusal = str(refusal)
        return result
    result.seconds = time.perf_counter() - begin
    _describe(result, explain(mod))
    inputs = entry.inputs()
    got = Runner(tvm.compile(mod, "llvm", relax_pipeline=PIPELINE))(*inputs.values())
    outputs = got if isinstance(got, list) else [got]
    wanted = ort_run(entry.model, inputs)
    if len(outputs) == len(wanted):
        result.error = max(entry.error(np.asarray(g), w) for g, w in zip(outputs, wanted, strict=True))
    return result


def _describe(result: Result, report: Report) -> None:
    totals = report.totals
    result.calls, result.offloaded_calls, result.regions = totals.calls, totals.offloaded_calls, totals.regions
    result.flops_share = totals.offloaded_flops / totals.flops if totals.flops else 1.0
    stays = Counter((c.label, _short(c.reasons[0] if c.reasons else "")) for c in report.host_calls())
    result.stays = dict(stays.most_common())


def _short(reason: str) -> str:
    """A reason without the name of who gave it."""
    return reason.partition(": ")[2] or reason
