"""The file of measured times: one JSON object per line, so that a process that is stopped loses nothing before."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .._version import version_of
from ..core.cpu import cpu_kind
from ..core.errors import InputError
from ..core.files import append, read
from ..ir.fingerprint import content_key
from ..pipeline.byoc import name_of_schedules
from ..vendors.namespaces import HOST, namespace
from .measure import Timing
from .workload import Workload

_FORMAT = 1


@dataclass(frozen=True)
class Setting:
    """Under what a time was measured, and where it holds.

    Attributes
    ----------
    cpu : str
        LLVM's name of the CPU.
    threads : int
        Threads of one call.
    library : str
        Packages behind the compiler with their versions, and variables that change what its library does.
    """

    cpu: str
    threads: int
    library: str


def setting_of(compiler: str) -> Setting:
    """The setting of this process for a compiler."""
    return Setting(cpu_kind(), thread_count(), _library(compiler))


def thread_count() -> int:
    """The threads that a call may use here: ``OMP_NUM_THREADS``, else the usable cores."""
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(value) if value.isdigit() and int(value) else len(os.sched_getaffinity(0))


def _library(compiler: str) -> str:
    if compiler == HOST:
        return ", ".join(filter(None, [f"apache-tvm {version_of('apache-tvm') or '?'}", name_of_schedules()]))
    about = namespace(compiler).doctor
    packages = [f"{name} {version_of(name) or '?'}" for name in about.packages]
    switches = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k in about.variables and v not in ("", "0", "ALL")]
    return ", ".join([*packages, *switches])


@dataclass
class Database:
    """Times of workloads and placements of models, in memory and in a file that grows line by line.

    Parameters
    ----------
    path : path-like, optional
        The file; without it everything is kept in memory.

    Raises
    ------
    InputError
        If the file is not such a database.
    """

    path: Path | None = None
    _times: dict[tuple[Any, ...], Timing] = field(default_factory=dict, repr=False)
    _placements: dict[tuple[Any, ...], tuple[dict[str, str], bool]] = field(default_factory=dict, repr=False)
    _candidates: dict[tuple[Any, ...], dict[str, list[float]]] = field(default_factory=dict, repr=False)
    _end: int | None = field(default=None, repr=False)  # of the file's whole lines, until something is added

    def __post_init__(self) -> None:
        if self.path is None:
            return
        self.path = Path(self.path)
        if os.path.lexists(self.path):
            data = read(self.path, "a database that byoc.tune has written")
            # A process that is stopped while it writes leaves a part of a line.
            whole, newline, cut_off = data.rpartition(b"\n")
            for number, line in enumerate(whole.splitlines(), 1):
                self._read(line, number)
            self._end = len(whole + newline) if cut_off else None

    def _read(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            if entry["format"] != _FORMAT:
                raise InputError(
                    f"{self.path}, line {number}: format {entry['format']}; expected {_FORMAT}: use another file"
                )
            setting = Setting(**entry["setting"])
            if "placement" in entry:
                found = dict(entry["placement"]), bool(entry.get("chooses", True))
                self._placements[entry["model"], tuple(entry["compilers"]), setting] = found
            elif "candidates" in entry:
                key = (entry["compiler"], entry["workload"], entry["engine"], setting)
                self._candidates[key] = {str(k): [_number(s), _number(m)] for k, (s, m) in entry["candidates"].items()}
            else:
                time = Timing(**entry["time"])
                _number(time.seconds), _number(time.spread), _number(time.blocks)
                self._times[entry["compiler"], entry["workload"], setting] = time
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{self.path}, line {number}: {error!r}; expected a database that byoc.tune has written"
            ) from error

    def time_of(self, workload: Workload) -> Timing | None:
        """The time that was measured in this setting, if there is one."""
        return self._times.get((workload.compiler, workload.key, setting_of(workload.compiler)))

    def note_time(self, workload: Workload, timing: Timing) -> None:
        """Keep a time."""
        setting = setting_of(workload.compiler)
        self._times[workload.compiler, workload.key, setting] = timing
        self._append(
            {
                "compiler": workload.compiler,
                "workload": workload.key,
                "work": workload.summary,
                "time": asdict(timing),
                "setting": asdict(setting),
            }
        )

    @property
    def has_candidates(self) -> bool:
        """Whether there is anything for `candidates_of`."""
        return bool(self._candidates)

    def name_of_candidates(self) -> str:
        """A short name for what `candidates_of` knows, another one for other times."""
        content = json.dumps(sorted((repr(key), times) for key, times in self._candidates.items()))
        return f"{len(self._candidates)} operations {content_key([content])[:8]}"

    def candidates_of(self, compiler: str, times: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
        """The times of the candidates of the workloads that a document names, as far as they are known."""
        setting = setting_of(compiler)
        keys = {name: (compiler, name, times["setting"], setting) for name in times["workloads"]}
        return {name: self._candidates[key] for name, key in keys.items() if key in self._candidates}

    def note_candidates(self, compiler: str, times: Mapping[str, Any]) -> None:
        """Keep a document of the times of candidates."""
        setting = setting_of(compiler)
        for name, candidates in times["workloads"].items():
            self._candidates[compiler, name, times["setting"], setting] = dict(candidates)
            self._append(
                {
                    "compiler": compiler,
                    "workload": name,
                    "candidates": candidates,
                    "engine": times["setting"],
                    "setting": asdict(setting),
                }
            )

    def placement_of(self, model: str, compilers: Iterable[str]) -> tuple[dict[str, str], bool] | None:
        """The placement that was found for a model in this setting, and whether libraries choose by their times."""
        names = tuple(compilers)
        return self._placements.get((model, names, _common_setting(names)))

    def note_placement(self, model: str, compilers: Iterable[str], placement: Mapping[str, str], chooses: bool) -> None:
        """Keep a placement; with ``chooses``, libraries choose by `candidates_of`."""
        names = tuple(compilers)
        setting = _common_setting(names)
        self._placements[model, names, setting] = dict(placement), chooses
        self._append(
            {
                "model": model,
                "compilers": list(names),
                "placement": dict(placement),
                "chooses": chooses,
                "setting": asdict(setting),
            }
        )

    def _append(self, entry: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        try:
            append(self.path, (json.dumps({"format": _FORMAT, **entry}) + "\n").encode(), self._end)
            self._end = None
        except OSError as error:
            raise InputError(
                f"cannot write the database {self.path}: {error.strerror}; choose a place that you may write to"
            ) from error


def _number(value: Any) -> float:
    """A measured time, or a number of turns."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _common_setting(compilers: Iterable[str]) -> Setting:
    return Setting(cpu_kind(), thread_count(), "; ".join(_library(name) for name in (*compilers, HOST)))
