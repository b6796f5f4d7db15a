"""Regions as functions: calls are outlined into functions, and calls of functions are replaced by their bodies.

`dissolve_regions` undoes partitioning so.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import StructuralKey

from ..core.tvm_fast import ByIdentity, is_a, items
from .relax_utils import blocks_in, free_name, global_var, is_host_function, static_shape, with_functions
from .tvm_compat import call_of, is_constant, make_var
from .walker import Substitute


class Block:
    """The readers in a dataflow block: the values that a group of bindings needs, and those that others need of it."""

    def __init__(self, block: Any) -> None:
        self._values: ByIdentity[Any] = ByIdentity()
        self._exported: ByIdentity[None] = ByIdentity()
        self._reads: ByIdentity[list[Any]] = ByIdentity()
        self._readers: ByIdentity[list[Any]] = ByIdentity()
        for binding in items(block.bindings):
            reader, value = binding.var, binding.value
            self._values[reader] = value
            self._reads[reader] = items(relax.analysis.free_vars(value))
            if not isinstance(reader, relax.DataflowVar):
                self._exported[reader] = None
            for var in self._reads[reader]:
                self._readers.setdefault(var, []).append(reader)

    def inputs(self, bindings: Sequence[Any]) -> list[Any]:
        own = ByIdentity.of((b.var, None) for b in bindings)
        return list(dict.fromkeys(v for b in bindings for v in self._reads[b.var] if v not in own))

    def outputs(self, bindings: Sequence[Any]) -> list[Any]:
        """Variables of ``bindings`` that others read, in order; none for dead code."""
        own = ByIdentity.of((b.var, None) for b in bindings)
        return [
            var
            for var in (b.var for b in bindings)
            if var in self._exported or any(reader not in own for reader in self._readers.get(var, ()))
        ]

    def neighbours(self, bindings: Sequence[Any]) -> list[Any]:
        own = ByIdentity.of((b.var, None) for b in bindings)
        beside = [*self.inputs(bindings), *(r for var in own for r in self._readers.get(var, ()) if r not in own)]
        return [self._values[var] for var in beside if var in self._values]


def dataflow_blocks(mod: tvm.IRModule) -> Iterator[tuple[Any, Any]]:
    """``(function, block)`` for every dataflow block of the host, in branches and local functions too; main's first."""
    hosts = [(gv, func) for gv, func in mod.functions.items() if is_host_function(func)]
    for gv, func in sorted(hosts, key=lambda host: (host[0].name_hint != "main", host[0].name_hint)):
        yield from ((gv, block) for block in blocks_in(func) if isinstance(block, relax.DataflowBlock))


@dataclass(frozen=True)
class Body:
    """The replacement of a call: the body of ``func``, in which ``callees`` may have other global variables."""

    func: relax.Function
    callees: Mapping[Any, Any] = field(default_factory=dict)


def _no_local_functions(func: relax.Function) -> Any:
    raise ValueError(f"a body to inline has a local function that nothing takes over:\n{func}")


def inline_calls(
    func: relax.Function, bodies: Mapping[Any, Body], lift: Callable[[relax.Function], Any] = _no_local_functions
) -> relax.Function:
    """Replace calls in dataflow blocks by ``bodies``, which are by the variables that hold their results.

    The other variables keep the names of the body where those are free. ``lift(function)`` makes a local function of a
    body (a region's composite) a global one.
    """
    return _Inliner(func, lambda binding: bodies.get(binding.var), lift, relax.DataflowVar).function(func)


def inline_functions(func: relax.Function, bodies: Mapping[Any, relax.Function]) -> relax.Function:
    """``func`` with every call of the functions in ``bodies`` replaced by the body, without dataflow blocks.

    ``Function.inline_functions`` would leave the callee's symbols in types that are written out, as ``call_tir``'s are.
    """
    plain = {gv: Body(_without_dataflow(body)) for gv, body in bodies.items()}
    while not bodies.keys().isdisjoint(relax.analysis.all_global_vars(func)):
        func = _without_dataflow(func)
        func = _Inliner(func, lambda b: plain.get(getattr(b.value, "op", None)), _no_local_functions).function(func)
    return func


def flatten_region(
    func: relax.Function, composite: Callable[[relax.Function], relax.Function] = lambda f: f
) -> relax.Function:
    """A region without local functions: each call of a composite is replaced by the body of ``composite(function)``."""
    region = tvm.ir.GlobalVar("region")
    lifted = relax.transform.LambdaLift()(tvm.IRModule({region: func}))
    composites = {gv: composite(f) for gv, f in lifted.functions.items() if gv != region}
    return inline_functions(lifted[region], composites)


