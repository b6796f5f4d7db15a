"""Cases: partition a small Relax function, look at what was offloaded, and compare the numbers.

    accept("same", relax.op.nn.relu, data(2, 3, 5), reference=lambda x: np.maximum(x, 0))
    ...
    case.offloads().matches()

`data` is an input of the function, `const` a constant inside it; both are drawn from a generator seeded by the case's
position in the call, so a case is the same on every run. References compute in float64, from the values that
the library sees (rounded to their dtype).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.graph import PortableGraph
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, codegen_of, make_constant, op_calls
from tvm_byoc_dnnl.ir.tvm_compat import dtype_of
from tvm_byoc_dnnl.partitioning.annotate import ask_pattern
from tvm_byoc_dnnl.partitioning.trial import ask
from tvm_byoc_dnnl.runtime.comparison import difference, differences
from tvm_byoc_dnnl.vendors.namespaces import namespace, with_options
from tvm_byoc_dnnl.vendors.portable import lower_region, match_annotations

__all__ = ["Case", "Operand", "accept", "assert_right", "const", "data", "no_code", "number", "refuse", "table_tests"]


def no_code(functions: Sequence[Any], *_: Any) -> list[tvm.runtime.Module]:
    """A codegen for vendors that nobody runs: its functions do nothing."""

    def module(symbol: str) -> tvm.runtime.Module:
        target = tvm.target.Target("llvm")
        func = tirx.PrimFunc([], tirx.Evaluate(0)).with_attr({"global_symbol": f"__tvm_ffi_{symbol}", "target": target})
        return tvm.get_global_func("target.build.llvm")(tvm.IRModule({"f": func}), target)

    return [module(str(f.attrs["global_symbol"])) for f in functions]


@dataclass(frozen=True)
class Operand:
    """A tensor of a case: uniform noise in [low, high), or the given values."""

    shape: tuple[Any, ...]
    dtype: str = "float32"
    low: float = -2.0
    high: float = 2.0
    values: Any = field(default=None, compare=False)
    constant: bool = False

    def draw(self, seed: int, symbols: dict[str, int] | None = None) -> np.ndarray:
        """The tensor's value."""
        if self.values is not None:
            return np.asarray(self.values, _numpy_dtype(self.dtype))
        shape = [(symbols or {})[d] if isinstance(d, str) else d for d in self.shape]
        noise = np.random.default_rng(seed).uniform(self.low, self.high, shape)
        return np.asarray(noise > 0 if self.dtype == "bool" else noise, _numpy_dtype(self.dtype))


def data(*shape: Any, dtype: str = "float32", low: float = -2.0, high: float = 2.0, values: Any = None) -> Operand:
    """An input of the function; a string in ``shape`` is a symbolic dim, ``values`` are given instead of noise."""
    shape = shape if values is None else np.shape(values)
    return Operand(tuple(shape), dtype, low, high, values)


def const(*shape: int, dtype: str = "float32", low: float = -2.0, high: float = 2.0, values: Any = None) -> Operand:
    """A constant inside the function."""
    shape = shape if values is None else np.shape(values)
    return Operand(tuple(shape), dtype, low, high, values, constant=True)


def _numpy_dtype(dtype: str) -> Any:
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


