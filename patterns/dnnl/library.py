"""The calls into the native library: make a module of a graph, ask whether oneDNN can run it, and how.

And the path of oneDNN's library, advice when it is not found, and the checks of `doctor`.

Source output: regions as C that calls oneDNN, compiled into the model's library; and the files of an emitted
program, but for the regions themselves.
"""

from __future__ import annotations

import functools
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ...vendor import (
    INCLUDE,
    Description,
    Examination,
    GraphError,
    NativeLibraryError,
    PortableGraph,
    Reject,
    SourceBuild,
    Standalone,
    Tensor,
    evaluate,
    native,
    remembered,
    trial_sizes,
)
from . import DNNL, WHEEL

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
    return count, f"no implementation of {node.function} here fuses {op.alg}{operand}"


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

    Raises `NativeLibraryError` if it cannot be loaded, or is not a file of its own.
    """
    native.engine_info("dnnl")
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.partition("/")[2]
        if file.rsplit("/", 1)[-1].startswith("libdnnl.so"):
            return Path("/" + file)
    raise NativeLibraryError(
        f"oneDNN is not a shared library of its own in this process; expected one called {DNNL}. Build the engine "
        "against a shared oneDNN to use source output"
    )


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


#: folder of the files that make a program of emitted source
EMITTED = Path(__file__).resolve().parent / "emitted"


def support_headers() -> list[Path]:
    """The headers that emitted source includes, but for oneDNN's and those of TVM."""
    found = [*INCLUDE.glob("byoc_*.h"), *INCLUDE.glob("dnnl_byoc_*.h")]
    return sorted(path for path in found if path.name != "dnnl_byoc_tvm.h")


def emit(graph: PortableGraph) -> str:
    """C source that makes the calls of oneDNN which a module of ``graph`` makes, for a program without TVM."""
    return _emit(graph, as_function=False)


def create_source(graph: PortableGraph) -> tvm.runtime.Module:
    """``graph`` as a source module of TVM, which ``export_library`` compiles."""
    names = [c.name for c in graph.constants]
    create = tvm.get_global_func("runtime.CSourceModuleCreate")
    return create(_emit(graph, as_function=True) + _checksums(graph), "c", [graph.name], names)


def source_build() -> SourceBuild:
    """Our support headers and oneDNN's, the library of oneDNN that plans here, and OpenMP for our own kernels."""
    return SourceBuild([INCLUDE], [path()], ["-fopenmp"])


def _checksums(graph: PortableGraph) -> str:
    """The table that the emitted function compares its constants with; 0 for one that is not known."""
    values = [f"UINT64_C({constant.checksum or 0})" for constant in graph.constants]
    return f"\nconst uint64_t {graph.name}_checksums[] = {{{', '.join([*values, '0'])}}};\n"


def _emit(graph: PortableGraph, *, as_function: bool) -> str:
    return str(call("Emit", graph.to_json(), [c.name for c in graph.constants], as_function))


#: copied as they are
_FIXED = ("main.c", "CMakeLists.txt")
_ALIGNMENT = 64
_ITEM_BYTES = {"float16": 2, "bfloat16": 2, "bool": 1}


