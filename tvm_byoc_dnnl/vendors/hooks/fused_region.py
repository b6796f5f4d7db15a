"""Regions with fused operators: each becomes a call of the PrimFunc that its compute and schedule make."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from ...core.vendor_code import calling, expect
from ...core.verdict import Reject, require
from ...ir.relax_utils import bindings_of, composite_of
from ...regions.failure import describe
from ...regions.inline import flatten_region
from ..namespace import FusedOp, Namespace
from .primfunc_call import fits, with_body


def fused_ops_in(ns: Namespace, region: relax.Function) -> list[FusedOp]:
    """The fused operators among the composites of a region."""
    found = (_fused_op(ns, value) for _, value in bindings_of(region) if isinstance(value, relax.Function))
    return [op for op in found if op is not None]


def _fused_op(ns: Namespace, composite: relax.Function) -> FusedOp | None:
    compiler, _, name = composite_of(composite).partition(".")
    return ns.fused_ops.get(name) if compiler == ns.name else None


def lower_fused_region(ns: Namespace, region: relax.Function, builder: relax.BlockBuilder) -> relax.Function:
    """A region whose fused operators are calls of PrimFuncs, which ``builder`` receives.

    Raises
    ------
    Reject
        If a compute or a schedule fails, or the compute makes something else than the subgraph did.
    """

    def lowered(composite: relax.Function) -> relax.Function:
        op = _fused_op(ns, composite)
        return composite if op is None else _lower(ns, op, composite, builder)

    return flatten_region(region, lowered)


def _lower(ns: Namespace, op: FusedOp, composite: relax.Function, builder: relax.BlockBuilder) -> relax.Function:
    from ...te import TEGraph, TENode, schedule_te, translate_to_te  # not at import: few users need it
    from ...te.graph import stages_of

    who = f"fused op {ns.name}.{op.name}"
    target = tvm.target.Target.current(allow_none=False)
    order = None
    if op.compute is None:
        graph, args = translate_to_te((builder.get(), composite), target), list(composite.params)
    else:
        match = _Match(ns, op, composite)
        operands = _Operands()
        inputs = [operands.add(match.found[leaf]) for leaf in op.inputs]
        tensors = _compute(who, op, inputs, match)
        stages = tuple(stages_of(tensors))
        node = TENode(op.name, op.name, stages)
        args, order = operands.args, match.order()
        graph = TEGraph(operands.tensors, tensors, [], [node], [a.ty for a in args], target)
    primfunc, schedule = graph.to_primfunc(), op.schedule
    if schedule is not None:
        try:
            with calling("it"):
                primfunc = schedule_te(graph, target, lambda sch, _graph: schedule(sch))
        except Exception as error:
            raise Reject(f"the schedule of {who} failed: {describe(error)}") from error
    return with_body(composite, graph.call(builder, args, primfunc), order)


def _compute(who: str, op: FusedOp, inputs: list[Any], match: _Match) -> list[te.Tensor]:
    assert op.compute is not None
    wanted = inspect.signature(op.compute).parameters
    try:
        with calling("it"):
            made = op.compute(*inputs, **{name: call for name, call in match.calls().items() if name in wanted})
    except Exception as error:
        raise Reject(f"the compute of {who} failed: {describe(error)}") from error
    expect(made, (te.Tensor, Sequence), f"the compute of {who}", "a te.Tensor, or one for each result")
    tensors = [made] if isinstance(made, te.Tensor) else list(made)
    for tensor in tensors:
        expect(tensor, te.Tensor, f"the compute of {who}", "a te.Tensor, or one for each result")
    require(len(tensors) == len(op.outputs), f"the compute of {who} made {len(tensors)} results, not {len(op.outputs)}")
    for tensor, output in zip(tensors, op.outputs, strict=True):
        ty = match.found[output].ty
        got = f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
        require(fits(str(tensor.dtype), list(tensor.shape), ty), f"the compute of {who} made {got}, expected {ty}")
    return [_written(tensor, tensors[:i]) for i, tensor in enumerate(tensors)]


def _written(tensor: te.Tensor, others: list[te.Tensor]) -> te.Tensor:
    """``tensor``, or a copy of it where it is an input, or another result: a PrimFunc writes each result by itself."""
    if not isinstance(tensor.op, te.PlaceholderOp) and not any(tensor.same_as(other) for other in others):
        return tensor
    return te.compute(tensor.shape, lambda *index: tensor(*index), "copy")


class _Match:
    """The pattern, found again in a composite's body."""

    def __init__(self, ns: Namespace, op: FusedOp, composite: relax.Function) -> None:
        self._op, self._composite = op, composite
        self._values = dict(bindings_of(composite))
        calls = [v for v, value in self._values.items() if isinstance(value, relax.Call)]
        found = ns.patterns[op.name].pattern.extract_matched_expr(calls[-1], self._values)
        require(found is not None, f"the composite {composite_of(composite)} no longer looks like its pattern")
        self.found = {p: self._values.get(found[p], found[p]) for p in (*op.outputs, *op.annotations.values())}
        self.found.update((leaf, found[leaf]) for leaf in op.inputs)

    def calls(self) -> dict[str, Any]:
        """Annotation name → matched expression."""
        return {name: self.found[part] for name, part in self._op.annotations.items()}

    def order(self) -> list[int]:
        """For each result of the composite, which output of the operator it is."""
        result = self._composite.body.body
        made = [self.found[part] for part in self._op.outputs]
        variables = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        return [next(i for i, m in enumerate(made) if m.same_as(self._values[v])) for v in variables]


class _Operands:
    """The inputs of a match as a compute wants them: tensors, lists of them for tuples, dims for shapes."""

    def __init__(self) -> None:
        self.tensors: list[te.Tensor] = []
        self.args: list[Any] = []

    def add(self, expr: Any) -> Any:
        """One input."""
        if isinstance(expr, relax.Tuple):
            return [self.add(field) for field in expr.fields]
        if isinstance(expr.ty, relax.TupleType):
            items = (relax.TupleGetItem(expr, i) for i in range(len(expr.ty.fields)))
            return [self.add(relax.BlockBuilder().normalize(item)) for item in items]
        if isinstance(expr.ty, relax.ShapeType):
            values = expr.values if isinstance(expr, relax.ShapeExpr) else expr.ty.values
            return [int(d) if isinstance(d, tirx.IntImm) else d for d in values]
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        require(isinstance(expr.ty.shape, relax.ShapeExpr), f"an input is {expr.ty}; its shape must be known")
        self.args.append(expr)
        self.tensors.append(te.placeholder(expr.ty.shape.values, str(expr.ty.dtype), f"input_{len(self.tensors)}"))
        return self.tensors[-1]
