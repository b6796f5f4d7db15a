"""An unscheduled TE graph: the compute of a Relax function in stages. A scheduler decides how it is run: the second
stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx

from ..core.errors import InputError, takes
from ..ir.tvm_compat import dtype_of, substitute


@dataclass(frozen=True)
class TEConstant:
    """A constant of the function: the placeholder that stands for it, and its value."""

    tensor: te.Tensor
    value: tvm.runtime.Tensor

    def numpy(self) -> np.ndarray:
        """The value as a NumPy array."""
        return self.value.numpy()


@dataclass(frozen=True)
class TENode:
    """One Relax call of the function.

    Attributes
    ----------
    op : str
        Name of the Relax op (or of the PrimFunc that it called).
    compute : str
        Name of the compute that was selected; ``"tvm"`` is TVM's legalisation.
    stages : tuple of te.Operation
        The stages that it added to the graph, producers first.
    """

    op: str
    compute: str
    stages: tuple[te.Operation, ...]

    @property
    def iterations(self) -> int:
        """Innermost iterations of all its stages; a symbolic extent counts as 1."""
        return sum(_iterations(stage) for stage in self.stages)

    @property
    def has_reduction(self) -> bool:
        """Whether one of its stages reduces over an axis."""
        return any(_reduce_axes(stage) for stage in self.stages)


@dataclass(eq=False)
class TEGraph:
    """A Relax function as TE tensors.

    The parameters of its PrimFunc are ``inputs``, ``constants`` and ``outputs``, in this order.

    Attributes
    ----------
    inputs : list of te.Tensor or tirx.Var
        One placeholder per tensor parameter, tuples flattened, in the order of the function's parameters.
        A symbol that comes from a shape or scalar parameter, and is not a plain dimension of an input tensor,
        stands here as a variable, at its parameter's place.
    outputs : list of te.Tensor
        The results, tuples flattened. All are distinct, and none is an input.
    constants : list of TEConstant
        The constants that the outputs need, in the order of their first use. One that is used twice is here
        once; a scalar that TVM's legaliser writes into the compute is not here.
    nodes : list of TENode
        The Relax calls in topological order.
    signature : list of relax.Type
        The types of the function's parameters, in the symbols of the graph.
    target : tvm.target.Target
        The target for which the computes were selected.
    """

    inputs: list[te.Tensor | tirx.Var]
    outputs: list[te.Tensor]
    constants: list[TEConstant]
    nodes: list[TENode] = field(default_factory=list)
    signature: list[Any] = field(default_factory=list)
    target: tvm.target.Target | None = None

    @property
    def anchor(self) -> TENode | None:
        """The call that a schedule should start from: reductions first, then the most iterations.

        None when the function computes nothing.
        """
        return max(self.nodes, key=lambda n: (n.has_reduction, n.iterations), default=None)

    @cached_property
    def name(self) -> str:
        """A function name that equal graphs share and different graphs do not.

        The ops that it is made of, and a hash of the structure.
        """
        ops = [node.op.rsplit(".", 1)[-1] for node in self.nodes]
        words = ops if len(ops) <= 4 else [*ops[:3], f"{len(ops) - 3}_more"]
        digest = tvm_ffi.structural_hash(self.to_primfunc(), map_free_vars=True)
        return "_".join(["te", *words, f"{digest:016x}"[:12]])

    def to_primfunc(self, global_symbol: str | None = None) -> tirx.PrimFunc:
        """The graph as an unscheduled TIR function.

        Parameters
        ----------
        global_symbol : str, optional
            Exported name. Without one the function is private, as a Relax module needs it.
        """
        constants = [constant.tensor for constant in self.constants]
        func = te.create_prim_func([*self.inputs, *constants, *self.outputs], "int64")
        func = func.without_attr("global_symbol")
        return func.with_attr("global_symbol", global_symbol) if global_symbol else func

    def blocks(self, sch: s_tir.Schedule) -> dict[te.Operation, s_tir.schedule.SBlockRV]:
        """The blocks of an unscheduled :meth:`to_primfunc`, by stage.

        Two stages may have one name; their blocks do not, so this is how a scheduler finds its blocks.

        Parameters
        ----------
        sch : s_tir.Schedule
            A schedule of the function, before its first step.
        """
        root = sch.mod["main"].body.block.name_hint
        whole = sch.get_sblock(root)  # a function of one extern stage has no root above it
        found = iter(sch.get_child_blocks(whole) if root == "root" else [whole])
        blocks: dict[te.Operation, s_tir.schedule.SBlockRV] = {}
        for stage in stages_of(self.outputs):  # the order in which TE makes blocks
            together = isinstance(stage, te.ExternOp) or _reduce_axes(stage)
            for _ in range(1 if together else stage.num_outputs):
                blocks[stage] = next(found)
        return blocks

    def call(
        self, builder: relax.BlockBuilder, args: Sequence[relax.Expr], primfunc: tirx.PrimFunc | None = None
    ) -> relax.Call:
        """A Relax call that computes this graph: ``call_tir`` with the constants bound.

        Parameters
        ----------
        builder : relax.BlockBuilder
            Receives the PrimFunc.
        args : sequence of relax.Expr
            The arguments of the translated function (variables, tuples and shapes as they were).
        primfunc : tirx.PrimFunc, optional
            The scheduled form of :meth:`to_primfunc`, which is the default.

        Returns
        -------
        relax.Call
            One tensor, or a flat tuple of the outputs.
        """
        if len(args) != len(self.signature):
            raise InputError(f"{self.name}: got {len(args)} arguments, expected {len(self.signature)}")
        tensors: list[relax.Expr] = []
        symbols: dict[tirx.Var, Any] = {}
        for ty, arg in zip(self.signature, args, strict=True):
            _bind_argument(ty, arg, tensors, symbols)
        rest = iter(tensors)
        actual = [next(rest) if isinstance(i, te.Tensor) else symbols[i] for i in self.inputs]
        actual += [relax.const(constant.value) for constant in self.constants]
        types = [relax.TensorType([substitute(d, symbols) for d in out.shape], dtype_of(out)) for out in self.outputs]
        gvar = builder.add_func(self.to_primfunc() if primfunc is None else primfunc, self.name)
        return relax.op.call_tir(gvar, relax.Tuple(actual), types)

    def to_dot(self) -> str:
        ids: dict[te.Operation, str] = {}
        lines = [f'digraph "{self.name}" {{', "  rankdir=TB; node [shape=box, style=rounded];"]

        def declare(op: te.Operation, label: str, style: str, indent: str = "  ") -> None:
            ids[op] = f"s{len(ids)}"
            lines.append(f'{indent}{ids[op]} [label="{label}"{style}];')

        for tensor in self.inputs:
            if isinstance(tensor, te.Tensor):
                declare(tensor.op, format_tensor(tensor), ", shape=ellipse")
        for constant in self.constants:
            declare(constant.tensor.op, format_tensor(constant.tensor), ", shape=ellipse, style=dashed")
        for number, node in enumerate(self.nodes):
            bold = "bold" if node is self.anchor else "solid"
            lines.append(f'  subgraph cluster_{number} {{ label="{node.op} [{node.compute}]"; style={bold};')
            for stage in node.stages:
                declare(stage, format_stage(stage).replace(": ", r"\n", 1), "", "    ")
            lines.append("  }")
        for node in self.nodes:
            for stage in node.stages:
                producers = dict.fromkeys(tensor.op for tensor in reads(stage))
                lines += [f"  {ids[op]} -> {ids[stage]};" for op in producers]
        for number, out in enumerate(self.outputs):
            lines.append(f'  out{number} [label="output {number}", shape=plaintext];')
            lines.append(f"  {ids[out.op]} -> out{number};")
        return "\n".join([*lines, "}"])

    def __str__(self) -> str:
        anchor = self.anchor.op if self.anchor else "none"
        lines = [f"TEGraph {self.name} (target {self.target}, anchor {anchor})"]
        lines += [
            f"  input     {format_tensor(i) if isinstance(i, te.Tensor) else f'{i}: {dtype_of(i.ty)}'}"
            for i in self.inputs
        ]
        lines += [f"  constant  {format_tensor(constant.tensor)}" for constant in self.constants]
        for node in self.nodes:
            lines.append(f"  {node.op} [{node.compute}]")
            lines += [f"    {format_stage(stage)}" for stage in node.stages]
        lines += [f"  output    {format_tensor(out)}" for out in self.outputs]
        return "\n".join(lines)

    __repr__ = __str__


def hidden_reads(stage: te.Operation) -> list[te.Tensor]:
    """Tensors that an extern stage reads without declaring them as inputs, which some of TVM's own do."""
    found: list[te.Tensor] = []
    if isinstance(stage, te.ExternOp):
        tvm_ffi.structural_walk(stage.body, (te.Tensor, found.append), order="post")
    declared = {tensor.op for tensor in stage.input_tensors}
    return list({tensor.op: tensor for tensor in found if tensor.op not in declared}.values())


