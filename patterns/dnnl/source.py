"""Source output: regions as C that calls oneDNN, compiled into the model's library."""

from __future__ import annotations

from pathlib import Path

import tvm

from ...vendor import INCLUDE, PortableGraph, SourceBuild
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
