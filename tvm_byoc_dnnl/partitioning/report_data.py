"""The report as data: the results of `explain` before they are printed, and the bytes of them in a compiled model."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..core.errors import ArtifactError


@dataclass(frozen=True)
class NearMiss:
    """A pattern that matched and was refused, or a form that an operator nearly has, and the reason."""

    pattern: str  #: ``<namespace>.<name>``
    matched: int  #: calls of the pattern that were found,
    of: int  #: of so many
    reason: str
    calls: list[int] = field(default_factory=list)  #: ids of those that it would have taken


@dataclass(frozen=True)
class Candidate:
    """A compiler that was asked for a call; ``reason`` says why it does not take it, and is empty where it would."""

    compiler: str
    reason: str = ""
    #: of the region in which the call would be if this compiler came first, if a database knows it; and its calls
    seconds: float | None = None
    calls: int | None = None


@dataclass
class CallReport:
    """One call: its compiler and its implementation, or every reason why it stays with TVM."""

    id: int  #: position in program order
    op: str
    name: str  #: of the variable that holds the result
    function: str
    flops: int
    bytes: int  #: read and written if nothing were fused
    output: str  #: type of the result
    onnx_node: str | None = None  #: of which it is made; the name of its first output, where it has none
    kernel: str = ""  #: the function that a ``relax.call_tir`` calls
    attrs: str = ""
    inputs: list[int] = field(default_factory=list)  #: calls whose results it reads
    compiler: str | None = None
    region: str | None = None
    use: int = 0  #: which call of the region: equal regions share one function
    pattern: str | None = None  #: that took it together with others
    primitive: str | None = None  #: ``"convolution + relu"``
    implementation: str | None = None  #: of that primitive on this machine
    step: int | None = None  #: number of that primitive in its region: calls with the same one are fused
    reasons: list[str] = field(default_factory=list)  #: ``"<compiler>: <why not>"``
    candidates: list[Candidate] = field(default_factory=list)  #: every compiler that was asked, in order of priority
    near_misses: list[NearMiss] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Operator without ``relax.``; a kernel by its own name."""
        return self.kernel or self.op.removeprefix("relax.")


@dataclass
class RegionReport:
    """One region; the numbers are of all its uses, as equal regions share one function."""

    name: str
    compiler: str
    ops: int
    flops: int
    bytes: int  #: that cross its border: arguments, constants and results
    reorders: int | None = None  #: changes of layout per run that the library adds, ``None`` where it does not say
    uses: int = 1
    source_refusal: str = ""  #: why it stays a module although source was requested
    notes: str = ""  #: of its compiler


@dataclass(frozen=True)
class Worth:
    """The measured time of a model, a sum over regions, by the order of priority and with the other compilers alone."""

    compiler: str
    seconds: float
    seconds_without: float


@dataclass
class Totals:
    calls: int
    offloaded_calls: int
    flops: int
    offloaded_flops: int
    regions: int
    reorders: int | None = None


@dataclass(frozen=True)
class Value:
    """An input or an output of the model, with the calls that read it, or the one that makes it."""

    name: str
    type: str  #: such as ``float32[1, 3, 224, 224]``
    calls: list[int] = field(default_factory=list)


@dataclass
class ReportData:
    """The calls of a model, with the compiler of each and the reasons; all in program order."""

    compilers: list[str]  #: who was asked, in order of priority
    calls: list[CallReport]
    regions: list[RegionReport]
    totals: Totals
    advice: list[str] = field(default_factory=list)  #: what to look at first, most valuable first
    symbols: list[str] = field(default_factory=list)  #: symbolic dims; each counts as 1 in all numbers
    unasked: list[str] = field(default_factory=list)  #: compilers whose library could not be asked on this machine
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  #: compiler → its options, defaults included
    model: str = ""  #: where it came from, for titles
    versions: dict[str, str] = field(default_factory=dict)  #: of packages
    worth: list[Worth] = field(default_factory=list)  #: of compilers whose regions a database knows with and without it
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def host_calls(self) -> Sequence[CallReport]:
        return [c for c in self.calls if c.compiler is None]


_VERSION = 1


def to_bytes(account: ReportData) -> bytes:
    """Compressed JSON; of the calls one list for each field, which is smaller than a record for each call."""
    calls = {f.name: [getattr(call, f.name) for call in account.calls] for f in fields(CallReport)}
    record = {"version": _VERSION, **vars(account), "calls": calls}
    return zlib.compress(json.dumps(record, separators=(",", ":"), default=vars).encode())


def from_bytes(data: bytes) -> ReportData:
    """The report that `to_bytes` was given; `ArtifactError` if it is of another version."""
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