def reads(stage: te.Operation) -> list[te.Tensor]:
    return [*stage.input_tensors, *hidden_reads(stage)]


def stages_of(outputs: Iterable[te.Tensor], known: Iterable[te.Operation] = ()) -> list[te.Operation]:
    """The computing stages behind ``outputs`` that are not in ``known``, producers first."""
    seen = dict.fromkeys(known)
    order: list[te.Operation] = []
    stack = [(tensor.op, False) for tensor in reversed(list(outputs))]
    while stack:  # iterative: a graph may be deeper than Python's stack
        op, done = stack.pop()
        if done:
            order.append(op)
        elif op not in seen:
            seen[op] = None
            stack.append((op, True))
            stack += [(tensor.op, False) for tensor in reversed(reads(op))]
    return [op for op in order if not isinstance(op, te.PlaceholderOp)]


def format_tensor(tensor: te.Tensor) -> str:
    return f"{tensor.op.name}: {dtype_of(tensor)}[{', '.join(str(_plain(d)) for d in tensor.shape)}]"


def format_stage(stage: te.Operation) -> str:
    """``name: dtype[shape]`` of a stage's result, and the axes that it reduces over."""
    outputs = [stage.output(i) for i in range(stage.num_outputs)]
    text = f"{stage.name}: " + ", ".join(format_tensor(out).split(": ", 1)[1] for out in outputs)
    if isinstance(stage, te.ExternOp):
        return text + " extern"
    axes = ", ".join(f"{axis.var.name}:{_plain(axis.dom.extent)}" for axis in _reduce_axes(stage))
    return f"{text} reduce({axes})" if axes else text


