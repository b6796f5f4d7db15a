"""The calls into the native library: make a module of a graph, ask whether oneDNN can run it, and how.

And the path of oneDNN's library, advice when it is not found, and the checks of `doctor`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ...vendor import (
    Description,
    Examination,
    GraphError,
    NativeLibraryError,
    PortableGraph,
    Reject,
    evaluate,
    native,
    remembered,
    trial_sizes,
)

_DNNL = "libdnnl.so.3"
WHEEL = "onednn-cpu-gomp"
_CURE = f"oneDNN ({_DNNL}, 3.2 or newer) is missing or too old: pip install {WHEEL}==2023.2.0"

#: sizes with which a graph of unknown sizes is probed, if it is refused with others
_MOST_SIZES = 2

_MOST_ANSWERS = 1 << 13  # by hand


def available() -> bool:
    """Whether oneDNN can be loaded here."""
    return native.engine_available("dnnl")


def call(name: str, *args: Any) -> Any:
    """The result of a function of the native library that asks oneDNN."""
    return native.function(f"tvm_byoc_dnnl.{name}")("dnnl", *args)


@functools.cache
def isa() -> str:
    """oneDNN's name of the instruction set that it uses here, such as ``avx512_core_bf16``."""
    return str(native.engine_info("dnnl")["isa"])


@functools.cache
def widened() -> frozenset[str]:
    """The dtypes of 16 bits that oneDNN does not have on this CPU: it computes in float32 in their place."""
    return frozenset(native.engine_info("dnnl")["computed_in_float32"])


def create_module(graph: PortableGraph) -> tvm.runtime.Module:
    """The runtime module that runs ``graph``."""
    return call("ModuleCreate", graph.name, graph.to_json(), [c.name for c in graph.constants])


