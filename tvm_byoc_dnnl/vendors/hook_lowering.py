"""Regions → calls of PrimFuncs, by a namespace's fused operators and its ``relax_to_tir`` hook.

How a region calls its PrimFunc: parameters, symbols, constants and results in one fixed order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import relax, te, tirx

from ..core.own_process import apart
from ..core.verdict import Failure, Reject, all_or_each, calling, describe, expect, require, run_pass
from ..ir.functions import flatten_region, inline_functions
from ..ir.relax_utils import bindings_in, bindings_of, codegen_of, composite_of, constants_in, global_var, shape_dims
from ..ir.tvm_compat import dtype_of
from ..ir.walker import Substitute
from . import FusedOp, Namespace, TargetHooks
from .namespaces import OPTIONS_ATTR


def with_known_shapes(func: relax.Function) -> relax.Function:
    """``func`` with the values of shape arguments in place of their variables; many lowerings need that."""
    shapes = [v for v in relax.analysis.all_vars(func) if isinstance(v.ty, relax.ShapeType) and v.ty.values is not None]
    return Substitute({var: relax.ShapeExpr(var.ty.values) for var in shapes}).function(func)


def region_arguments(func: relax.Function) -> list[relax.Expr]:
    """The arguments that a region passes to its PrimFunc: tensors, and symbols that no tensor's dims give."""
    found: dict[Any, None] = dict.fromkeys(e for p in func.params for e in _arguments(p))
    tensors = [e for e in found if isinstance(e.ty, relax.TensorType)]
    bound = {d for t in tensors for d in shape_dims(t.ty) or () if isinstance(d, tirx.Var)}
    return [e for e in found if e not in bound]


def _arguments(expr: Any) -> Iterator[Any]:
    ty = expr.ty
    if isinstance(ty, relax.TupleType):
        for i in range(len(ty.fields)):
            yield from _arguments(relax.BlockBuilder().normalize(relax.TupleGetItem(expr, i)))
    elif isinstance(ty, relax.ShapeType):
        require(ty.values is not None, f"the shape argument {expr} has unknown values")
        for dim in ty.values:
            yield from tirx.analysis.undefined_vars(dim)
    elif isinstance(ty, relax.TensorType) or tvm.ir.is_prim_expr(expr):
        yield expr
    else:
        raise Reject(f"argument {expr} is {ty}; a PrimFunc takes tensors and numbers")


def region_constants(func: relax.Function) -> list[relax.Expr]:
    return list(dict.fromkeys(constants_in(flatten_region(func))))


def call_primfunc(func: relax.Function, callee: Any, primfunc: tirx.PrimFunc) -> relax.Expr:
    """A ``call_tir`` of ``callee``, a ``primfunc`` that computes all of the region ``func``, on its parameters.

    Its parameters are `region_arguments`, then none or all of `region_constants`, then the results, tuples flattened;
    else `Reject`.
    """
    args, types = region_arguments(func), _result_types(func.ret_ty)
    constants = region_constants(func)
    if len(primfunc.params) == len(args) + len(constants) + len(types):
        args = args + constants
    require(
        len(primfunc.params) == len(args) + len(types),
        f"the PrimFunc has {len(primfunc.params)} parameters; expected {len(args)} inputs, none or all of "
        f"{len(constants)} constants, and {len(types)} results",
    )
    for number, (param, ty) in enumerate(zip(primfunc.params, [*(a.ty for a in args), *types], strict=True)):
        _check_parameter(number, param, ty)
    return relax.op.call_tir(callee, relax.Tuple(args), types[0] if len(types) == 1 else types)


def with_body(func: relax.Function, expr: relax.Expr, order: Sequence[int] | None = None) -> relax.Function:
    """The function ``func``, a region or a composite, with another body: a tensor, or a flat tuple, of ``func.params``.

    ``order`` says which of the tensors are the results of ``func``, tuples flattened; by default all.
    """
    block = relax.BlockBuilder()
    expr = block.normalize(expr)
    result = relax.Var("result", expr.ty)
    is_tuple = isinstance(expr.ty, relax.TupleType)
    parts: list[Any] = [relax.TupleGetItem(result, i) for i in range(len(expr.ty.fields))] if is_tuple else [result]
    parts = parts if order is None else [parts[i] for i in order]
    count = len(_result_types(func.ret_ty))
    require(len(parts) == count, f"{len(parts)} results came back, expected {count}")
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, expr)])], _nested(func.ret_ty, iter(parts)))
    new = relax.Function(func.params, body, func.ret_ty, func.is_pure)
    return relax.utils.copy_with_new_vars(block.normalize(new))


