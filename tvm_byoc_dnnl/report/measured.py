"""What is measured: a compiled model and the steps of its calls, this machine, ONNX Runtime beside it."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm

from ..api import compile
from ..core.errors import InputError, UnsupportedError
from ..partitioning.report_data import ReportData
from ..pipeline.executable import is_library
from ..pipeline.metadata import Kernels
from ..runtime.base import BaseRunner
from ..runtime.comparison import difference, gap, nudged, sensitivity
from ..runtime.native import NativeRunner
from ..runtime.runner import Runner
from ..vendors import told
from ..vendors.devices import COPY_IN, COPY_OUT
from ..vendors.namespaces import HOST, compilers, namespace

_BYTES = {"f32": 4, "s32": 4, "f16": 2, "bf16": 2, "s8": 1, "u8": 1}
_PRODUCT, _REPEATS = 1536, 8
_BUFFER = 1 << 28  # bytes, more than any cache


class Roof:
    """Peak arithmetic and bandwidth of the memory, in billions of operations and of bytes per second."""

    def __init__(self, gflops: float, gbytes: float) -> None:
        self.gflops, self.gbytes = gflops, gbytes

    def seconds(self, flops: float, size: float) -> float:
        return max(flops / self.gflops, size / self.gbytes) / 1e9


def _best(run: Any) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def roof(threads: int) -> Roof:
    """Measure both: a large product in float32, and a large buffer read by all threads."""
    a = np.random.default_rng(0).standard_normal((_PRODUCT, _PRODUCT), dtype="float32")
    out = np.empty_like(a)
    product = _best(lambda: np.matmul(a, a, out=out))
    parts = np.array_split(np.ones(_BUFFER // 4, "float32"), threads)
    with ThreadPoolExecutor(threads) as pool:
        reading = _best(lambda: list(pool.map(np.max, parts)))
    return Roof(2 * _PRODUCT**3 / product / 1e9, _BUFFER / reading / 1e9)


def bytes_of(layout: str) -> int:
    """The size of a tensor whose layout is written as ``f32:acdb:1x64x56x56``."""
    dtype, _, *dims = layout.split(":")
    return _BYTES.get(dtype, 0) * math.prod(int(d) for d in dims[-1].split("x") if d)


#: a VM instrument returns this to have the call left out (tvm::runtime::vm::VMInstrumentReturnKind)
_NO_ACTION, _SKIP_CALL = 0, 1


def is_compiled(model: Any) -> bool:
    """Whether it is what `compile` or `load` returned, or the path of a library."""
    if isinstance(model, (str, PathLike)):
        return is_library(Path(model))
    return isinstance(model, (BaseRunner, tvm.runtime.Executable, tvm.runtime.Module))


def runner_of(model: Any, **how: Any) -> Runner:
    """A runner of what `compile` or `load` returned, of a library's path, or of a model, which is compiled so."""
    if how and is_compiled(model):
        raise InputError(f"the model is compiled already, so {', '.join(how)} would have no effect on it")
    given = model if is_compiled(model) else compile(model, **how)
    if isinstance(given, NativeRunner):
        return given.with_tvm
    return given if isinstance(given, Runner) else Runner(given)


def tensors_of(runner: Runner, inputs: Any) -> list[Any]:
    """Inputs that a user gave by name or in order; random ones where there are none and all shapes are fixed."""
    if inputs is None:
        return runner.random_tensors()
    return runner.tensors((), inputs) if isinstance(inputs, Mapping) else runner.tensors(inputs)