@dataclass
class Case:
    """One function of a few operator calls.

    Attributes
    ----------
    function : callable
        Relax expressions in (one per operand), a Relax expression or a tuple of them out.
    operands : tuple of Operand
        What it is called with.
    reference : callable, optional
        The same in NumPy, on float64 arrays. Without it stock TVM says what is right.
    symbols : dict
        Values of the symbolic dims, for the run.
    within : float, optional
        Tolerance in place of `comparison.TOLERANCES`.
    prepare : bool
        Run the preparing passes first.
    compiler : str
        Who should take the calls.
    options : dict
        Namespace → option → value, as in `compile`.
    """

    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    reference: Callable[..., Any] | None = None
    symbols: dict[str, int] = field(default_factory=dict)
    within: float | None = None
    prepare: bool = True
    compiler: str = "dnnl"
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: bool = field(default=False, init=False)

    # ---- the function -------------------------------------------------------------------------------
    @functools.cached_property
    def arrays(self) -> list[np.ndarray]:
        """Values of the operands."""
        return [op.draw(seed, self.symbols) for seed, op in enumerate(self.operands)]

    @functools.cached_property
    def module(self) -> tvm.IRModule:
        """The function as a Relax module."""
        dims = {name: tvm.tirx.Var(name, "int64") for name in self.symbols}
        exprs = []
        for i, (op, array) in enumerate(zip(self.operands, self.arrays, strict=True)):
            shape = [dims.get(d, d) for d in op.shape]
            exprs.append(
                make_constant(array, op.dtype) if op.constant else relax.Var(f"x{i}", relax.TensorType(shape, op.dtype))
            )
        builder = relax.BlockBuilder()
        with builder.function("main", [e for e in exprs if isinstance(e, relax.Var)]):
            with builder.dataflow():
                result = self.function(*exprs)
                if isinstance(result, tuple):
                    result = relax.Tuple([builder.emit(r) for r in result])
                result = builder.emit_output(result)
            builder.emit_func_output(result)
        return with_options(builder.get(), self.options)

    @functools.cached_property
    def prepared(self) -> relax.Function:
        """The function as the patterns see it."""
        return (byoc.Prepare()(self.module) if self.prepare else self.module)["main"]

    @functools.cached_property
    def partitioned(self) -> tvm.IRModule:
        """The module with its regions."""
        passes = [byoc.AnnotateExternalCompiler(self.compiler, prepare=self.prepare), byoc.PartitionGraph()]
        return tvm.transform.Sequential(passes)(self.module)

    @property
    def regions(self) -> list[relax.Function]:
        """The offloaded regions."""
        return [f for f in self.partitioned.functions.values() if codegen_of(f)]

    def graphs(self) -> list[PortableGraph]:
        """The regions as the library gets them."""
        options = self.options.get(self.compiler)
        return [
            lower_region(namespace(self.compiler), f, str(f.attrs["global_symbol"]), options=options)
            for f in self.regions
        ]

    def nodes(self) -> list[tuple[str, list[str]]]:
        """Kind and post-ops of the nodes that compute, over all regions; views and constants are left out."""
        found = []
        for graph in self.graphs():
            known = graph.constant_tensors()
            found += [
                (n.kind, [op.alg for op in n.post_ops])
                for n in graph.nodes
                if n.kind not in ("reshape", "permute", "slice") and not known.issuperset(n.outputs)
            ]
        return found

    # ---- what must hold -----------------------------------------------------------------------------
    def offloads(self, count: int | None = None) -> Case:
        """Some calls were offloaded (exactly ``count`` of them), and with ``count=None`` no call was left."""
        inside = sum(1 for f in self.regions for _ in _calls_inside(f))
        assert inside > 0, f"nothing was offloaded: {self.reasons()}"
        if count is None:
            self.keeps(0)
        else:
            assert inside == count, f"{inside} calls were offloaded\n{self.partitioned}"
        return self

    def keeps(self, count: int) -> Case:
        """So many operator calls stayed with TVM."""
        kept = [call.op.name for f in self._host_functions() for _, call in op_calls(f)]
        assert len(kept) == count, f"left with TVM: {kept}: {self.reasons()}"
        return self

    def becomes(self, *nodes: tuple[str, list[str]] | str) -> Case:
        """The regions are these nodes (kind, or kind and post-ops), in order."""
        wanted = [(n, []) if isinstance(n, str) else n for n in nodes]
        assert self.nodes() == wanted, f"{self.nodes()}\nis not {wanted}"
        return self

    def is_refused(self, reason: str) -> Case:
        """Nothing is offloaded, and one call's verdict says why."""
        reasons = self.reasons()
        assert any(reason in r for r in reasons), f"expected {reason!r}, got {reasons}"
        assert not self.regions
        self.refused = True
        return self

    def is_not(self, pattern: str, reason: str) -> Case:
        """The named pattern fits the function's calls, but its check refuses for ``reason``."""
        ns = namespace(self.compiler)
        match = match_annotations(ns.patterns[pattern], self.prepared)
        assert match is not None, f"{pattern} does not fit at all\n{self.prepared}"
        refusal = ask_pattern(ns, ns.patterns[pattern], match)
        assert refusal is not None, f"{pattern} was taken"
        assert reason in refusal.reason
        return self

    def reasons(self) -> list[str]:
        """Why each call of the (prepared) function stays, one by one."""
        verdicts = [ask(namespace(self.compiler), call) for _, call in op_calls(self.prepared)]
        return [v.reason for v in verdicts if v is not None]

    def run(self, partitioned: bool = True) -> list[np.ndarray]:
        """The results, computed through our pipeline or by TVM alone."""
        if partitioned:
            pipeline = relax.get_pipeline("byoc", strict=True)  # what partitioning took cannot come back unseen
            executable = tvm.compile(self.partitioned, "llvm", relax_pipeline=pipeline)
        else:
            executable = tvm.compile(self.module, "llvm")
        machine = relax.VirtualMachine(executable, tvm.cpu())
        pairs = zip(self.operands, self.arrays, strict=True)
        result = machine["main"](*[tvm.runtime.tensor(a) for op, a in pairs if not op.constant])
        return [t.numpy() for t in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]

    def matches(self) -> Case:
        """The results are right, and a region computed them, but for a case that `is_refused`."""
        assert self.regions or self.refused, f"nothing was offloaded: {self.reasons()}"
        if self.reference is None:
            wanted = self.run(partitioned=False)
        else:
            wide = [a.astype("float64") if a.dtype.kind not in "biu" else a for a in self.arrays]
            with np.errstate(all="ignore"):
                result = self.reference(*wide)
            wanted = list(result) if isinstance(result, (tuple, list)) else [result]
        types = self.module["main"].ret_ty
        dtypes = [dtype_of(ty) for ty in (types.fields if isinstance(types, relax.TupleType) else [types])]
        with np.errstate(all="ignore"):
            rounded = [np.asarray(w).astype(_numpy_dtype(d)) for w, d in zip(wanted, dtypes, strict=True)]
        wrong = differences(self.run(), rounded, self.within)
        assert not wrong, wrong
        return self

    def _host_functions(self) -> Iterator[relax.Function]:
        for f in self.partitioned.functions.values():
            if isinstance(f, relax.Function) and not codegen_of(f):
                yield f


