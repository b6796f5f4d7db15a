"""Names and what they mean: a chain of scopes, and the values that a function takes from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from tvm import relax, tirx

from ...core.tensor_info import STORED
from .dim import Dim, Size, expr_of, size_of, substituted, symbols_of
from .structure import DEFAULT_DOMAINS, captured, in_order
from .value import Value


class Again(Exception):
    """A function is to be read again, since it is known now which branch of an ``If`` it can have."""


class PlainBlocks(Exception):
    """A function has a branch that is chosen in a call, so it can have no dataflow block around all of it."""


def opsets_of(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Domain → version, as a model or a function imports them."""
    return {"" if o.domain in DEFAULT_DOMAINS else o.domain: int(o.version) for o in imports}


class Boundary:
    """The values that a function takes from outside: its parameters, with symbols of its own."""

    def __init__(self) -> None:
        self.outer: list[Value] = []  # what is passed
        self.params: list[relax.Var] = []
        self._inner: dict[int, Value] = {}  # by the outer value
        self._symbols: dict[tirx.Var, Size] = {}  # outer → inner
        self._fresh: list[tirx.Var] = []  # of parameters that are no outer values

    def captured(self, value: Value) -> Value:
        if value.is_constant:
            return value
        found = self._inner.get(id(value))
        if found is None:
            found = self._inner[id(value)] = self._taken(value)
            self.outer.append(value)  # also keeps it alive, and its address its own
        return found

    def _taken(self, value: Value) -> Value:
        if value.items is not None:
            return Value(items=[self.captured(item) for item in value.items])
        if value.known is not None:
            flat = [self.inside(n) if isinstance(n, Dim) else n for n in value.known.reshape(-1).tolist()]
            array = np.empty(len(flat), object)
            array[:] = flat
            return Value(known=array.reshape(value.known.shape), dtype=value.dtype)
        if value.item is not None:
            param = relax.Var(f"{value.expr.name}_in", value.expr.ty)
            self.params.append(param)
            return Value(param, item=value.item)
        shape = None if value.dims is None else [expr_of(self.inside(d)) for d in value.dims]
        dtype = STORED.get(value.dtype, value.dtype) or None
        ty = relax.TensorType(shape, dtype) if shape is not None else relax.TensorType(dtype=dtype)
        param = relax.Var(f"{value.expr.name}_in", ty)
        self.params.append(param)
        return Value(param, dtype=value.dtype)

    def inside(self, size: Size) -> Size:
        for symbol in symbols_of(size):
            if symbol not in self._symbols:
                self._symbols[symbol] = size_of(tirx.Var(symbol.name, "int64"))
        return substituted(size, self._symbols)

    def outside(self, size: Size) -> Size | None:
        """A size of the function as it is known outside; None if it is not."""
        outer = {expr_of(inner): size_of(symbol) for symbol, inner in self._symbols.items()}
        return substituted(size, outer) if all(symbol in outer for symbol in symbols_of(size)) else None

    def fresh(self, name: str) -> Size:
        """A size of a parameter that each call has its own."""
        size = Dim.symbol(name)
        self._fresh.append(expr_of(size))
        return size

    @property
    def symbols(self) -> list[tirx.Var]:
        return [*(expr_of(inner) for inner in self._symbols.values()), *self._fresh]

    def closed(self) -> tuple[list[relax.Var], list[Any]]:
        """All parameters, and what is passed for them: symbols that no parameter has by itself come as a shape."""
        passed = [value.expr for value in self.outer if value.items is None and value.known is None]
        own = {hash(d) for p in self.params for d in getattr(getattr(p.ty, "shape", None), "values", None) or ()}
        missing = [(outer, expr_of(inner)) for outer, inner in self._symbols.items() if hash(expr_of(inner)) not in own]
        if not missing:
            return self.params, passed
        sizes = relax.Var("sizes", relax.ShapeType([inner for _, inner in missing]))
        return [*self.params, sizes], [*passed, relax.ShapeExpr([outer for outer, _ in missing])]


class Scope:
    """Names of one graph or function body; the body of a function has no ``parent``.

    ``label``: the node that it stands for, in whose name errors are reported.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        parent: Scope | None = None,
        label: str = "",
        attributes: Mapping[str, onnx.AttributeProto] | None = None,
        boundary: Boundary | None = None,
    ) -> None:
        self.opsets, self.parent, self.label, self.boundary = opsets, parent, label, boundary
        self.attributes = attributes or {}
        self.names: dict[str, Value | None] = {}
        self.lazy: dict[str, Callable[[], Value]] = {}  # constants of the graph, made when they are read
        self.plan: Plan | None = None

    def find(self, name: str) -> Value | None:
        """The value of a name; ``None`` for an empty optional input of a function."""
        crossed: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                value = scope.names[name]
                break
            if name in scope.lazy:
                value = scope.names[name] = scope.lazy[name]()
                break
            crossed.append(scope)
            scope = scope.parent
        else:
            raise KeyError(f"no value is named `{name}`")
        for inner in reversed(crossed):
            if inner.boundary is not None and value is not None:
                value = inner.names[name] = inner.boundary.captured(value)
        return value

    def read_by(self, name: str) -> tuple[list[onnx.NodeProto], bool]:
        """The nodes that read a value, and whether it is a result of the graph."""
        assert self.plan is not None
        readers, is_result = self.plan.readers.get(name, []), name in self.plan.results
        return readers, is_result


class Plan:
    """The nodes of a graph that its results need, in order, and who reads what."""

    def __init__(self, nodes: Iterable[onnx.NodeProto], results: Iterable[str]) -> None:
        self.results = dict.fromkeys(results)
        self._reads: dict[int, tuple[str, ...]] = {}
        self.nodes = in_order(list(nodes), self.results, self.reads)
        self.read = {name for node in self.nodes for name in self.reads(node)} | self.results.keys()

    def reads(self, node: onnx.NodeProto) -> tuple[str, ...]:
        """The names that one of the nodes reads, those in its subgraphs among them."""
        found = self._reads.get(id(node))
        if found is None:
            found = self._reads[id(node)] = (*node.input, *captured(node)) if node.attribute else tuple(node.input)
        return found

    @cached_property
    def readers(self) -> dict[str, list[onnx.NodeProto]]:
        found: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(self.reads(node)):
                found.setdefault(name, []).append(node)
        return found