def run(graph: PortableGraph, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a graph without constants and symbols, computed now."""
    module = create_module(graph)
    module[f"__init_{graph.name}"]([])
    shapes = [[evaluate(d, {}) for d in graph.tensors[t].shape] for t in graph.outputs]
    outputs = [np.empty(shape, graph.tensors[t].dtype) for shape, t in zip(shapes, graph.outputs, strict=True)]
    module[graph.name](*map(tvm_ffi.from_dlpack, [*arguments, *outputs]))
    return outputs


def probe(graph: PortableGraph) -> Reject | None:
    """Whether oneDNN has a real implementation of every node on this machine.

    Without oneDNN nothing can be asked and every graph passes: the lowering alone decides, which is
    enough to partition and to explain, not to run.
    """
    if not available():
        return None
    answers = []
    for answer in _answers(graph):
        if answer["ok"]:
            return None
        answers.append(answer["reason"])
        if len(answers) == _MOST_SIZES:
            break
    return Reject(answers[-1])


def probe_many(graphs: Sequence[PortableGraph]) -> list[Reject | None]:
    """What `probe` says of each graph; oneDNN is asked about all of them at once."""
    if available():
        firsts = dict.fromkeys(document for graph in graphs for document in itertools.islice(_documents(graph), 1))
        new = [document for document in firsts if document not in remembered()]
        for document, answer in zip(new, call("Probe", new), strict=True) if len(new) > 1 else ():
            if answer:  # none where the question is wrong: whoever asks it alone gets the error
                _note(document, json.loads(answer))
    return [probe(graph) for graph in graphs]


def costs(graphs: Sequence[PortableGraph]) -> list[float | Reject]:
    """The seconds that oneDNN's engine expects each graph to take, or what `probe` says against it."""
    refusals = probe_many(graphs)
    return [
        next(float(answer["seconds"]) for answer in _answers(graph) if answer["ok"]) if refusal is None else refusal
        for graph, refusal in zip(graphs, refusals, strict=True)
    ]


def _answers(graph: PortableGraph) -> Iterator[dict[str, Any]]:
    """What the library says about the graph; with each of several sizes in the place of symbols, where they fit."""
    error, is_answered = GraphError(f"no sizes were found with which all of {_equations(graph)} hold"), False
    for document in _documents(graph):
        try:
            answer = _ask(document)
        except GraphError as fault:
            error = fault
            continue
        is_answered = True
        yield answer
    if not is_answered:
        raise error


def _documents(graph: PortableGraph) -> Iterator[str]:
    """The graph as text, with sizes in the place of symbols."""
    samples = map(graph.specialize, trial_sizes(graph)) if graph.symbols else [graph]
    return (sample.to_json(anonymous=True) for sample in samples)


def _equations(graph: PortableGraph) -> str:
    return ", ".join(f"{a} = {b}" for a, b in graph.equal)


def fused(graph: PortableGraph) -> tuple[int, str]:
    """How many post-ops of the last node are in one primitive with it, and why not all; -1 if the node is refused."""
    node = graph.nodes[-1]
    if not available():
        return len(node.post_ops), ""
    answer = next(_answers(graph))
    if not answer["ok"]:
        return -1, answer["reason"]
    if (count := answer["nodes"][-1]["post_ops"]) >= len(node.post_ops):
        return count, ""
    op = node.post_ops[count]
    operand = "" if op.input is None else f" of {list(graph.tensors[node.inputs[op.input]].shape)}"
    return count, f"{node.kind} without an implementation that has the post-op {op.alg}{operand}"


def describe(graph: PortableGraph) -> Description | None:
    """oneDNN's implementation for each node, and the number of reorders between them."""
    if not available():
        return None
    answer = next(_answers(graph))
    nodes = answer.get("nodes", [])
    return Description([node["impl"] for node in nodes], answer["reorders"]) if nodes else None


def measure_candidates(graph: PortableGraph, rounds: int) -> dict[str, Any]:
    """The times of the implementations and layouts among which oneDNN's engine chooses for a static graph."""
    return json.loads(call("MeasureCandidates", graph.to_json(anonymous=True), rounds))


def _ask(document: str) -> dict[str, Any]:
    """What oneDNN says of a static graph: its refusal, else for each node the implementation and its post-ops."""
    known = remembered().get(document)
    return _note(document, json.loads(call("Probe", [document])[0])) if known is None else known


def _note(document: str, answer: dict[str, Any]) -> dict[str, Any]:
    answers = remembered()
    if len(answers) >= _MOST_ANSWERS:
        answers.clear()
    return answers.setdefault(document, answer)


# ---------------------------------------------------------------- its file
def path() -> Path:
    """The file of the oneDNN library that this process uses.

    Raises
    ------
    NativeLibraryError
        If it cannot be loaded, or is not a file of its own.
    """
    native.engine_info("dnnl")
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.partition("/")[2]
        if file.rsplit("/", 1)[-1].startswith("libdnnl.so"):
            return Path("/" + file)
    raise NativeLibraryError(
        f"oneDNN is not a shared library of its own in this process; expected one called {_DNNL}. Build the engine "
        "against a shared oneDNN to use source output"
    )


def find(error: str) -> str:
    """Load libdnnl from the folder where pip installed it, so that the linker finds it by its name.

    Returns
    -------
    str
        Where it was searched, and what to do about ``error``, which the linker gave before.
    """
    searched = ["the run path of our library", *_map_wheel()]
    text = f"{error} {searched}"
    return f"Searched: {', '.join(searched)}. {native.OPENMP_CURE if 'libgomp' in text else _CURE}"


def _map_wheel() -> list[str]:
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return [f"the wheel {WHEEL} (not installed)"]
    tried = []
    for file in wheel.files or ():
        if file.name != _DNNL:
            continue
        path = Path(str(wheel.locate_file(file))).resolve()
        # ctypes.CDLL holds Python's lock while it loads a library; a function that it calls does not.
        ctypes.CDLL(None).dlopen(str(path).encode(), os.RTLD_NOW)
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            tried.append(f"{path} ({error})")
        else:
            tried.append(str(path))
    return tried


_VERBOSE = "prints a line per primitive, which takes longer than small primitives themselves"
_OLD_ISA = "forbids newer instructions"

EXAMINATION = Examination(
    packages=[WHEEL],
    variables={
        "ONEDNN_VERBOSE": _VERBOSE,
        "DNNL_VERBOSE": _VERBOSE,
        "ONEDNN_MAX_CPU_ISA": _OLD_ISA,
        "DNNL_MAX_CPU_ISA": _OLD_ISA,
    },
    prefixes=["ONEDNN_", "DNNL_"],
)
