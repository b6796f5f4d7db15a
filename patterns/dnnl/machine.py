"""This machine, measured: what it does in a second, and what each family of candidates makes of that.

The layers of ``layers.txt`` are timed with every candidate, one process for each number of threads. In front of each
call a product with more weights than a cache holds is computed, so that weights come from memory as they do in a
network. The costs of a family are those by which the model chooses best, the product of chosen ÷ best over all layers;
every third layer is held out, to say how good the choice is for layers that the costs were not fitted to.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm

from ...vendor import Constant, Input, InputError, Node, NodeList, PortableGraph, Tensor, Worker, WorkerError, native
from . import library

Layer = dict[str, Any]  #: its text, and of each candidate what `DescribeCosts` says and its seconds

#: part of a machine's name → the description whose families it takes where it has none measured
_BASES = {"amx": "avx512_core_amx"}
_BASES |= dict.fromkeys(("_bf16", "_fp16"), "avx512_core_bf16") | {"avx512_core": "avx512_core", "avx2": "avx2"}
_LAYERS = Path(__file__).with_name("layers.txt")
_ROUNDS = 9
_PATIENCE_S = 600.0  # for one layer
_FAR = 4096  # rows and columns of weights that fill a cache
_HELD_OUT = 3
_STEPS = (0.5, 0.8, 0.92, 1.09, 1.25, 2.0)
_SWEEPS = 12
_LEAST_LAYERS = 6  # of a family, to fit each of its costs
_ERROR = 0.05  # what an expected time that is wrong counts beside a choice that is
_MOVED = 2 * 4 * 64 * 112 * 112  # bytes that `_seconds_of_permute` reads and writes
_BYTES = 4  # of the sources and results, among the amounts: they lie in a cache
_DTYPES = ("float32", "bfloat16", "int8")


def measure(threads: Sequence[int], tell: Callable[[str], None]) -> tuple[dict[str, Any], str]:
    """The description of this machine with these numbers of threads, as a file that TVM_BYOC_RATES may name.

    Returns the document, and a line about each number of threads: how well the model chooses for layers to which
    nothing was fitted, before and after.
    """
    machine = str(native.engine_info("dnnl")["machine"]["name"])
    base = next(name for part, name in _BASES.items() if part in f"{machine}-avx2")
    lanes = 8 if base == "avx2" else 16
    speeds, lines = {}, []
    for count in threads:
        layers, wake, moving = _measured(count, tell)
        tell(f"{count} threads: fitting")
        others, held_out = _divided(layers)
        before, after = (judge(held_out, by) for by in ({}, fit(others)))
        speeds[str(count)] = _described(layers, moving, wake, lanes)
        lines.append(f"{count} threads, chosen / best: {_summary(before)} before, {_summary(after)} now")
    about = "Measured by `tvm-byoc tune --machine`."
    document = {"about": about, "machine": machine, "base": base, "lanes": lanes, "cache_mb": 16, "threads": speeds}
    return document, "\n".join(lines)


def _divided(layers: Sequence[Layer]) -> tuple[list[Layer], list[Layer]]:
    """The layers to fit to, and those to judge by: every third, unless none of the others has a family of it."""
    kept = [layer for number, layer in enumerate(layers) if number % _HELD_OUT]
    known = {c["family"] for layer in kept for c in layer["candidates"]}
    rest = layers[::_HELD_OUT]
    held_out = [layer for layer in rest if known.issuperset(c["family"] for c in layer["candidates"])]
    return [*kept, *(layer for layer in rest if layer not in held_out)], held_out


def _summary(ratios: Sequence[float]) -> str:
    if not ratios:
        return "no layer with a choice"
    return f"median {statistics.median(ratios):.3f}, mean {statistics.fmean(ratios):.3f}, worst {max(ratios):.2f}"


def _measured(threads: int, tell: Callable[[str], None]) -> tuple[list[Layer], float, float]:
    layers, texts = [], _LAYERS.read_text().splitlines()
    with Worker(_Bench, _PATIENCE_S, os.environ | {"OMP_NUM_THREADS": str(threads)}) as worker:
        wake, moving = (worker.ask("permute", shape) for shape in ([1, 2, 2, 2], [1, 64, 112, 112]))
        for number, text in enumerate(texts, 1):
            try:
                layers.append(worker.ask("layer", text))
            except WorkerError as error:
                raise InputError(f"the process that measures {text}: {error}; its messages stand above") from error
            tell(f"{threads} threads: {number} of {len(texts)} layers")
    return layers, wake, _MOVED / max(moving - wake, 1e-9)


class _Bench:
    """Measures in a process with its own number of threads."""

    def permute(self, shape: list[int]) -> float:
        return _seconds_of_permute(shape)

    def layer(self, text: str) -> Layer:
        return _timed(text)


def _graph_of(text: str) -> PortableGraph:
    """A layer as a portable graph, behind a product that leaves nothing in a cache and what writes its source."""
    kind, dtype, *rest = text.split()
    source, weights = ([int(n) for n in part.split(",")] for part in rest[:2])
    attrs: dict[str, Any] = {"alg": "auto"}
    if kind == "matmul":
        result = [source[0], weights[1]]
    else:
        stride, pads, dilation = int(rest[2]), [int(n) for n in rest[3].split(",")], int(rest[4])
        sizes = [(k - 1) * dilation + 1 for k in weights[-2:]]
        spatial = [(n + 2 * p - k) // stride + 1 for n, p, k in zip(source[2:], pads, sizes, strict=True)]
        result = [source[0], math.prod(weights[:-3]), *spatial]
        attrs |= {"strides": [stride] * 2, "dilations": [dilation] * 2, "pad_begin": pads, "pad_end": pads}
    is_bytes = dtype == "uint8"
    of_weights, of_result = ("int8", "int32") if is_bytes else (dtype, dtype)
    tensors = [(dtype, source), ("float32", [1, _FAR]), (of_weights, weights), ("float32", [_FAR, _FAR])]
    tensors += [("float32", [1, _FAR]), (of_result, result)]
    behind = Node(kind, (0, 2), (5,), attrs)
    nodes = [Node("matmul", (1, 3), (4,), {"alg": "auto"}), behind]
    if not is_bytes:  # its source is in a cache
        tensors.append((dtype, source))
        nodes.insert(1, Node("eltwise", (0,), (6,), {"alg": "relu", "alpha": 0.0, "beta": 0.0}))
        behind.inputs = (6, 2)
    return _graph(tensors, 2, {"weights": 2, "many": 3}, nodes, [4, 5])


def _graph(
    tensors: Sequence[tuple[str, Sequence[int]]],
    inputs: int,
    constants: Mapping[str, int],
    nodes: list[Node],
    outputs: list[int],
) -> PortableGraph:
    given = [Input(tensor=tensor) for tensor in range(inputs)]
    known = [Constant(tensor, name) for name, tensor in constants.items()]
    types = [Tensor(dtype, tuple(shape)) for dtype, shape in tensors]
    return PortableGraph("layer", types, given, known, NodeList(nodes), outputs)


def _timed(text: str) -> Layer:
    """A layer with the seconds of its candidates; without candidates where the library has no choice."""
    graph = _graph_of(text)
    costs = json.loads(library.call("DescribeCosts", graph.to_json()))
    times = library.measure_candidates(graph, _ROUNDS)["workloads"]
    own = next((key for key in costs if f"1x{_FAR} f32 {_FAR}x{_FAR}" not in key), "")
    known = {name: seconds for name, (seconds, _) in times.get(own, {}).items()}
    if not known and len(costs.get(own, {})) == 1:
        known = dict.fromkeys(costs[own], _seconds_of_last_node(graph))
    return {"layer": text, "candidates": [{**costs[own][n], "name": n, "seconds": known[n]} for n in known]}


def _module(graph: PortableGraph) -> tuple[Any, list[Any]]:
    """A module that runs a graph, and its arguments: zeros."""
    module = library.create_module(graph)
    dtypes = {"bfloat16": ml_dtypes.bfloat16}
    arrays = [np.zeros(tuple(map(int, t.shape)), dtypes.get(t.dtype, t.dtype)) for t in graph.tensors]  # type: ignore[arg-type]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    module[f"__init_{graph.name}"]([tensors[c.tensor] for c in graph.constants])
    return module, [*tensors[: len(graph.inputs)], *(tensors[i] for i in graph.outputs)]


def _seconds_of_last_node(graph: PortableGraph) -> float:
    module, arguments = _module(graph)
    last = len(graph.nodes) - 1
    times = []
    for _ in range(_ROUNDS):
        steps = json.loads(module["profile"](*arguments))["steps"]
        times.append(next(s["seconds"] for s in steps if s["node"] == last and "source" in s))
    return statistics.median(times)


def judge(layers: Iterable[Layer], families: Mapping[str, Sequence[float]] | None = None) -> list[float]:
    """Chosen ÷ best of each layer that has a choice, by the costs in use or by others: family → seconds of each."""
    found = []
    for layer in layers:
        if candidates := layer["candidates"]:
            chosen = min(candidates, key=lambda c: _expected(c, families or {}))
            found.append(chosen["seconds"] / min(c["seconds"] for c in candidates))
    return found


def _expected(candidate: Mapping[str, Any], families: Mapping[str, Sequence[float]]) -> float:
    return float(np.dot(candidate["amounts"], families.get(candidate["family"], candidate["seconds_of_each"])))


def fit(layers: Sequence[Layer]) -> dict[str, list[float]]:
    """Family → the seconds of each amount of work by which the model chooses best.

    They begin where the relative errors of the family have the least squares, and change one at a time as long as the
    choices become better, or the times that are expected while the choices stay.
    """
    rows = [c for layer in layers for c in layer["candidates"]]
    names = sorted({row["family"] for row in rows})
    found = {name: _least_squares([row for row in rows if row["family"] == name]) for name in names}
    best = _badness(layers, found)
    for _ in range(_SWEEPS):
        before = best
        for seconds in found.values():
            for place in np.flatnonzero(seconds):
                for step in _STEPS:
                    seconds[place] *= step
                    if (now := _badness(layers, found)) < best:
                        best = now
                    else:
                        seconds[place] /= step
        if best > 0.999 * before:
            break
    return found


def _badness(layers: Sequence[Layer], families: Mapping[str, Sequence[float]]) -> float:
    """Of choices; and a little of expected times, by how they are to those of the layer's other candidates.

    A machine's clock may change between two layers, and not between the candidates of one, which take turns.
    """
    regret = [math.log(ratio) for ratio in judge(layers, families)]
    errors: list[float] = []
    for layer in layers:
        ratios = [math.log(max(_expected(c, families), 1e-9) / c["seconds"]) for c in layer["candidates"]]
        errors += (abs(ratio - math.fsum(ratios) / len(ratios)) for ratio in ratios)
    return math.fsum(regret) / max(len(regret), 1) + _ERROR * math.fsum(errors) / max(len(errors), 1)


def _least_squares(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """None below 0. Where the layers are few, all are as many times what they are as the times say."""
    if len(rows) < _LEAST_LAYERS:
        times = math.exp(statistics.fmean(math.log(row["seconds"] / _expected(row, {})) for row in rows))
        return [times * seconds for seconds in rows[0]["seconds_of_each"]]
    work = np.array([row["amounts"] for row in rows]) / np.array([[row["seconds"]] for row in rows])
    used = [i for i in range(work.shape[1]) if np.ptp(work[:, i]) > 0 and i != _BYTES]
    while True:
        seconds = np.zeros(work.shape[1])
        seconds[used] = np.linalg.lstsq(work[:, used], np.ones(len(rows)), rcond=None)[0]
        if (seconds >= 0).all():
            return [float(number) for number in seconds]
        used.remove(int(seconds.argmin()))


def _described(layers: Sequence[Layer], moved: float, wake: float, lanes: int) -> dict[str, Any]:
    """The speeds of the machine, with the costs of families as times of them."""
    rows = [c for layer in layers for c in layer["candidates"]]
    products = {dtype: _most(rows, dtype, 0) or _most(rows, "float32", 0) for dtype in _DTYPES}
    near = _most([r for r in rows if not r["amounts"][3]], None, 2)
    far = _most([r for r in rows if r["amounts"][3]], None, 3) or near
    speeds = {f"{dtype}_gflops": 2e-9 * products[dtype] for dtype in _DTYPES}
    speeds |= {"weights_gbytes": near / 1e9, "memory_gbytes": far / 1e9, "moved_gbytes": moved / 1e9}
    dtypes = {row["family"]: _multiplies(row["family"], row["dtype"]) for row in rows}
    families = {}
    for name, seconds in fit(layers).items():
        dtype = dtypes[name]
        units = [1 / products[dtype], lanes / products["float32"], 1 / near, 1 / far, 1 / moved, wake]
        families[name] = [dtype, *(float(f"{s / unit:.4g}") for s, unit in zip(seconds, units, strict=True))]
    shown = {name: float(f"{speed:.4g}") for name, speed in speeds.items()}
    return {**shown, "wake_us": round(wake * 1e6, 2), "families": families}


def _multiplies(family: str, dtype: str) -> str:
    return "bfloat16" if family.endswith("_bfloat16") else dtype


def _most(rows: Iterable[Mapping[str, Any]], dtype: str | None, place: int) -> float:
    """The most of an amount that any candidate has done in a second."""
    of_dtype = (r for r in rows if dtype is None or _multiplies(r["family"], r["dtype"]) == dtype)
    return max((row["amounts"][place] / row["seconds"] for row in of_dtype), default=0.0)


def _seconds_of_permute(shape: list[int]) -> float:
    made = [shape[i] for i in (0, 2, 3, 1)]
    node = Node("permute", (0,), (1,), {"axes": [0, 2, 3, 1]})
    graph = _graph([("float32", shape), ("float32", made)], 1, {}, [node], [1])
    module, arguments = _module(graph)
    times = []
    for _ in range(200):
        started = time.perf_counter()
        module["layer"](*arguments)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
