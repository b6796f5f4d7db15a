"""A workload: what one compiler does in one call, apart from the model in which it was found.

Two workloads are equal if they have the same operators, attributes, shapes, dtypes and options, wired equally. Names
and the values of large constants do not count, so a time that was measured for one model holds for another. An open dim
counts as open, with the size that the model is optimised for.

The file of measured times: one JSON object per line, so that a process that is stopped loses nothing before.

Measured times, with a word on how far they can be trusted.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_hash

from ..core.entries import content_key
from ..core.errors import InputError
from ..core.files import append, read
from ..core.machine import Neighbours, cpu_kind, version_of
from ..graph.cost import call_flops, size_of, usual_sizes
from ..ir.functions import Block
from ..ir.relax_utils import (
    USUAL_SIZES_ATTR,
    bindings_in,
    caller_of,
    constant_numpy,
    constants_in,
    global_var,
    is_op_call,
    static_shape,
    type_text,
)
from ..ir.walker import Substitute
from ..pipeline.byoc import name_of_schedules
from ..vendors.namespaces import HOST, changed_options, namespace

_FEW = 16  # elements of a constant that may be axes, indices or a scalar: its values can change the work


@dataclass(frozen=True, eq=False)
class Workload:
    """The work of a region, or of calls that stay with TVM; the module has the functions that it calls, and options."""

    compiler: str
    function: Any = field(repr=False)
    module: tvm.IRModule = field(repr=False)

    @cached_property
    def key(self) -> str:
        """Equal for equal workloads, also of other models, processes and machines."""
        options = changed_options(self.module).get(self.compiler)
        return content_key([content_of(self.function, self.module), *([repr(options)] if options else [])])[:24]

    @cached_property
    def flops(self) -> int:
        sizes = usual_sizes(self.module)
        return sum(call_flops(call, sizes) for call in self._op_calls())

    @cached_property
    def summary(self) -> str:
        ops = [call.op.name.removeprefix("relax.") for call in self._op_calls()]
        sizes = usual_sizes(self.module)
        shapes = ", ".join(type_text(p.ty, lambda dim: f"~{size_of(dim, sizes)}") for p in self.function.params)
        shown = ", ".join(ops[:6]) + (f", … {len(ops)} calls" if len(ops) > 6 else "")
        return f"{shown} of {shapes}"

    def _op_calls(self) -> list[relax.Call]:
        return [binding.value for binding in bindings_in(self.function) if is_op_call(binding.value)]

    def as_model(self) -> tvm.IRModule:
        functions = {gv: f for gv, f in self.module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
        main = self.function
        if self.compiler != HOST:
            region = self.function.with_attr({"Codegen": self.compiler, "global_symbol": f"{self.compiler}_0"})
            gv = global_var(f"{self.compiler}_0", region)
            functions[gv] = region
            main = caller_of(gv, region)
        sizes = usual_sizes(self.module)
        main = main.with_attr({"global_symbol": "main", **({USUAL_SIZES_ATTR: sizes} if sizes else {})})
        return tvm.IRModule({**functions, tvm.ir.GlobalVar("main"): main}, attrs=self.module.attrs)


def host_workload(bindings: Sequence[Any], block: Block, module: tvm.IRModule) -> Workload:
    inputs, outputs = block.inputs(bindings), block.outputs(bindings)
    result = relax.Var("result", relax.TupleType([v.ty for v in outputs]))
    body = [*bindings, relax.VarBinding(result, relax.Tuple(outputs))]
    func = relax.Function(inputs, relax.SeqExpr([relax.DataflowBlock(body)], result), result.ty)
    # A variable of a dataflow block cannot be a parameter.
    func = Substitute({var: relax.Var(var.name, var.ty) for var in inputs}).function(func)
    symbols = list(relax.analysis.free_symbolic_vars(func))
    if symbols:  # those of which no argument has a dim of its own
        sizes = relax.Var("sizes", relax.ShapeType(symbols))
        func = relax.Function([*func.params, sizes], func.body, func.ret_ty)
    return Workload(HOST, relax.utils.copy_with_new_vars(func), module)


def content_of(func: relax.Function, module: tvm.IRModule) -> str:
    """A function as a key; ``module`` has the functions that it calls, and the sizes of its open dims."""
    sizes = usual_sizes(module)
    plain = relax.Function(func.params, func.body, func.ret_ty, func.is_pure)
    known = (module.functions.get(gv) for gv in relax.analysis.all_global_vars(func))
    parts = [
        *(structural_hash(f, skip_tensor_content=True) for f in (plain, *known) if f is not None),
        *(size_of(symbol, sizes) for symbol in relax.analysis.defined_symbolic_vars(func)),
        *(constant_numpy(c).tolist() for c in constants_in(func) if math.prod(static_shape(c.ty) or ()) <= _FEW),
    ]
    return content_key([repr(parts)])


_BLOCK_S = 0.02  # of one block of calls: shorter ones are below the resolution of /proc/stat
_BLOCKS = 5
_WARM_UP_S = 0.05  # of calls that do not count, before a block in turns with others
_ATTEMPTS = 3  # a block in which others kept the cores busy is measured again so many times


@dataclass(frozen=True)
class Timing:
    """One call: median of the ``blocks`` that count, (slowest - fastest) / median, whether none was disturbed."""

    seconds: float
    spread: float
    quiet: bool
    blocks: int = 1


def measure(call: Callable[[], object], budget_s: float) -> Timing:
    """The time of one call, by blocks that begin within the budget; a first call does not count unless it is longer."""
    deadline = time.perf_counter() + budget_s
    first = _block(call, 1)
    if first[0] > budget_s > 0:
        return summary([first])
    once = _block(call, 1)[0]
    count = max(1, int(_BLOCK_S / max(once, 1e-7)))
    blocks = [_quiet_block(call, count, deadline) for _ in range(_BLOCKS) if time.perf_counter() < deadline]
    return summary(blocks or [(once, False)])


def race(calls: Sequence[Callable[[], object]], rounds: int) -> list[Timing]:
    """Turns, so that a change of the machine's speed meets all, each after calls that do not count."""
    turns = [Turns(call) for call in calls]
    blocks = [[each.next() for each in turns] for _ in range(rounds)]
    return [summary(each) for each in zip(*blocks, strict=True)]