@dataclass(frozen=True)
class _Entry:
    """One tensor in a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    checksum: int = 0

    @property
    def bytes(self) -> int:
        size = _ITEM_BYTES.get(self.dtype) or np.dtype(self.dtype).itemsize
        return int(np.prod(self.shape, dtype="int64")) * size

    @property
    def comment(self) -> str:
        """Safe inside a C comment."""
        text = f"{self.name} {self.dtype}{list(self.shape)}"
        return "".join(c if c.isprintable() and c.isascii() and c not in "/\\" else "_" for c in text)


def write_program(program: Standalone, folder: Path) -> list[Path]:
    """Write the files that make a program of an emitted region; it then needs only oneDNN's headers and library.

    Build it with CMake, or ``cc main.c <region>.c -ldnnl``; run it as ``./program weights.bin input.bin output.bin``.
    If oneDNN chooses other layouts on another machine, the program stops with a message. Returns ``program.h``
    (positions of tensors in the files), ``weights.bin``, the headers of the code that runs a plan, ``main.c`` and
    ``CMakeLists.txt``.
    """
    graph = program.graph
    constants = _lay_out([(c.name, graph.tensors[c.tensor]) for c in graph.constants], _ALIGNMENT)
    constants = [replace(e, checksum=c.checksum or 0) for e, c in zip(constants, graph.constants, strict=True)]
    (folder / "program.h").write_text(_header(program, constants))
    _write_weights(folder / "weights.bin", constants, program.constants)
    fixed = [*support_headers(), *(EMITTED / name for name in _FIXED)]
    for path in fixed:
        shutil.copyfile(path, folder / path.name)
    return [folder / name for name in ("program.h", "weights.bin", *(path.name for path in fixed))]


def _lay_out(tensors: Iterable[tuple[str, Tensor]], alignment: int = 1) -> list[_Entry]:
    entries: list[_Entry] = []
    for name, tensor in tensors:
        end = entries[-1].offset + entries[-1].bytes if entries else 0
        shape = tuple(int(d) for d in tensor.shape)  # type: ignore[arg-type]
        entries.append(_Entry(name, tensor.dtype, shape, -(-end // alignment) * alignment))
    return entries


def _write_weights(path: Path, entries: Sequence[_Entry], arrays: Sequence[Any]) -> None:
    with path.open("wb") as file:
        for entry, array in zip(entries, arrays, strict=True):
            file.write(b"\0" * (entry.offset - file.tell()))
            file.write(np.ascontiguousarray(array).tobytes())


def _header(program: Standalone, constants: Sequence[_Entry]) -> str:
    graph = program.graph
    # The files follow `main`, the tables the region.
    by_parameter = sorted(range(len(graph.inputs)), key=program.arguments.__getitem__)
    ids = [graph.inputs[i].tensor for i in by_parameter]
    tensors = [graph.tensors[i] for i in ids if i is not None]  # a shape argument would be symbolic
    inputs = _lay_out((f"input {k}: {tensor.name}", tensor) for k, tensor in enumerate(tensors))
    outputs = _lay_out((f"output {k}", graph.tensors[graph.outputs[i]]) for k, i in enumerate(program.results))
    parts = [
        "/* Which tensor stands where in the files: raw, dense, row-major, in the byte order of this machine. */",
        "#ifndef PROGRAM_H_\n#define PROGRAM_H_\n",
        '#include <stddef.h>\n#include <stdint.h>\n\n#include "dnnl_byoc_runtime.h"\n',
        "typedef struct {\n  size_t offset, bytes;\n  uint64_t checksum; /* of a constant */\n} program_tensor;\n",
        _table("WEIGHT", "Constants", constants, constants),
        _table("INPUT", "Inputs", inputs, [inputs[by_parameter.index(i)] for i in range(len(inputs))]),
        _table("OUTPUT", "Outputs", outputs, [outputs[program.results.index(i)] for i in range(len(outputs))]),
        f'#ifdef __cplusplus\nextern "C"\n#endif\nint {graph.name}_create(dnnl_byoc_region* r, '
        "const void* const* constants);\n",
        f"#define PROGRAM_CREATE {graph.name}_create\n\n#endif /* PROGRAM_H_ */\n",
    ]
    return "\n".join(parts)


def _table(file: str, name: str, in_file: Sequence[_Entry], in_call: Sequence[_Entry]) -> str:
    """The tensors of one file, listed in the order of the call."""
    end = in_file[-1].offset + in_file[-1].bytes if in_file else 0
    rows = [f"    {{{e.offset}, {e.bytes}, UINT64_C({e.checksum})}}, /* {e.comment} */\n" for e in in_call]
    return (
        f"enum {{ PROGRAM_{name.upper()} = {len(in_call)} }};\n#define PROGRAM_{file}_BYTES ((size_t){end})\n"
        f"static const program_tensor k{name}[] = {{\n{''.join(rows) or '    {0, 0, 0},'}}};\n"
    )