@dataclass
class StepTime:
    """One primitive of a region, or one call of TVM's.

    Attributes
    ----------
    region : str
        The region's name, ``"tvm"`` for TVM's own calls.
    kind, implementation : str
        The library's primitive and implementation; the function's name for TVM's.
    source : list of str
        Relax operators that it came from; empty for a reorder that only changes a layout.
    calls : list of str
        Names of the calls that it runs: their ONNX nodes, or the variables that hold their results where the model was
        not imported from ONNX. Empty where control flow decides which calls they are.
    seconds : float
        Median over the repetitions.
    flops : int
        Multiplications and additions, computed from the shapes; 0 for TVM's calls and for steps that only move data.
    start : float
        Seconds from the beginning of the call: behind the step before it, and after the pause that was between them in
        the repetition with the median total.
    layouts : list of str
        Of the operands, then of the result, as ``f32:acdb:1x64x56x56``; empty for TVM's calls.
    ids : list of int
        Positions of the calls in the report of `explain`; empty where ``calls`` is.
    """

    region: str
    kind: str
    implementation: str
    source: list[str]
    seconds: float
    flops: int = 0
    start: float = 0.0
    layouts: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(map(bytes_of, self.layouts))

    @property
    def dtypes(self) -> str:
        """Dtypes of the source and of the result, as ``u8 → f32``, or the one that both have; empty for TVM's calls."""
        ends = [layout.partition(":")[0] for layout in (*self.layouts[:1], *self.layouts[-1:])]
        return " → ".join(dict.fromkeys(ends))

    @property
    def gflops_per_second(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def is_reorder(self) -> bool:
        """Whether it only changes a layout for the next primitive."""
        return self.kind == "reorder" and not self.source


class Names:
    """Name and id of the calls in each use of a region or of a kernel of TVM's; a model without an account has none."""

    def __init__(self, account: ReportData | None, kernels: Kernels) -> None:
        calls = account.calls if account is not None else []
        host = {call.onnx_node or call.name: call.id for call in calls if not call.region}
        self._uses: dict[str, list[list[tuple[str, int | None]]]] = {  # symbol → use → calls, of a region by position
            symbol: [[(name, host.get(name)) for name in names] for names in uses] for symbol, uses in kernels.items()
        }
        self._regions = {call.region for call in calls if call.region}
        for call in calls:
            if call.region:
                uses = self._uses.setdefault(call.region, [])
                uses += ([] for _ in range(len(uses), call.use + 1))
                uses[call.use].append((call.onnx_node or call.name, call.id))

    def put(self, step: StepTime, symbol: str, use: int, positions: Iterable[int] | None = None) -> None:
        """Write all or some calls of one use into a step, each name once."""
        uses = self._uses.get(symbol, [])
        calls = uses[use] if use < len(uses) else []
        chosen = calls if positions is None else [calls[p] for p in positions if p < len(calls)]
        step.calls = list(dict.fromkeys(name for name, _ in chosen))
        step.ids = [i for _, i in chosen if i is not None]

    def is_region(self, symbol: str) -> bool:
        return symbol in self._regions

    def uses(self, symbol: str) -> int:
        return len(self._uses.get(symbol, ()))


class Instrument:
    """Called by TVM's VM around each call: times TVM's functions, has a region time its own primitives."""

    def __init__(self, regions: Mapping[str, Any], names: Names, layers: list[tuple[str, float]]) -> None:
        self._regions = regions
        self._names = names
        self._layers = layers  # that a vendor's region has told of
        self._runs: Counter[str] = Counter()  # of each region and kernel in this repetition
        self._begin = 0.0
        self._open: list[tuple[float, int]] = []  # calls that have begun: when, and how many steps there were
        self.steps: list[StepTime] = []

    def start(self) -> None:
        self.steps, self._open, self._runs = [], [], Counter()
        self._begin = time.perf_counter()

    def __call__(self, _func: Any, symbol: str, before: bool, _result: Any, *args: Any) -> int:
        now = time.perf_counter()
        symbol = str(symbol)
        if symbol in self._regions and before:
            self._region(symbol, json.loads(self._regions[symbol](*args)), now - self._begin)
            return _SKIP_CALL
        if symbol in self._regions:
            return _NO_ACTION
        if before:
            self._layers.clear()
            self._open.append((time.perf_counter(), len(self.steps)))
            return _NO_ACTION
        called, steps = self._open.pop()
        if not symbol.startswith("vm.") and steps == len(self.steps):  # one that called others is the sum of them
            owner = symbol.removesuffix(COPY_IN).removesuffix(COPY_OUT)
            region = owner if self._names.is_region(owner) else HOST
            step = StepTime(region, symbol, "", [], now - called, start=called - self._begin)
            self._names.put(step, symbol, self._runs[symbol])
            self._runs[symbol] += 1
            self.steps += self._parts(step) if self._layers else [step]
        return _NO_ACTION

    def _parts(self, whole: StepTime) -> list[StepTime]:
        """The layers that a vendor has told of, and the rest of the time of its region."""
        parts, start = [], whole.start
        for name, seconds in self._layers:
            parts.append(StepTime(whole.region, name, "", [], seconds, start=start))
            start += seconds
        whole.seconds, whole.start = max(0.0, whole.seconds - sum(s for _, s in self._layers)), start
        return [*parts, whole]

    def finish(self) -> None:
        """End a repetition; names are unknown where control flow left uses of a function out, or repeated them."""
        unknown = {symbol for symbol, runs in self._runs.items() if runs != self._names.uses(symbol)}
        for step in self.steps:
            if (step.kind if step.region == HOST else step.region) in unknown:
                step.calls, step.ids = [], []

    def _region(self, name: str, report: Mapping[str, Any], start: float) -> None:
        use = self._runs[name]
        self._runs[name] += 1
        for step in report["steps"]:
            layouts = step.get("layouts", ())
            entry = StepTime(
                name, step["kind"], step.get("impl", ""), list(step.get("source", ())), step["seconds"], start=start
            )
            entry.layouts = list(layouts)
            self._names.put(entry, name, use, step.get("calls", ()))
            entry.flops = 0 if entry.is_reorder else _flops(entry.kind, layouts)
            self.steps.append(entry)
            start += entry.seconds


def _flops(kind: str, layouts: Sequence[str]) -> int:
    """Multiplications and additions of a primitive, as a namespace that knows it says."""
    for name in compilers():
        if flops := told(namespace(name), "primitive_flops", kind, layouts):
            return flops
    return 0


# ---- a whole model beside ONNX Runtime --------------------------------------------------------------

#: who says what is right: TVM of each region, or another engine of the whole model
TVM, ONNXRUNTIME = AGAINST = ("tvm", "onnxruntime")


@dataclass
class OutputGap:
    """An output's largest difference, relative to the largest value that is right, and the error if it is wrong."""

    output: str
    gap: float
    difference: str = ""


def is_onnx(model: Any) -> bool:
    """Whether ONNX Runtime can be asked for a model: a ModelProto, its bytes, or the path of one."""
    return isinstance(model, (onnx.ModelProto, bytes)) or (
        isinstance(model, (str, PathLike)) and not fspath(model).endswith(".pt2")
    )


def ort_run(model: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of a model, its bytes or its path, computed by ONNX Runtime on the CPU.

    It runs the graph as written, because ONNX Runtime's own rewrites change the numbers of quantised models by some
    percent.
    """
    return _session(model)(inputs)


def _session(model: Any) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    source = fspath(source) if isinstance(source, PathLike) else source
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, dict(inputs))


def beside_onnxruntime(
    model: Any,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    tolerance: float | Mapping[str, float] | None,
) -> list[OutputGap]:
    """The gap of each output to what ONNX Runtime makes of the same inputs; ``tolerance`` as for `verify`."""
    steps = tolerance if isinstance(tolerance, Mapping) else None
    near = [] if isinstance(tolerance, (int, float)) else nudged(list(inputs.values()), steps)
    try:
        run = _session(model)
        wanted = run(inputs)
        nearby = [run(dict(zip(inputs, values, strict=True))) for values in near]
    except ImportError as error:
        raise InputError("against='onnxruntime' needs it: pip install onnxruntime") from error
    except Exception as error:
        raise UnsupportedError(f"ONNX Runtime cannot run the model: {error}".splitlines()[0]) from error
    return [
        OutputGap(name, gap([got], [right]), difference(got, right, tolerance, slack=slack))
        for (name, got), right, slack in zip(outputs.items(), wanted, sensitivity(wanted, nearby), strict=True)
    ]