def _result_types(ty: Any) -> list[relax.TensorType]:
    if isinstance(ty, relax.TupleType):
        return [t for f in ty.fields for t in _result_types(f)]
    if not isinstance(ty, relax.TensorType) or shape_dims(ty) is None:
        raise Reject(f"a result is {ty}; a PrimFunc makes tensors of a shape that is known before it runs")
    return [ty]


def _nested(ty: Any, parts: Iterator[Any]) -> Any:
    return relax.Tuple([_nested(f, parts) for f in ty.fields]) if isinstance(ty, relax.TupleType) else next(parts)


def _check_parameter(number: int, param: Any, ty: Any) -> None:
    shape = getattr(param, "shape", None)
    if isinstance(ty, relax.TensorType):
        dims = ", ".join(str(int(d) if isinstance(d, tirx.IntImm) else d) for d in shape or ())
        what = str(param.ty) if shape is None else f"{dtype_of(param)}[{dims}]"
        is_right = shape is not None and fits(dtype_of(param), list(shape), ty)
    else:
        what, is_right = "a buffer", shape is None
    require(is_right, f"parameter {number} of the PrimFunc, {param.name}, is {what}; expected {ty}")


def fits(dtype: str, shape: list[Any], ty: Any) -> bool:
    """Whether a buffer of ``dtype`` and ``shape`` can hold a tensor of type ``ty``, as far as its dims are numbers."""
    dims = shape_dims(ty)
    if dtype != dtype_of(ty) or dims is None or len(shape) != len(dims):
        return False
    pairs = zip(shape, dims, strict=True)
    return all(int(a) == b for a, b in pairs if isinstance(a, tirx.IntImm) and isinstance(b, int))


def fused_ops_in(ns: Namespace, region: relax.Function) -> list[FusedOp]:
    found = (_fused_op(ns, value) for _, value in bindings_of(region) if isinstance(value, relax.Function))
    return [op for op in found if op is not None]


def _fused_op(ns: Namespace, composite: relax.Function) -> FusedOp | None:
    compiler, _, name = composite_of(composite).partition(".")
    return ns.fused_ops.get(name) if compiler == ns.name else None


def lower_fused_region(ns: Namespace, region: relax.Function, builder: relax.BlockBuilder) -> relax.Function:
    """A region whose fused operators are calls of PrimFuncs, which ``builder`` receives; `Reject` if one fails."""

    def lowered(composite: relax.Function) -> relax.Function:
        op = _fused_op(ns, composite)
        return composite if op is None else _lower(ns, op, composite, builder)

    return flatten_region(region, lowered)


def _lower(ns: Namespace, op: FusedOp, composite: relax.Function, builder: relax.BlockBuilder) -> relax.Function:
    from ..te import TEGraph, TENode, schedule_te, translate_to_te  # not at import: few users need it
    from ..te.graph import stages_of

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
    def __init__(self, ns: Namespace, op: FusedOp, composite: relax.Function) -> None:
        self._op, self._composite = op, composite
        self._values = dict(bindings_of(composite))
        calls = [v for v, value in self._values.items() if isinstance(value, relax.Call)]
        found = ns.patterns[op.name].pattern.extract_matched_expr(calls[-1], self._values)
        require(found is not None, f"the composite {composite_of(composite)} no longer looks like its pattern")
        self.found = {p: self._values.get(found[p], found[p]) for p in (*op.outputs, *op.annotations.values())}
        self.found.update((leaf, found[leaf]) for leaf in op.inputs)

    def calls(self) -> dict[str, Any]:
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


#: attribute of a region that a hook leaves as it is: why
REFUSED_ATTR = "byoc.refused"


@dataclass(frozen=True)
class Lowered:
    body: relax.Function
    kernels: Mapping[Any, tirx.PrimFunc]