def _plain(dim: Any) -> Any:
    return int(dim) if isinstance(dim, (int, tirx.IntImm)) else dim


def _reduce_axes(stage: te.Operation) -> Sequence[Any]:
    return stage.reduce_axis if isinstance(stage, te.ComputeOp) else ()


def _iterations(stage: te.Operation) -> int:
    extents = [*stage.output(0).shape, *(axis.dom.extent for axis in _reduce_axes(stage))]
    return math.prod(plain for plain in map(_plain, extents) if isinstance(plain, int))


def _bind_argument(ty: Any, arg: relax.Expr, tensors: list[relax.Expr], symbols: dict[tirx.Var, Any]) -> None:
    if isinstance(ty, relax.TupleType):
        for i, inner in enumerate(ty.fields):
            item = arg.fields[i] if isinstance(arg, relax.Tuple) else relax.TupleGetItem(arg, i)
            _bind_argument(inner, item, tensors, symbols)
        return
    if isinstance(ty, relax.TensorType):
        tensors.append(arg)
        formal, actual = ty.shape.values, getattr(arg.ty.shape, "values", None)
    elif isinstance(ty, relax.ShapeType):
        formal, actual = ty.values, getattr(arg, "values", None) or getattr(arg.ty, "values", None)
    else:
        formal, actual = [ty], [arg]  # a scalar parameter: its variable is in the signature
    if actual is None or len(actual) != len(formal):
        raise InputError(f"argument {arg}: got {arg.ty}, expected {ty} with known dimensions")
    symbols.update({f: a for f, a in zip(formal, actual, strict=True) if isinstance(f, tirx.Var)})


Scheduler = Callable[[s_tir.Schedule, TEGraph], Any]


@takes(graph=TEGraph)
def schedule_te(
    graph: TEGraph, target: str | dict[str, Any] | tvm.target.Target = "llvm", scheduler: Scheduler | None = None
) -> tirx.PrimFunc:
    """Turn a TE graph into a scheduled PrimFunc.

    Parameters
    ----------
    graph : TEGraph
        The graph to schedule.
    target : str, dict or tvm.target.Target
        The target where it will run; the current target while the scheduler runs.
    scheduler : callable, optional
        ``scheduler(sch, graph)`` changes the ``s_tir.Schedule`` in place, or returns another one, or a PrimFunc.
        ``graph.anchor`` names the call to start from, ``graph.blocks(sch)`` finds its blocks. By default TVM's CPU
        rules are tried (matrix-vector product, reduction); where none applies the function stays as it is.

    Returns
    -------
    tirx.PrimFunc
        A private function, with the parameters of :meth:`TEGraph.to_primfunc`.
    """
    func = graph.to_primfunc()
    target = tvm.target.Target(target)
    with target:
        if scheduler is None:
            return _default(func, target)
        sch = s_tir.Schedule(func)
        result = scheduler(sch, graph)
    result = sch if result is None else result
    if isinstance(result, s_tir.Schedule):
        result = result.mod["main"]
    if not isinstance(result, tirx.PrimFunc):
        raise InputError(
            f"schedule_te: the scheduler returned {type(result).__name__}, expected None, a Schedule or a PrimFunc"
        )
    return _finish(result)


def _default(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    for rule in (s_tir.dlight.cpu.GEMV(), s_tir.dlight.cpu.Reduction()):
        try:
            sch = rule.apply(func, target, False)
        except s_tir.ScheduleError:  # the rule cannot finish it, as a function with two outputs
            continue
        if isinstance(sch, s_tir.Schedule):
            return _finish(sch.mod["main"])
    return func


def _finish(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
