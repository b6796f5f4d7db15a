"""GraphBuilder: lowerings write to it. It maps Relax expressions to values of a portable graph."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..core.errors import GraphError
from ..core.tvm_fast import ByIdentity, is_a, items
from ..core.verdict import Reject
from ..ir.relax_utils import constant_numpy, free_name, shape_dims, static_shape
from ..ir.tvm_compat import dtype_of, is_constant
from . import Constant, Dim, Input, PortableGraph, Tensor
from .node_list import Node, PostOp, Scaling

_OPERATORS = {
    tirx.Add: "+",
    tirx.Sub: "-",
    tirx.Mul: "*",
    tirx.FloorDiv: "//",
    tirx.FloorMod: "%",
    tirx.Max: "max",
    tirx.Min: "min",
}


@dataclass(frozen=True)
class Value:
    """A tensor of the graph under construction."""

    id: int
    dtype: str
    shape: tuple[Dim, ...]
    expr: Any = None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dim is a number."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def constant(self) -> np.ndarray | None:
        """The value when it is a constant of the region, else ``None``."""
        return None if self.expr is None else constant_numpy(self.expr)

    @property
    def scalar(self) -> float | None:
        """The value when it is a constant of exactly one element, else ``None``."""
        if self.expr is None or not all(d == 1 for d in self.shape):
            return None
        return float(constant_numpy(self.expr).reshape(-1)[0])


class GraphBuilder:
    """Build one `PortableGraph`; its constants are called ``const_0``, ``const_1`` …"""

    def __init__(self, name: str) -> None:
        self.graph = PortableGraph(name)
        self._values: ByIdentity[Value | tuple[Any, ...]] = ByIdentity()
        self._constants: ByIdentity[Value] = ByIdentity()
        self._nodes: dict[str, Node] = {}
        self._symbols: dict[Any, Dim] = {}
        self._symbol_names: set[str] = set()
        self._source: list[str] = []
        self._calls = range(0)

    def dim(self, dim: Any) -> Dim:
        """A dim of Relax as a dim of the graph.

        Raises `Reject` if the expression has an operator that the graph cannot say.
        """
        if isinstance(dim, (int, tirx.IntImm)):
            return int(dim)
        if isinstance(dim, tirx.Var):
            if dim not in self._symbols:
                hint = re.sub(r"[^0-9A-Za-z_]|^(?=[0-9])", "_", dim.name) or "n"
                self._symbols[dim] = free_name(hint, self._symbol_names)
            return self._symbols[dim]
        operator = _OPERATORS.get(type(dim))
        if operator is None:
            raise Reject(f"the symbolic dim {dim} has an operator that a portable graph cannot express")
        return _sorted((operator, self.dim(dim.a), self.dim(dim.b)))

    def shape_of(self, ty: Any) -> tuple[Dim, ...]:
        """Shape of a tensor type, in the graph's dims."""
        static = static_shape(ty)
        if static is not None:
            return static
        dims = shape_dims(ty)
        if dims is None:
            raise Reject(f"the shape of {ty} is not known at compile time (only its rank)")
        return tuple(self.dim(d) for d in dims)

    def bind(self, var: Any, value: Any) -> None:
        """Let ``var`` (a Relax variable) stand for ``value``: a `Value` or a tuple of them."""
        self._values[var] = value
        for symbol, dim in self._introduced(var.ty, value):
            self._symbols.setdefault(symbol, dim)

    def equate(self, var: Any) -> None:
        """Note which dims of a variable's type are other expressions than those of the tensor that it is bound to."""
        value = self._values[var]
        if isinstance(value, Value):
            pairs = zip(value.shape, self.shape_of(var.ty), strict=True)
            self.graph.equal += [pair for pair in pairs if pair[0] != pair[1] and pair not in self.graph.equal]

    def bind_call(self, params: Sequence[Any], args: Sequence[Any]) -> None:
        """Let a function's parameters stand for the arguments (Relax expressions) of one of its calls.

        So do the symbols of their types: the next call may have other sizes.
        """
        symbols: list[tuple[Any, Dim]] = []
        for param, arg in zip(params, args, strict=True):
            if is_a(param.ty, relax.ShapeType):  # it brings symbols, nothing else
                dims = arg.values if isinstance(arg, relax.ShapeExpr) else arg.ty.values
                pairs = zip(param.ty.values or (), dims or (), strict=False)
                symbols += [(own, self.dim(dim)) for own, dim in pairs if isinstance(own, tirx.Var)]
            else:
                self._values[param] = value = self.values(arg)
                symbols += self._introduced(param.ty, value)
        self._symbols.update(symbols)

    def _introduced(self, ty: Any, value: Any) -> list[tuple[Any, Dim]]:
        """The symbols that a variable's type introduces, each with the dim that the value has there."""
        if is_a(ty, relax.TupleType):
            fields = zip(items(ty.fields), value, strict=True)
            return [found for own, item in fields for found in self._introduced(own, item)]
        if not is_a(ty, relax.TensorType) or static_shape(ty) is not None:
            return []
        dims = zip(shape_dims(ty) or (), value.shape, strict=False)
        return [(own, dim) for own, dim in dims if isinstance(own, tirx.Var)]

    def add_input(self, var: Any) -> None:
        """Make a Relax parameter an input of the region, tuples flattened."""
        ty = var.ty
        if is_a(ty, relax.ShapeType):
            values = ty.values
            if values is None:
                raise Reject(f"the shape argument {var.name} has unknown values")
            self.graph.inputs.append(Input(shape=tuple(self.dim(d) for d in values)))
            return
        self._values[var] = self._input(var.name if is_a(var, relax.Var) else "result", ty)

    def _input(self, name: str, ty: Any) -> Any:
        if is_a(ty, relax.TupleType):
            return tuple(self._input(f"{name}_{i}", f) for i, f in enumerate(ty.fields))
        if not is_a(ty, relax.TensorType):
            raise Reject(f"argument {name} is {ty}; only tensors can be handed to a library")
        value = self._tensor(dtype_of(ty), self.shape_of(ty), name)
        self.graph.inputs.append(Input(tensor=value.id))
        return value

    def value(self, expr: Any) -> Value:
        """The tensor that a Relax expression stands for; an unknown variable or call becomes an input."""
        value = self.values(expr)
        if not isinstance(value, Value):
            raise Reject(f"a tuple of {len(value)} stands where one tensor is expected")
        return value

    def operands(self, call: Any) -> list[Value]:
        """The tensors that a call reads, each as `value`."""
        return [self.value(arg) for arg in items(call.args)]

    def values(self, expr: Any) -> Any:
        """Like `value`, where tuples are allowed: a `Value` or a (nested) tuple of them."""
        known = self._values.get(expr)
        if known is not None:
            return known
        if is_a(expr, relax.Tuple):
            return tuple(self.values(f) for f in expr.fields)
        if is_constant(expr):
            return self._constant(expr)
        if is_a(expr, relax.TupleGetItem):
            return self.values(expr.tuple_value)[expr.index]
        if not is_a(expr, (relax.Var, relax.Call)):  # a match names a call whose result it reads
            raise Reject(f"{type(expr).__name__} is not a tensor argument")
        self.add_input(expr)
        return self._values[expr]

    def _constant(self, expr: Any) -> Value:
        if expr not in self._constants:
            name = f"const_{len(self._constants)}"
            value = self._tensor(dtype_of(expr.ty), self.shape_of(expr.ty), name, expr)
            is_known = value.ndim <= 1 or value.dtype == "int8"  # quantised weights: passes look at them
            known = constant_numpy(expr) if is_known else None
            self.graph.constants.append(Constant(value.id, name, value=known))
            self._constants[expr] = value
        return self._constants[expr]

    @property
    def constants(self) -> dict[str, Any]:
        """Name of each constant in the graph → Relax constant."""
        return {f"const_{number}": expr for number, expr in enumerate(self._constants)}

    def begin(self, ops: Iterable[str]) -> None:
        """Let the nodes that are emitted now come from the next calls of the region, which are calls of ``ops``."""
        self._source = list(ops)
        self._calls = range(self._calls.stop, self._calls.stop + len(self._source))

    def _tensor(self, dtype: str, shape: Sequence[Dim], name: str = "", expr: Any = None) -> Value:
        self.graph.tensors.append(Tensor(dtype, tuple(shape), name))
        return Value(len(self.graph.tensors) - 1, dtype, tuple(shape), expr)

    def new_value(self, ty: Any) -> Value:
        """A tensor of this type that something else than a node makes."""
        return self._tensor(dtype_of(ty), self.shape_of(ty))

    def emit(
        self,
        kind: str,
        inputs: Iterable[Value],
        shape: Sequence[Dim],
        dtype: str | None = None,
        post_ops: Iterable[PostOp] = (),
        scalings: Mapping[int, Scaling] | None = None,
        result_scaling: Scaling | None = None,
        **attrs: Any,
    ) -> Value:
        """Append a node of ``kind`` with one output of ``shape``; dtype of the first input unless given.

        A node that is there already, with the same inputs and attributes, is read once more instead.
        """
        ins = list(inputs)
        rest = (tuple(shape), dtype or ins[0].dtype, list(post_ops), dict(scalings or {}), result_scaling)
        node = self._nodes.get(key := repr((kind, [v.id for v in ins], sorted(attrs.items()), rest)))
        if node is None:
            out = self._tensor(rest[1], shape)
            node = self._nodes[key] = Node(kind, tuple(v.id for v in ins), (out.id,), attrs, rest[2])
            node.scalings, node.result_scaling = rest[3:]
            self.graph.nodes.append(node)
        node.source, node.calls = [*node.source, *self._source], [*node.calls, *self._calls]
        return Value(node.outputs[0], rest[1], rest[0])

    def cast(self, value: Value, dtype: str) -> Value:
        """``value`` as numbers of this dtype; itself where it has it."""
        return value if value.dtype == dtype else self.emit("reorder", [value], value.shape, dtype)

    def reshape(self, value: Value, shape: Sequence[Dim]) -> Value:
        """``value`` in another shape; itself where the shape is the same."""
        return value if tuple(shape) == value.shape else self.emit("reshape", [value], shape)

    def permute(self, value: Value, axes: Sequence[int]) -> Value:
        """``value`` with its axes permuted: output axis i is input axis ``axes[i]``."""
        if list(axes) == list(range(value.ndim)):
            return value
        return self.emit("permute", [value], [value.shape[a] for a in axes], axes=list(axes))

    def eltwise(self, value: Value, alg: str, alpha: float = 0.0, beta: float = 0.0) -> Value:
        """An elementwise function of one tensor."""
        return self.emit("eltwise", [value], value.shape, alg=alg, alpha=float(alpha), beta=float(beta))

    def binary(self, alg: str, a: Value, b: Value, shape: Sequence[Dim], dtype: str | None = None) -> Value:
        """An elementwise function of two tensors that broadcast to ``shape`` (NumPy's rule for ranks)."""
        a, b = (self.reshape(v, (1,) * (len(shape) - v.ndim) + v.shape) for v in (a, b))
        return self.emit("binary", [a, b], shape, dtype, alg=alg)

    def finish(self, outputs: Any) -> PortableGraph:
        """Set the outputs (a value or a nested tuple of values, flattened) and return the checked graph."""
        self.graph.outputs = list(self._ids(outputs))
        return self.graph.prune().validate()

    def _ids(self, value: Any) -> Iterable[int]:
        if isinstance(value, Value):
            yield value.id
        elif isinstance(value, tuple):
            for v in value:
                yield from self._ids(v)
        else:
            raise GraphError(f"{self.graph.name}: a lowering returned {value!r}; expected a Value or a tuple")


def _sorted(dim: tuple[str, Dim, Dim]) -> Dim:
    """A sum or product in one order, numbers last: ``n + p`` and ``p + n`` are one dim."""
    operator = dim[0]
    if operator not in "+*":
        return dim
    operands = sorted(_operands(dim, operator), key=lambda d: (isinstance(d, int), str(d)))
    return functools.reduce(lambda a, b: (operator, a, b), operands)


def _operands(dim: Dim, operator: str) -> list[Dim]:
    if isinstance(dim, tuple) and dim[0] == operator:
        return _operands(dim[1], operator) + _operands(dim[2], operator)
    return [dim]
