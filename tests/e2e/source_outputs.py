"""Both outputs of a model, module and source, compared to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from tvm_byoc_dnnl.core.compilation import Fact, read_log
from tvm_byoc_dnnl.ir.relax_utils import codegen_of
from tvm_byoc_dnnl.pipeline.byoc import byoc_pipeline
from tvm_byoc_dnnl.pipeline.executable import SourceExecutable
from tvm_byoc_dnnl.runtime.runner import Runner
from tvm_byoc_dnnl.vendors.codegen import SourceBuild
from tvm_byoc_dnnl.vendors.namespaces import compilers, namespace
from tvm_byoc_dnnl.vendors.portable import source_builds


@dataclass(frozen=True)
class OutputComparison:
    """The result of `compare_outputs`.

    Attributes
    ----------
    regions : int
        Regions of the model.
    sources : int
        Those that became source.
    refusals : list of str
        Why the others did not, one line each.
    differing : list of str
        Outputs whose bits differ, and how far; empty when all agree.
    """

    regions: int
    sources: int
    refusals: list[str]
    differing: list[str]


def compile_source(mod: tvm.IRModule) -> tuple[SourceExecutable, list[Fact]]:
    """A partitioned module with source output, and what its log says about that."""
    noted: list[Fact] = []

    @tvm.transform.module_pass(opt_level=0, name="CompileSource")
    def pipeline(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        built = byoc_pipeline(output="source")(module)
        noted.extend(entry for entry in read_log(built) if entry.stage == "output")
        return built

    builds: list[SourceBuild] = source_builds(namespace(name) for name in compilers())
    return SourceExecutable(tvm.compile(mod, "llvm", relax_pipeline=pipeline).mod, builds), noted


def compare_outputs(mod: tvm.IRModule, inputs: Sequence[Any]) -> OutputComparison:
    """Run a partitioned module in both forms.

    Parameters
    ----------
    mod : IRModule
        What `partition` returned.
    inputs : sequence of array
        In the order of the model's inputs.

    Returns
    -------
    OutputComparison
        ``not comparison.differing`` is what must hold.
    """
    source, noted = compile_source(mod)
    sources = len(source.mod._collect_from_import_tree(lambda module: module.kind == "c"))
    got = _arrays(Runner(source)(*inputs))
    want = _arrays(Runner(tvm.compile(mod, "llvm", relax_pipeline="byoc"))(*inputs))
    return OutputComparison(
        regions=sum(1 for f in mod.functions.values() if codegen_of(f)),
        sources=sources,
        refusals=[str(entry) for entry in noted],
        differing=[d for i, (a, b) in enumerate(zip(got, want, strict=True)) if (d := _difference(i, a, b))],
    )


def _arrays(result: Any) -> list[Any]:
    return [a for r in result for a in _arrays(r)] if isinstance(result, list) else [result]


def _difference(index: int, got: Any, want: Any) -> str:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"output {index}: {got.dtype}{list(got.shape)} as source, {want.dtype}{list(want.shape)} as module"
    if got.tobytes() == want.tobytes():
        return ""
    far = np.abs(got.astype("float64") - want.astype("float64")).max()
    return f"output {index}: {np.count_nonzero(got != want)} of {got.size} elements differ, by up to {far:.3g}"
