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
    """A pattern that matched and was refused, or a form that an operator nearly has, and the reason.

    Attributes
    ----------
    pattern : str
        ``<namespace>.<name>``.
    matched, of : int
        Calls of the pattern that were found, of how many.
    reason : str
        The constraint that failed.
    calls : list of int
        Ids of the calls that it would have taken.
    """

    pattern: str
    matched: int
    of: int
    reason: str
    calls: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Candidate:
    """A compiler that was asked for a call.

    Attributes
    ----------
    compiler : str
        Namespace.
    reason : str
        Why it does not take the call; empty where it does, or would.
    seconds : float or None
        The time of the region in which the call would be if this compiler came first, if a database knows it.
    calls : int or None
        The calls of that region.
    """

    compiler: str
    reason: str = ""
    seconds: float | None = None
    calls: int | None = None


@dataclass
class Called:
    """A call as the module has it, before anybody is asked about it.

    Attributes
    ----------
    id : int
        Position in program order.
    op, kernel : str
        Relax operator, and the function that a ``relax.call_tir`` calls.
    name, function : str
        Variable that holds the result, and the function in which it stands.
    onnx_node : str or None
        Name of the ONNX node that it is made of; its first output's, where the node has none.
    flops, bytes : int
        Estimated work; bytes read and written if nothing were fused.
    output : str
        Type of the result.
    attrs : str
        The operator's attributes.
    inputs : list of int
        Calls whose results it reads.
    """

    id: int
    op: str
    name: str
    function: str
    flops: int
    bytes: int
    output: str
    onnx_node: str | None = None
    kernel: str = ""
    attrs: str = ""
    inputs: list[int] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Operator without ``relax.``; a kernel by its own name."""
        return self.kernel or self.op.removeprefix("relax.")


@dataclass
class CallReport(Called):
    """One call: its compiler and its implementation, or every reason why it stays with TVM.

    Attributes
    ----------
    compiler, region : str or None
        Namespace and region that took it.
    use : int
        Which call of the region: equal regions share one function.
    pattern : str or None
        Fusion pattern that took it together with others.
    primitive, implementation : str or None
        What its library makes of it, ``"convolution + relu"``, and that primitive's implementation on this machine.
    step : int or None
        Number of that primitive in its region: calls with the same one are fused.
    reasons : list of str
        ``"<compiler>: <why not>"``, one per compiler that was asked and refused.
    candidates : list of Candidate
        Every compiler that was asked, in order of priority.
    near_misses : list of NearMiss
        Patterns that matched and were refused.
    """

    compiler: str | None = None
    region: str | None = None
    use: int = 0
    pattern: str | None = None
    primitive: str | None = None
    implementation: str | None = None
    step: int | None = None
    reasons: list[str] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)


@dataclass
class RegionReport:
    """One region.

    Attributes
    ----------
    ops : int
        Number of calls.
    flops, bytes : int
        Estimated work; bytes that cross its border (arguments, constants and results).
    reorders : int or None
        Changes of layout per run that the library adds, ``None`` where it does not say.
    uses : int
        How often the region is called: equal regions share one function. The numbers above are of all uses.
    source_refusal : str
        Why it stays a module although source was requested; empty where it does not, or where no source was requested.
    notes : str
        What its compiler says of it.
    """

    name: str
    compiler: str
    ops: int
    flops: int
    bytes: int
    reorders: int | None = None
    uses: int = 1
    source_refusal: str = ""
    notes: str = ""


@dataclass(frozen=True)
class Worth:
    """The measured time of a model with a compiler and without it: sums over the regions.

    Attributes
    ----------
    compiler : str
        Namespace.
    seconds, seconds_without : float
        By the order of priority, and with the other compilers alone.
    """

    compiler: str
    seconds: float
    seconds_without: float


@dataclass
class Totals:
    """Sums over all calls."""

    calls: int
    offloaded_calls: int
    flops: int
    offloaded_flops: int
    regions: int
    reorders: int | None = None


@dataclass(frozen=True)
class Value:
    """An input or an output of the model.

    Attributes
    ----------
    name, type : str
        Its name, and such as ``float32[1, 3, 224, 224]``.
    calls : list of int
        Those that read the input; that which makes the output, where it is one.
    """

    name: str
    type: str
    calls: list[int] = field(default_factory=list)


@dataclass
class ReportData:
    """The calls of a model, with the compiler of each and the reasons.

    Attributes
    ----------
    compilers : list of str
        Who was asked, in order of priority.
    calls : list of CallReport
        In program order.
    regions : list of RegionReport
        In program order.
    totals : Totals
        Sums.
    advice : list of str
        What to look at first, most valuable first.
    symbols : list of str
        Symbolic dims; each counts as 1 in all numbers.
    unasked : list of str
        Compilers whose library could not be asked on this machine.
    options : dict
        Compiler → its options, defaults included.
    model : str
        Where it came from, for titles.
    versions : dict
        Package → version.
    worth : list of Worth
        Of each compiler whose regions a database knows with and without it.
    inputs, outputs : list of Value
        Of ``main``, in order.
    """

    compilers: list[str]
    calls: list[CallReport]
    regions: list[RegionReport]
    totals: Totals
    advice: list[str] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    worth: list[Worth] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain lists, dicts, strings and numbers."""
        return asdict(self)

    def host_calls(self) -> Sequence[CallReport]:
        """Calls that stay with TVM."""
        return [c for c in self.calls if c.compiler is None]


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
