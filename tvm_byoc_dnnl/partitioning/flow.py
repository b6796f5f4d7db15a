"""The dataflow of a module, seen through its regions: which call reads the result of which, and who owns it.

Partitioning wraps calls into functions of functions. Reports, locks and the search for nearly matching patterns want
the program as it was written, so `read_flow` follows each value through parameters and composites back to the call
that made it. `OnnxNodes` knows from which node of the model each was imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx

from ..core.tvm_fast import ByIdentity, is_a, items
from ..ir.functions import names_of_uses
from ..ir.relax_utils import NODES_ATTR, codegen_of, composite_of, is_host_function, leaf_types, shape_dims
from ..ir.tvm_compat import is_constant


@dataclass(eq=False, kw_only=True)
class Place:
    """The functions around a call: all calls of one function body have the same."""

    function: str
    #: namespace of the region that owns it, ``""`` where it stays with TVM
    compiler: str = ""
    region: str = ""
    #: which call of the region this is: equal regions share one function
    use: int = 0
    #: the composite function around it, e.g. ``<compiler>.relax.nn.conv2d``
    composite: str = ""


@dataclass(eq=False)
class Node(Place):
    """One call of an operator, and its place."""

    id: int
    call: Any
    op: str
    name: str
    args: list[Source] = field(default_factory=list)

    @property
    def kernel(self) -> str:
        """The function that a ``call_tir`` or ``call_packed`` calls, ``""`` for a real operator."""
        callee = self.call.args[0] if self.op.startswith("relax.call_") and len(self.call.args) else None
        return str(getattr(callee, "name_hint", "") or getattr(callee, "global_symbol", ""))

    @property
    def inputs(self) -> list[Node]:
        """The calls whose results it reads, each once."""
        return list(dict.fromkeys(n for a in self.args for n in nodes_of(a)))


@dataclass(frozen=True)
class Leaf:
    """A value that no call makes: a parameter, a constant, a shape, a function, the result of a branch."""

    expr: Any


@dataclass(frozen=True)
class Item:
    """A field of a tuple that a call returns."""

    of: Any


#: the origin of a value
Source: TypeAlias = "Node | Leaf | Item | tuple[Source, ...]"


@dataclass
class Flow:
    """The calls of a module in program order, ``main`` first; those of a region once per use of the region."""

    nodes: list[Node] = field(default_factory=list)
    #: region name → its function, and how often it is called: equal regions share one function
    regions: dict[str, Any] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    #: region name → its constants, each once
    constants: dict[str, ByIdentity[None]] = field(default_factory=dict)
    #: what ``main`` returns
    result: Source = ()

    def symbols(self) -> list[str]:
        tensors = (ty for n in self.nodes for ty in leaf_types(n.call.ty) if is_a(ty, relax.TensorType))
        return sorted({dim.name for ty in tensors for dim in shape_dims(ty) or () if isinstance(dim, tirx.Var)})


def nodes_of(source: Source) -> Iterator[Node]:
    if isinstance(source, Node):
        yield source
    elif isinstance(source, Item):
        yield from nodes_of(source.of)
    elif isinstance(source, tuple):
        for part in source:
            yield from nodes_of(part)


def read_flow(mod: tvm.IRModule) -> Flow:
    return _Reader(mod).read()


class _Reader:
    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.flow = Flow()
        self._names = names_of_uses(mod)

    def read(self) -> Flow:
        functions = sorted(self.mod.functions.items(), key=lambda i: (i[0].name_hint != "main", i[0].name_hint))
        for gv, func in functions:
            if is_host_function(func):
                self._read_host(gv.name_hint, func)
        return self.flow

    def _read_host(self, name: str, func: relax.Function) -> None:
        env = ByIdentity[Source].of((p, Leaf(p)) for p in items(func.params))
        result = self._body(func.body, env, Place(function=name))
        if name == "main":
            self.flow.result = result

    def _body(self, body: Any, env: ByIdentity[Source], place: Place) -> Source:
        if not is_a(body, relax.SeqExpr):
            return self._value(body, env, place, "")
        for block in items(body.blocks):
            for binding in items(block.bindings):
                var, value = binding.var, binding.value
                if not is_a(value, relax.Function):
                    env[var] = self._value(value, env, place, var.name)
                else:
                    env[var] = Leaf(value)
        return self._value(body.body, env, place, "")

    def _value(self, expr: Any, env: ByIdentity[Source], place: Place, name: str) -> Source:
        if is_a(expr, relax.Var):
            known = env.get(expr)
            return Leaf(expr) if known is None else known
        if is_a(expr, relax.Call):
            return self._call(expr, env, place, name)
        if is_constant(expr):
            self.flow.constants.setdefault(place.region, ByIdentity())[expr] = None
            return Leaf(expr)
        if is_a(expr, relax.Tuple):
            return tuple(self._value(f, env, place, name) for f in items(expr.fields))
        if is_a(expr, relax.TupleGetItem):
            of = self._value(expr.tuple_value, env, place, name)
            return of[expr.index] if isinstance(of, tuple) else Item(of)
        if is_a(expr, relax.If):
            # Either branch may run, so the value is not known.
            self._body(expr.true_branch, ByIdentity.of(env.items()), place)
            self._body(expr.false_branch, ByIdentity.of(env.items()), place)
            return Leaf(expr)
        if is_a(expr, relax.SeqExpr):
            return self._body(expr, env, place)
        return Leaf(expr)

    def _call(self, call: Any, env: ByIdentity[Source], place: Place, name: str) -> Source:
        args = [self._value(a, env, place, name) for a in items(call.args)]
        op = call.op
        if is_a(op, tvm.ir.GlobalVar):
            return self._function(call, self.mod[op], args, place, name)
        if is_a(op, relax.Var):
            local = env.get(op)
            if isinstance(local, Leaf) and is_a(local.expr, relax.Function):
                return self._composite(local.expr, args, place, name)
        node = Node(len(self.flow.nodes), call, _operator(op), name, args=args, **vars(place))
        self.flow.nodes.append(node)
        return node

    def _function(self, call: Any, func: Any, args: list[Source], place: Place, name: str) -> Source:
        callee = call.op.name_hint
        if composite_of(func):
            return self._composite(func, args, place, name)
        compiler = codegen_of(func)
        if not compiler:
            return Leaf(call)  # a function of the host: read on its own
        self.flow.regions[callee] = func
        self.flow.uses[callee] = self.flow.uses.get(callee, 0) + 1
        inside = Place(function=place.function, compiler=compiler, region=callee, use=self.flow.uses[callee] - 1)
        before = len(self.flow.nodes)
        result = self._body(func.body, ByIdentity.of(zip(items(func.params), args, strict=True)), inside)
        further = self._names.get(callee, [])
        names = further[inside.use - 1] if 0 < inside.use <= len(further) else {}
        for node in self.flow.nodes[before:]:
            node.name = names.get(node.name, node.name)
        return result

    def _composite(self, func: Any, args: list[Source], place: Place, name: str) -> Source:
        inside = replace(place, composite=composite_of(func))
        result = self._body(func.body, ByIdentity.of(zip(items(func.params), args, strict=True)), inside)
        if isinstance(result, Node):
            result.name = name  # inside of its composite it only has a number
        return result


def _operator(op: Any) -> str:
    return str(op.name if is_a(op, tvm.ir.Op) else getattr(op, "global_symbol", op))


class OnnxNodes:
    """The nodes from which a module was imported; a module that is not from ONNX has none."""

    def __init__(self, mod: tvm.IRModule) -> None:
        functions = [(gv.name_hint, func) for gv, func in mod.functions.items() if is_host_function(func)]
        self._nodes = {name: (func.attrs or {}).get(NODES_ATTR) or {} for name, func in functions}

    def of(self, function: str, name: str) -> str | None:
        """The node of a call; the variables that passes add are named after the one that they belong to."""
        nodes = self._nodes.get(function, {})
        while name:
            node = nodes.get(name)
            if node is not None:
                return str(node)
            name = name.rpartition("_")[0]
        return None