class Turns:
    def __init__(self, call: Callable[[], object]) -> None:
        call()
        self._call = call
        self._count = max(1, int(_BLOCK_S / max(_block(call, 1)[0], 1e-7)))

    def next(self) -> tuple[float, bool]:
        """Seconds of one call, and whether other processes left the cores alone."""
        return _quiet_block(self._call, self._count, math.inf, _WARM_UP_S)


def _block(call: Callable[[], object], count: int) -> tuple[float, bool]:
    with Neighbours() as neighbours:
        started = time.perf_counter()
        for _ in range(count):
            call()
        seconds = time.perf_counter() - started
    return seconds / count, neighbours.quiet


def _quiet_block(call: Callable[[], object], count: int, deadline: float, warm_up_s: float = 0.0) -> tuple[float, bool]:
    """A block that nothing disturbed, if one of a few attempts is so; else the fastest."""
    attempts: list[tuple[float, bool]] = []
    while not attempts or (not attempts[-1][1] and len(attempts) < _ATTEMPTS and time.perf_counter() < deadline):
        warm = time.perf_counter() + warm_up_s
        while time.perf_counter() < warm:
            call()
        attempts.append(_block(call, count))
    return attempts[-1] if attempts[-1][1] else min(attempts)


def summary(blocks: Sequence[tuple[float, bool]]) -> Timing:
    """The median of the blocks that nothing disturbed; of all where there are no such."""
    quiet = [seconds for seconds, was_quiet in blocks if was_quiet]
    times = quiet or [seconds for seconds, _ in blocks]
    middle = statistics.median(times)
    return Timing(middle, (max(times) - min(times)) / middle, bool(quiet), len(times))


_FORMAT = 1


@dataclass(frozen=True)
class Setting:
    """Where a time holds: CPU, threads, packages behind the compiler and variables that change what they do."""

    cpu: str
    threads: int
    library: str