def _calls_inside(region: relax.Function) -> Iterator[Any]:
    """Operator calls of a region, inside its composites."""
    local = {}
    for var, value in bindings_of(region):
        if isinstance(value, relax.Function):
            local[var] = value
        elif isinstance(value, relax.Call) and value.op in local:
            yield from op_calls(local[value.op])


def assert_right(got: Any, want: Any, tolerance: float | None = None, **rule: Any) -> None:
    """A result is the wanted one, by the rule of `runtime.comparison`; further arguments are those of `difference`."""
    wrong = difference(got, want, tolerance, **rule)
    assert not wrong, wrong


def number(value: float, dtype: str = "float32") -> relax.Expr:
    """A constant of rank 0."""
    return make_constant(np.asarray(value, _numpy_dtype(dtype)), dtype)


def accept(name: str, function: Callable[..., Any], *operands: Operand, marks: Any = (), **options: Any) -> Any:
    """One row of a table of cases that must be offloaded whole and be right; ``options`` are `Case`'s."""
    return pytest.param(Case(function, operands, **options), id=name, marks=marks)


def refuse(name: str, reason: str, function: Callable[..., Any], *operands: Operand, **options: Any) -> Any:
    """One row of a table of cases that must stay with TVM for ``reason``."""
    return pytest.param(Case(function, operands, **options), reason, id=name)


def table_tests(accepted: Sequence[Any], refused: Sequence[Any]) -> tuple[Callable[..., None], Callable[..., None]]:
    """A test for the rows of `accept`, and one for those of `refuse`."""

    @pytest.mark.parametrize("case", accepted)
    def test_accepted(case: Case) -> None:
        case.offloads().matches()

    @pytest.mark.parametrize(("case", "reason"), refused)
    def test_refused(case: Case, reason: str) -> None:
        case.is_refused(reason)

    return test_accepted, test_refused