def inline_regions(mod: tvm.IRModule, bodies: Mapping[Any, relax.Function]) -> tvm.IRModule:
    """Replace every call of a region by a body, in all functions of the host, and drop the regions."""
    if not bodies:
        return mod
    functions = {gv: f for gv, f in mod.functions.items() if gv not in bodies}
    functions.update((gv, inline_functions(f, bodies)) for gv, f in functions.items() if is_host_function(f))
    mod = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    return relax.transform.CanonicalizeBindings()(relax.transform.ConvertToDataflow(min_size=1)(mod))


def _without_dataflow(func: relax.Function) -> relax.Function:
    # A body of several blocks cannot stand inside a dataflow block.
    return relax.transform.ToNonDataflow()(tvm.IRModule({"main": func}))["main"]


class _Inliner(Substitute):
    """Puts bodies in the place of bindings, their variables as ``kind``."""

    def __init__(
        self,
        func: relax.Function,
        body_of: Callable[[Any], Body | None],
        lift: Callable[..., Any],
        kind: Any = relax.Var,
    ) -> None:
        super().__init__({})
        self._body_of = body_of
        self._lift = lift
        self._kind = kind
        self._builder = relax.BlockBuilder()
        self._taken = {v.name for v in relax.analysis.all_vars(func)}

    def bindings(self, binding: Any) -> Iterable[Any]:
        body = None if isinstance(binding, relax.MatchCast) else self._body_of(binding)
        if body is None:
            yield from super().bindings(binding)
            return
        args = [self.of(a) for a in binding.value.args]
        func = relax.utils.copy_with_new_vars(body.func)
        seq = func.bind_params(dict(zip(func.params, args, strict=True))).body  # the symbols in their types, too
        for old, new in body.callees.items():
            self.put(old, new)
        result = seq.body
        is_bound = False
        for inner in [b for block in seq.blocks for b in block.bindings]:
            if isinstance(inner.value, relax.Function):
                self.put(inner.var, self._lift(inner.value))
                continue
            is_result = inner.var.same_as(result)
            is_bound = is_bound or is_result
            var = binding.var if is_result else self._kind(free_name(inner.var.name, self._taken), inner.var.ty)
            self.put(inner.var, var)
            yield from super().bindings(inner)
        if not is_bound:
            yield relax.VarBinding(binding.var, self._builder.normalize(self.of(result)))


def dissolve_regions(mod: tvm.IRModule, regions: Sequence[Any]) -> tvm.IRModule:
    """Undo the partitioning of some regions: the functions that called them call their composites instead."""
    lifted: dict[Any, Any] = {}
    taken = {gv.name_hint for gv in mod.get_global_vars()}
    seen: dict[StructuralKey, Any] = {}

    def lift(composite: relax.Function) -> Any:
        key = StructuralKey(composite)
        if key not in seen:
            seen[key] = global_var(free_name("composite", taken, 0), composite)
            lifted[seen[key]] = composite
        return seen[key]

    calls: dict[Any, dict[Any, Body]] = {}
    for host, block in dataflow_blocks(mod):
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call) and binding.value.op in regions:
                calls.setdefault(host, {})[binding.var] = Body(mod[binding.value.op])
    hosts = {host: inline_calls(mod[host], bodies, lift) for host, bodies in calls.items()}
    kept = {gv: f for gv, f in mod.functions.items() if gv not in regions}
    mod = tvm.IRModule(kept, attrs=mod.attrs, global_infos=mod.global_infos)
    return with_functions(mod, {**lifted, **_tidied(hosts)})


def _tidied(functions: Mapping[Any, relax.Function]) -> dict[Any, relax.Function]:
    names = [gv.name_hint for gv in functions]
    passes = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination(names)]
    tidy = tvm.transform.Sequential(passes)(tvm.IRModule(functions))
    return {gv: tidy[gv.name_hint] for gv in functions}


