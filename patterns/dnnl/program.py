"""Source output: regions as C that calls oneDNN, compiled into the model's library; and the files of an emitted
program, but for the regions themselves.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from ...vendor import INCLUDE, PortableGraph, SourceBuild, Standalone, Tensor
from . import library

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
    return SourceBuild([INCLUDE], [library.path()], ["-fopenmp"])


def _checksums(graph: PortableGraph) -> str:
    """The table that the emitted function compares its constants with; 0 for one that is not known."""
    values = [f"UINT64_C({constant.checksum or 0})" for constant in graph.constants]
    return f"\nconst uint64_t {graph.name}_checksums[] = {{{', '.join([*values, '0'])}}};\n"


def _emit(graph: PortableGraph, *, as_function: bool) -> str:
    return str(library.call("Emit", graph.to_json(), [c.name for c in graph.constants], as_function))


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
    If oneDNN chooses other layouts on another machine, the program stops with a message.

    Returns
    -------
    list of Path
        ``program.h`` (positions of tensors in the files), ``weights.bin``, the headers of the code that runs a plan,
        ``main.c`` and ``CMakeLists.txt``.
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
