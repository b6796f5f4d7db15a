"""A small vendor that really computes, by C source, and fails where and when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.c_kernel import c_kernel, c_module
from tvm_byoc_dnnl.core.compilation import read_log
from tvm_byoc_dnnl.graph import PortableGraph
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, codegen_of, op_calls
from tvm_byoc_dnnl.vendors.namespaces import namespace
from tvm_byoc_dnnl.vendors.portable import lower_region, portable_codegen

#: Relax operator -> C expression of its operands
OPS = {
    "relax.add": "{0} + {1}",
    "relax.multiply": "{0} * {1}",
    "relax.nn.relu": "({0} > 0 ? {0} : 0)",
    "relax.exp": "expf({0})",
}


class Vendor:
    """A namespace for `OPS`, whose faults can be switched on.

    Attributes
    ----------
    faults : dict
        Stage (``predicate``, ``lower``, ``optimize``, ``plan``, ``codegen``, ``source``) → ``fault(ops)``, called with
        the operators at hand, in order. It raises, or returns a `Reject`, or (``source``) wrong C.
    attempts : list
        The operators of each graph that was planned or generated, in order.
    """

    def __init__(self, name: str, ops: Sequence[str] = tuple(OPS), portable: bool = True) -> None:
        self.name = name
        self.faults: dict[str, Callable[[list[str]], Any]] = {}
        self.attempts: list[list[str]] = []
        for op in ops:
            byoc.register_lowering(name, op, self._lower)
        codegen = portable_codegen(name, self._create_module) if portable else self._codegen
        byoc.register_namespace(name, codegen=codegen, probe=self._probe, optimize=self._optimize)

    def fail(self, stage: str, *ops: str, error: Exception | None = None) -> None:
        """Fail at ``stage`` wherever all of ``ops`` are met."""
        error = error or RuntimeError(f"{stage} cannot do {' with '.join(ops)}")

        def fault(met: list[str]) -> Any:
            if set(ops) <= set(met):
                raise error

        self.faults[stage] = fault

    def _fault(self, stage: str, ops: list[str]) -> Any:
        return self.faults[stage](ops) if stage in self.faults else None

    def _lower(self, g: Any, call: Any) -> Any:
        refusal = self._fault("lower", [call.op.name])
        if refusal is not None:
            return refusal
        return g.emit("eltwise", [g.value(a) for a in call.args], g.shape_of(call.ty))

    def _probe(self, graph: PortableGraph) -> Any:
        self.attempts.append(_ops(graph))
        return self._fault("plan", _ops(graph))

    def _optimize(self, graph: PortableGraph) -> PortableGraph:
        self._fault("optimize", _ops(graph))
        return graph

    def _create_module(self, graph: PortableGraph) -> Any:
        self.attempts.append(_ops(graph))
        self._fault("codegen", _ops(graph))
        wrong = self._fault("source", _ops(graph))
        return c_module(graph.name, _c_source(graph) if wrong is None else wrong)

    def _codegen(self, functions: Any, _options: Any, _constants: Any) -> list[Any]:
        ns = namespace(self.name)
        return [self._create_module(lower_region(ns, f, str(f.attrs["global_symbol"]))) for f in functions]


def _ops(graph: PortableGraph) -> list[str]:
    return [op for node in graph.nodes for op in node.source]


def _c_source(graph: PortableGraph) -> str:
    value = {t.tensor: f"a[{i}][i]" for i, t in enumerate(graph.inputs)}
    body = ""
    for node in graph.nodes:
        expression = OPS[node.source[0]].format(*(value[t] for t in [*node.inputs, *node.inputs]))
        value[node.outputs[0]] = f"v{node.outputs[0]}"
        body += f"float v{node.outputs[0]} = {expression}; "
    for i, tensor in enumerate(graph.outputs):
        body += f"a[{len(graph.inputs) + i}][i] = {value[tensor]}; "
    return c_kernel(graph.name, body)


@contextmanager
def vendors(*specs: Any, portable: bool = True) -> Iterator[Any]:
    """Vendors by name, or by ``(name, ops)``, for the length of a test."""
    made = [Vendor(s, portable=portable) if isinstance(s, str) else Vendor(*s, portable=portable) for s in specs]
    try:
        yield made[0] if len(made) == 1 else made
    finally:
        for vendor in made:
            byoc.unregister_compiler(vendor.name)


# ---------------------------------------------------------------- what tests look at
def owners(mod: tvm.IRModule, function: str = "main") -> dict[str, str]:
    """Operators of a function in program order (``add``, ``add#2``, …) → the region that runs it, ``""`` for TVM."""
    found: dict[str, str] = {}

    def note(op: str, owner: str) -> None:
        name, number = op.removeprefix("relax.").removeprefix("nn."), 1
        while (key := name if number == 1 else f"{name}#{number}") in found:
            number += 1
        found[key] = owner

    for _, value in bindings_of(mod[function]):
        if not isinstance(value, relax.Call):
            continue
        if isinstance(value.op, tvm.ir.Op):
            note(value.op.name, "")
        elif codegen_of(mod[value.op]):
            for op in region_ops(mod[value.op]):
                note(op, value.op.name_hint)
    return found


def region_ops(region: relax.Function) -> list[str]:
    """Operators of a region in order."""
    composites = {var: value for var, value in bindings_of(region) if isinstance(value, relax.Function)}
    calls = [value for _, value in bindings_of(region) if isinstance(value, relax.Call)]
    return [call.op.name for outer in calls for _, call in op_calls(composites[outer.op])]


def reasons(mod: tvm.IRModule) -> list[str]:
    """The log, one short line per entry: ``name op compiler stage: reason``."""
    return [f"{e.name} {e.op} {e.compiler} {e.stage}: {e.reason}" for e in read_log(mod)]


def run(mod: tvm.IRModule, *inputs: np.ndarray, pipeline: Any = "byoc") -> np.ndarray:
    """Compile and run ``main``, which returns one tensor."""
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=pipeline), tvm.cpu())
    return vm["main"](*map(tvm.runtime.tensor, inputs)).numpy()