def setting_of(compiler: str) -> Setting:
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
    """Times of workloads and placements of models, in memory and in a file; an `InputError` where that is another."""

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
            self._keep(entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{self.path}, line {number}: {error!r}; expected a database that byoc.tune has written"
            ) from error

    def _keep(self, entry: Mapping[str, Any]) -> None:
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

    def _note(self, setting: Setting, **parts: Any) -> None:
        entry = {"format": _FORMAT, **parts, "setting": asdict(setting)}
        self._keep(entry)
        if self.path is None:
            return
        try:
            append(self.path, (json.dumps(entry) + "\n").encode(), self._end)
            self._end = None
        except OSError as error:
            raise InputError(
                f"cannot write the database {self.path}: {error.strerror}; choose a place that you may write to"
            ) from error

    def time_of(self, workload: Workload) -> Timing | None:
        return self._times.get((workload.compiler, workload.key, setting_of(workload.compiler)))

    def note_time(self, workload: Workload, timing: Timing) -> None:
        about = {"compiler": workload.compiler, "workload": workload.key, "work": workload.summary}
        self._note(setting_of(workload.compiler), **about, time=asdict(timing))

    @property
    def has_candidates(self) -> bool:
        return bool(self._candidates)

    def name_of_candidates(self) -> str:
        """Another one for other times."""
        content = json.dumps(sorted((repr(key), times) for key, times in self._candidates.items()))
        return f"{len(self._candidates)} operations {content_key([content])[:8]}"

    def candidates_of(self, compiler: str, times: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
        """The times of the candidates of the workloads that a document names, as far as they are known."""
        setting = setting_of(compiler)
        keys = {name: (compiler, name, times["setting"], setting) for name in times["workloads"]}
        return {name: self._candidates[key] for name, key in keys.items() if key in self._candidates}

    def note_candidates(self, compiler: str, times: Mapping[str, Any]) -> None:
        for name, candidates in times["workloads"].items():
            about = {"compiler": compiler, "workload": name, "engine": times["setting"]}
            self._note(setting_of(compiler), **about, candidates=candidates)

    def placement_of(self, model: str, compilers: Iterable[str]) -> tuple[dict[str, str], bool] | None:
        """The placement that was found for a model in this setting, and whether libraries choose by their times."""
        names = tuple(compilers)
        return self._placements.get((model, names, _common_setting(names)))

    def note_placement(self, model: str, compilers: Iterable[str], placement: Mapping[str, str], chooses: bool) -> None:
        """Keep a placement; with ``chooses``, libraries choose by `candidates_of`."""
        names = list(compilers)
        about = {"model": model, "compilers": names, "placement": dict(placement), "chooses": chooses}
        self._note(_common_setting(names), **about)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _common_setting(compilers: Iterable[str]) -> Setting:
    return Setting(cpu_kind(), thread_count(), "; ".join(_library(name) for name in (*compilers, HOST)))


class Placement(dict[str, str]):
    """Call → compiler, as `compile` takes it, and how it was found.

    Attributes
    ----------
    seconds, default_seconds : float or None
        One call of the whole model with this placement, and with the default one, measured in turns; ``None`` where
        they are the same, a vendor's own cost model decided, or the model hung or crashed in a process of its own.
    alone_seconds : dict of str to float
        The same with each compiler alone: what one does not take is TVM's. One that is hopelessly slow is not there.
    tried : int
        Placements whose cost was compared.
    measured : int
        Workloads that were measured.
    choices : Database or None
        The times by which libraries choose among their implementations; ``None`` if they choose by their own models.
    """

    seconds: float | None = None
    default_seconds: float | None = None
    alone_seconds: Mapping[str, float] = MappingProxyType({})
    tried: int = 0
    measured: int = 0
    choices: Database | None = None

    def __repr__(self) -> str:
        calls = ", ".join(f"{name} {count}" for name, count in Counter(self.values()).most_common())
        times = "" if self.seconds is None else f"; {1e3 * self.seconds:.3g} ms"
        choices = "" if self.choices is None else f"; choices {self.choices.name_of_candidates()}"
        return f"<Placement: calls: {calls or 'none'}{times}{choices}>"


def choices_of(placement: object) -> Database | None:
    """The times that belong to a placement; a plain dict has none."""
    return placement.choices if isinstance(placement, Placement) else None
