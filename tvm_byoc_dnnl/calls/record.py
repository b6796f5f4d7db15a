"""The account of a module's calls as bytes, as a compiled model contains it."""

from __future__ import annotations

import json
import zlib
from dataclasses import fields
from typing import Any

from ..core.errors import ArtifactError
from .model import CallReport, Candidate, NearMiss, RegionReport, ReportData, Totals, Value, Worth

__all__ = ["from_bytes", "from_record", "to_bytes"]

_VERSION = 1


def to_bytes(account: ReportData) -> bytes:
    """Compressed JSON; of the calls one list for each field, which is smaller than a record for each call."""
    calls = {f.name: [getattr(call, f.name) for call in account.calls] for f in fields(CallReport)}
    record = {"version": _VERSION, **vars(account), "calls": calls}
    return zlib.compress(json.dumps(record, separators=(",", ":"), default=vars).encode())


def from_bytes(data: bytes) -> ReportData:
    """The report that `to_bytes` was given.

    Raises
    ------
    ArtifactError
        If it is of another version.
    """
    record = json.loads(zlib.decompress(data))
    version = record.pop("version")
    if version != _VERSION:
        raise ArtifactError(
            f"the model's account of its calls has version {version}, expected {_VERSION}: use the version of "
            "tvm-byoc-dnnl that built the model, or build it again"
        )
    columns = record.pop("calls")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return from_record({**record, "calls": rows})


def from_record(record: dict[str, Any]) -> ReportData:
    """The report of which this is `ReportData.to_dict`."""
    record = dict(record)
    calls = [CallReport(**row) for row in record.pop("calls")]
    for call in calls:
        call.candidates = [Candidate(**c) for c in call.candidates]  # type: ignore[arg-type]
        call.near_misses = [NearMiss(**m) for m in call.near_misses]  # type: ignore[arg-type]
    regions = [RegionReport(**r) for r in record.pop("regions")]
    worth = [Worth(**w) for w in record.pop("worth", ())]
    inputs, outputs = ([Value(**v) for v in record.pop(key, ())] for key in ("inputs", "outputs"))
    totals = Totals(**record.pop("totals"))
    return ReportData(
        calls=calls, regions=regions, totals=totals, worth=worth, inputs=inputs, outputs=outputs, **record
    )
