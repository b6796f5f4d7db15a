"""Lock files: a small text file says which call runs where, so that CI notices when an upgrade changes that.

    # 177 of 177 calls offloaded; apache-tvm 0.27.0.post1
    format tvm_byoc_dnnl.lock 1
    compiler npu

    npu    12  relax.nn.conv2d   float32[1, 64, 56, 56]
    tvm     1  relax.topk        (float32[1, 5], int32[1, 5])

Calls are counted by operator, result type and owner. Numbers of regions and names of variables are left out: they
change with every release and mean nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.errors import ArtifactError
from ..graph.cost import RegionPolicy
from ..partitioning.report_data import CallReport, ReportData
from ..vendors.namespaces import ARGUMENTS, HOST
from .text import count

FORMAT, VERSION = "tvm_byoc_dnnl.lock", 1

#: operator and result type
Kind = tuple[str, str]


@dataclass
class Lock:
    #: who was asked, in order of priority
    compilers: list[str] = field(default_factory=list)
    #: input name → shape, as the model was imported
    shapes: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    #: input name → the value that was compiled in for it, as on the command line
    values: dict[str, str] = field(default_factory=dict)
    #: (operator, result type) → owner → number of calls; the owner ``"tvm"`` is no compiler
    owners: dict[Kind, Counter[str]] = field(default_factory=dict)
    #: the calls that the user excluded, forced and limited, in addition to the namespaces' own policies
    policy: RegionPolicy | None = None
    #: the arguments of `namespaces.ARGUMENTS` that are not the default
    precision: dict[str, str] = field(default_factory=dict)
    #: first line of the file, for people
    comment: str = ""

    def to_text(self) -> str:
        """Equal locks have equal text."""
        rows = [
            (who, str(n), *kind) for kind, owners in sorted(self.owners.items()) for who, n in sorted(owners.items())
        ]
        widths = [max((len(r[i]) for r in rows), default=0) for i in range(3)]
        head = [f"# {self.comment}"] if self.comment else []
        head.append(f"format {FORMAT} {VERSION}")
        head += [f"compiler {name}" for name in self.compilers]
        head += [f"shape {name} {','.join(map(str, dims))}" for name, dims in sorted(self.shapes.items())]
        head += [f"value {name} {numbers}" for name, numbers in sorted(self.values.items())]
        head += [f"{name} {value}" for name, value in sorted(self.precision.items())]
        if self.policy is not None:
            head += [f"exclude {name}" for name in self.policy.exclude]
            head += [f"force {name}" for name in self.policy.force]
            limit = self.policy.max_regions
            head += [f"max_regions {limit}"] if limit is not None else []
        lines = [
            f"{who:<{widths[0]}}  {n:>{widths[1]}}  {op:<{widths[2]}}  {output}".rstrip() for who, n, op, output in rows
        ]
        return "\n".join([*head, "", *lines]) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Lock:
        """Raises `ArtifactError` if it is no lock file, is damaged, or is of another version."""
        lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1)]
        comments = [line.lstrip("# ") for _, line in lines if line.startswith("#")]
        lines = [(n, line) for n, line in lines if line and not line.startswith("#")]
        if not lines or not lines[0][1].startswith(f"format {FORMAT} "):
            raise ArtifactError(
                f"this is no lock file: expected `format {FORMAT} {VERSION}` on its first line, got "
                f"{lines[0][1][:40]!r}"
                if lines
                else "this is no lock file: it is empty"
            )
        version = lines[0][1].rpartition(" ")[2]
        if version != str(VERSION):
            raise ArtifactError(
                f"the lock file has version {version}, this package reads version {VERSION}: write it again "
                "with `tvm-byoc lock`"
            )
        lock = cls(comment=comments[0] if comments else "")
        for number, line in lines[1:]:
            try:
                lock._read(line)
            except ValueError as error:
                raise ArtifactError(f"line {number} of the lock file is damaged: {line!r} ({error})") from error
        return lock

    def _read(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "compiler":
            self.compilers.append(rest.strip())
        elif word == "shape":
            name, _, dims = rest.strip().rpartition(" ")
            self.shapes[name] = tuple(d if d.isidentifier() else int(d) for d in dims.split(",") if d)
        elif word == "value":
            name, _, numbers = rest.strip().rpartition(" ")
            self.values[name] = numbers
        elif word in ARGUMENTS and rest in ARGUMENTS[word]:
            self.precision[word] = rest
        elif word in ("exclude", "force", "max_regions"):
            policy = self.policy or RegionPolicy(on_top=True)
            value = int(rest) if word == "max_regions" else (*getattr(policy, word), rest.strip())
            self.policy = replace(policy, **{word: value})  # type: ignore[arg-type]
        else:
            cells = re.fullmatch(r"(\w+)\s+(\d+)\s+(\S+)(?:\s\s(.*))?", line)
            if cells is None:
                raise ValueError("expected: owner, number of calls, operator, result type")
            who, n, op, output = cells.groups(default="")
            self.owners.setdefault((op, output.strip()), Counter())[who] += int(n)


def make_lock(
    report: ReportData,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    policy: RegionPolicy | None = None,
    values: Mapping[str, str] | None = None,
    precision: Mapping[str, str | None] | None = None,
) -> Lock:
    """The lock of a report that was made with these shapes, values, policy and arguments about precision."""
    fixed = {name: tuple(dims) for name, dims in (shapes or {}).items()}
    chosen = {name: value for name, value in (precision or {}).items() if value and value != ARGUMENTS[name][0]}
    lock = Lock(list(report.compilers), fixed, dict(values or {}), policy=policy, precision=chosen)
    for call in report.calls:
        lock.owners.setdefault(_kind(call), Counter())[call.compiler or HOST] += 1
    totals, versions = report.totals, ", ".join(f"{k} {v}" for k, v in report.versions.items())
    lock.comment = f"{totals.offloaded_calls} of {count(totals.calls, 'call')} offloaded; {versions}"
    return lock


def _kind(call: CallReport) -> Kind:
    return f"{call.op}:{call.kernel}" if call.kernel else call.op, call.output


@dataclass
class Drift:
    #: calls that left their compiler, or that are new and stay with TVM: one line of a diff each
    lost: list[str] = field(default_factory=list)
    #: every other difference: calls that a compiler took over, that are gone, or that are new and offloaded
    changed: list[str] = field(default_factory=list)
    #: how many calls ``lost`` is about
    lost_calls: int = 0

    def __bool__(self) -> bool:
        return bool(self.lost or self.changed)

    def to_text(self) -> str:
        parts = []
        if self.lost:
            verb = "runs" if self.lost_calls == 1 else "run"
            parts += [
                f"{count(self.lost_calls, 'call')} {verb} on TVM, or on another compiler than before:",
                *self.lost,
            ]
        if self.changed:
            parts += ["Other changes:", *self.changed]
        return "\n".join(parts)


def compare(locked: Lock, report: ReportData) -> Drift:
    """The report gives the reasons."""
    now = make_lock(report)
    drift = Drift()
    for kind in sorted({*locked.owners, *now.owners}):
        before, after = locked.owners.get(kind, Counter()), now.owners.get(kind, Counter())
        if before == after:
            continue
        lines = [
            f"{sign} {who:<8} {counts[who]:>4}  {kind[0]}  {kind[1]}".rstrip()
            for sign, counts in (("-", before), ("+", after))
            for who in sorted(counts)
            if before[who] != after[who]
        ]
        lost = _lost(before, after)
        if not lost:
            drift.changed += lines
            continue
        drift.lost_calls += lost
        drift.lost += lines + [f"    why: {reason}" for reason in _reasons(report, kind)]
    return drift


def _lost(before: Counter[str], after: Counter[str]) -> int:
    """Calls that went to TVM or to another compiler; calls that merely exist no more are not lost."""
    to_host = after[HOST] - before[HOST]
    moved = sum(max(before[who] - after[who], 0) for who in before if who != HOST)
    gone = max(before.total() - after.total(), 0)
    return max(to_host, moved - gone, 0)


def _reasons(report: ReportData, kind: Kind) -> list[str]:
    calls = (c for c in report.host_calls() if _kind(c) == kind)
    return list(dict.fromkeys(reason for call in calls for reason in call.reasons))