class HookLowering:
    """The regions of one namespace while they are lowered for a target.

    ``options`` are what `get_target_options` reads. ``done`` has what takes the place of a region, and ``failures`` why
    one cannot be lowered; the others are left to a codegen.
    """

    def __init__(self, ns: Namespace, target: tvm.target.Target, options: Mapping[str, Any]) -> None:
        self.ns, self.target, self.options = ns, target, options
        self.done: dict[Any, Lowered] = {}
        self.failures: dict[Any, Failure] = {}

    def lower(self, regions: Mapping[Any, relax.Function], lookup: Callable[[Any], Any]) -> None:
        """Lower regions; ``lookup`` finds the functions that they call."""
        regions = {gv: with_known_shapes(f) for gv, f in regions.items()}
        fused = {gv: f for gv, f in regions.items() if fused_ops_in(self.ns, f)}
        for gv, func in fused.items():
            self._guarded(gv, partial(self._lower_fused, gv, func))
        others = [gv for gv in regions if gv not in fused]
        if self.ns.hooks is not None and others:
            self._relax_to_tir(self.ns.hooks, others, regions, lookup)

    def _guarded(self, gv: Any, lower: Callable[[], None]) -> None:
        try:
            with calling("a fused operator, or relax_to_tir,"):
                lower()
        except Exception as error:
            self.failures[gv] = Failure("lower", describe(error))

    def _lower_fused(self, gv: Any, region: relax.Function) -> None:
        builder = relax.BlockBuilder()
        with self.target:
            body = lower_fused_region(self.ns, region, builder)
        self._take(gv, body, builder.get())

    def _relax_to_tir(
        self, hooks: TargetHooks, names: Sequence[Any], regions: Mapping[Any, Any], lookup: Callable[[Any], Any]
    ) -> None:
        def lower(some: Sequence[Any]) -> tvm.IRModule:
            functions = {gv: regions[gv] for gv in some}
            called = {c for f in functions.values() for c in relax.analysis.all_global_vars(f)}
            mod = tvm.IRModule({**functions, **{c: lookup(c) for c in called}}).with_attr(OPTIONS_ATTR, self.options)
            with self.target:
                if self.ns.isolate:  # tried there, and done here: TVM cannot pass such modules between processes
                    apart(lambda: run_pass(hooks.relax_to_tir, mod, "relax_to_tir") and None, "relax_to_tir")
                return run_pass(hooks.relax_to_tir, mod, "relax_to_tir")

        made, errors, _ = all_or_each(names, lower)
        self.failures.update((gv, Failure("lower", describe(error))) for gv, error in errors.items())
        for some, result in made:
            for gv in some:
                self._guarded(gv, partial(self._read, gv, regions[gv], result))

    def _read(self, gv: Any, region: relax.Function, result: tvm.IRModule) -> None:
        func = {g.name_hint: f for g, f in result.functions.items()}.get(gv.name_hint)
        if isinstance(func, tirx.PrimFunc):
            callee = global_var(gv.name_hint, func)
            self.done[gv] = Lowered(with_body(region, call_primfunc(region, callee, func)), {callee: func})
            return
        if not isinstance(func, relax.Function):
            raise Reject("relax_to_tir removed it from its module")
        if func.attrs and REFUSED_ATTR in func.attrs:
            raise Reject(str(func.attrs[REFUSED_ATTR]))
        helpers = {g: f for g, f in result.functions.items() if isinstance(f, relax.Function) and not codegen_of(f)}
        body = inline_functions(flatten_region(func), helpers)
        if relax.analysis.all_global_vars(body):
            self._take(gv, body, result)
        else:
            require(self.ns.codegen is not None, "relax_to_tir left it as it was")

    def _take(self, gv: Any, body: relax.Function, mod: tvm.IRModule) -> None:
        kernels = {callee: mod[callee] for callee in relax.analysis.all_global_vars(body)}
        for callee, func in kernels.items():
            require(isinstance(func, tirx.PrimFunc), f"{callee.name_hint}, which it calls, is no PrimFunc")
        apart = self.ns.hooks is not None and self.ns.hooks.builds_apart
        for binding in bindings_in(body):
            _check_call(binding.value, kernels, apart)
        self.done[gv] = Lowered(body, kernels)


def _check_call(expr: Any, kernels: Mapping[Any, Any], apart: bool) -> None:
    if not isinstance(expr, relax.Call) or not any(a in kernels for a in expr.args):
        return
    op, callee = getattr(expr.op, "name", str(expr.op)), expr.args[0].name_hint
    require(op == "relax.call_tir", f"{callee} is called by {op}; expected relax.call_tir")
    require(
        len(expr.args) == 2 or not apart,
        f"the call of {callee} has symbols behind the results (tir_vars), which only TVM's own lowering can pass; "
        "pass them among the arguments",
    )