class RegionBuilder:
    """One group of bindings as a function: calls of composite functions, which ``lookup`` finds, and their tuples."""

    def __init__(self, bindings: Iterable[Any], outputs: Sequence[Any], lookup: Callable[[Any], Any]) -> None:
        self._lookup = lookup
        self._builder = relax.BlockBuilder()
        self._bindings: list[Any] = []
        self._locals: ByIdentity[Any] = ByIdentity()  # composite's global variable -> local variable
        self._values: ByIdentity[Any] = ByIdentity()  # variable of the host -> expression inside
        self._params: list[Any] = []
        #: variables of the host that hold the results
        self.outputs = list(outputs)
        #: names of the variables of the host that are bound inside
        self.names: list[str] = []
        #: the host's arguments, in the order of the parameters: also fields of tuples, which it has to bind first
        self.arguments: list[Any] = []
        wiring: list[Any] = []
        for binding in bindings:
            value = binding.value
            if is_a(value, relax.Call):
                args = [self._operand(a) for a in items(value.args)]
                wiring.append((value.op, *map(_structure, args)))
                value = _called(self._local(value.op), args, value.ty)
            elif is_a(value, relax.TupleGetItem):
                value = relax.TupleGetItem(self._operand(value.tuple_value), value.index)
                wiring.append((_structure(value.tuple_value), value.index))
            elif is_a(value, relax.Tuple):
                value = relax.Tuple([self._operand(f) for f in value.fields])
                wiring.append(_structure(value))
            else:
                value = self._operand(value)
                wiring.append((_structure(value),))
            if is_a(binding, relax.MatchCast):
                wiring.append(str(binding.ty))
            self._bind(binding, value)
        self._outputs = [self._values[v] for v in outputs]
        wiring.append(tuple(self._outputs))
        #: equal for groups of equal composites that are wired equally
        self.wiring = _numbered(wiring)

    def _operand(self, expr: Any) -> Any:
        if is_constant(expr):
            return expr
        if is_a(expr, relax.Tuple):
            return relax.Tuple([self._operand(f) for f in expr.fields])
        if expr not in self._values:
            self._values[expr] = self._parameter(expr.name if is_a(expr, relax.Var) else "shape", expr, expr.ty)
        return self._values[expr]

    def _parameter(self, name: str, argument: Any, ty: Any) -> Any:
        if is_a(ty, relax.TupleType):
            items = [(f"{name}_{i}", relax.TupleGetItem(argument, i), field) for i, field in enumerate(ty.fields)]
            return relax.Tuple([self._parameter(*item) for item in items])
        self._params.append(make_var(name, ty))
        self.arguments.append(argument)
        return self._params[-1]

    def _local(self, gv: Any) -> Any:
        if gv not in self._locals:
            func = self._lookup(gv).without_attr("Primitive")
            self._locals[gv] = make_var(gv.name_hint, func.ty)
            self._bindings.append(relax.VarBinding(self._locals[gv], func))
        return self._locals[gv]

    def _bind(self, binding: Any, value: Any) -> None:
        var, value = binding.var, self._builder.normalize(value)
        self.names.append(str(var.name))
        self._values[var] = new = make_var(var.name, var.ty)
        is_cast = is_a(binding, relax.MatchCast)  # its dims may be other expressions than those of the value
        self._bindings.append(relax.MatchCast(new, value, binding.ty) if is_cast else relax.VarBinding(new, value))

    @functools.cached_property
    def function(self) -> relax.Function:
        """The region; inside of its composites the variables are those of the module."""
        single = len(self._outputs) == 1
        result = self._outputs[0] if single else relax.Tuple(self._outputs)
        ret_ty = result.ty if single else relax.TupleType([v.ty for v in self._outputs])
        body = relax.SeqExpr([relax.BindingBlock(self._bindings)], result)
        return self._builder.normalize(relax.Function(self._params, body, ret_ty))


def _called(callee: Any, args: list[Any], ty: Any) -> Any:
    """A call; ``ty`` is that of the host's call, which is the same here unless it names symbols."""
    fields = items(ty.fields) if is_a(ty, relax.TupleType) else [ty]
    is_static = all(is_a(field, relax.TensorType) and static_shape(field) is not None for field in fields)
    return call_of(callee, args, ty) if is_static else relax.Call(callee, args)


def _structure(expr: Any) -> Any:
    return tuple(map(_structure, expr.fields)) if is_a(expr, relax.Tuple) else expr


def _numbered(wiring: list[Any]) -> tuple[Any, ...]:
    """The wiring with variables replaced by the order of their appearance, so that equal ones compare equal."""
    numbers: dict[Any, int] = {}

    def number(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(number, item))
        return numbers.setdefault(item, len(numbers)) if is_a(item, relax.Var) else item

    return tuple(map(number, wiring))


#: module attribute, JSON: region -> for each further use the name of a variable in the region -> that of the host
_USES_ATTR = "byoc_uses"


def with_uses(mod: tvm.IRModule, uses: Mapping[str, Sequence[Sequence[str]]]) -> tvm.IRModule:
    """The module with a note of the names in each use of its regions; the function has those of the first one."""
    further = {name: [dict(zip(first, use)) for use in others] for name, (first, *others) in uses.items() if others}
    return mod.with_attr(_USES_ATTR, json.dumps({**names_of_uses(mod), **further})) if further else mod


def names_of_uses(mod: tvm.IRModule) -> dict[str, list[dict[str, str]]]:
    """Region -> for each use after the first, name of a variable in the region -> name in this use."""
    return json.loads(str(mod.attrs[_USES_ATTR])) if mod.attrs and _USES_ATTR in mod.attrs else {}
