"""A region, read: its steps, and the tensors between them with what their integers stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from ..core.errors import InputError, takes
from ..core.tvm_fast import ByIdentity
from ..ir.relax_utils import RESHAPES, bindings_of, composite_of, constant_numpy, static_shape
from ..ir.tvm_compat import dtype_of, is_constant
from .quantised_groups import (
    CONVERSIONS,
    DEQUANTIZE,
    Matched,
    QuantizedGroup,
    QuantizedTensor,
    conversion,
    group_at,
)

#: what keeps the integers of a tensor and what they stand for
_MOVES = {"relax.permute_dims", *RESHAPES}


@dataclass(eq=False)
class RegionTensor:
    """A tensor of a region; each is one object, however many steps read it.

    Attributes
    ----------
    ty : relax.TensorType
        Its type.
    constant : Expr or None
        The constant that it is.
    quantized : QuantizedTensor or None
        What its integers stand for, as far as a step that makes or reads it says; moved integers stand for the same.
    """

    ty: Any
    constant: Any = None
    quantized: QuantizedTensor | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Its shape; None if that is open."""
        return static_shape(self.ty)

    @property
    def dtype(self) -> str:
        """Its dtype."""
        return dtype_of(self.ty)

    @property
    def data(self) -> np.ndarray | None:
        """The numbers of a constant."""
        return None if self.constant is None else np.asarray(constant_numpy(self.constant))


@dataclass(frozen=True)
class RegionStep:
    """A call in a region.

    Attributes
    ----------
    op : str
        The operator, the one in the middle of a quantised group; or the pattern's name without the namespace.
    call : relax.Call
        The call of this operator, with its attributes; or of the pattern's function.
    inputs, outputs : list of RegionTensor
        The tensors that it reads (tuples one by one, a group's weights as its second) and makes.
    group : QuantizedGroup or None
        The quantised group that it is.
    steps : list of RegionStep
        The calls that a pattern without quantised numbers has matched.
    """

    op: str
    call: Any
    inputs: list[RegionTensor]
    outputs: list[RegionTensor]
    group: QuantizedGroup | None = None
    steps: Sequence[RegionStep] = ()


@dataclass
class RegionSteps:
    """A region in the form in which a library is told it; see `steps_of`.

    Attributes
    ----------
    inputs : list of RegionTensor
        The arguments that are tensors, in order, those of tuples one by one.
    steps : list of RegionStep
        In the order of the program.
    outputs : list of RegionTensor
        The results, in order; a tensor that is returned twice is there twice, and an argument may be one.
    """

    inputs: list[RegionTensor] = field(default_factory=list)
    steps: list[RegionStep] = field(default_factory=list)
    outputs: list[RegionTensor] = field(default_factory=list)


@takes(what=(relax.Function, relax.Call, relax.Var, Matched, QuantizedGroup))
def steps_of(what: Any) -> RegionSteps:
    """Read a region, or what a predicate or a check is asked about.

    Other names of a value, tuples and their items, and the functions of patterns are resolved: steps name tensors.

    Parameters
    ----------
    what : relax.Function, relax.Call, mapping or QuantizedGroup
        A region; a call of an operator; the match that a pattern's ``check`` gets; the group that the one of
        `register_quantization` gets. What a call, match or group reads are inputs.

    Returns
    -------
    RegionSteps
    """
    reader = _Reader()
    if isinstance(what, relax.Function):
        reader.values.update(bindings_of(what))
        for param in what.params:
            reader.argument(param)
        for var in [*reader.values]:
            reader.read(var)
        result = reader.read(what.body.body if isinstance(what.body, relax.SeqExpr) else what.body)
    elif isinstance(what, QuantizedGroup):
        result = reader.group(what, (what.call if what.output is None else what.output.tensor).ty, reader.read)
    else:
        reader.values.update(what.bindings if isinstance(what, Matched) else {})
        result = reader.read(what["root"] if isinstance(what, Mapping) else what)
    region = reader.region
    for step in (*reversed(region.steps), *region.steps):
        if step.op in _MOVES:
            moved, made = step.inputs[0], step.outputs[0]
            known = moved.quantized or made.quantized
            if known is not None and known.axis is None:
                moved.quantized, made.quantized = moved.quantized or known, made.quantized or known
    region.outputs = list(_flat(result))
    return region


class _Reader:
    """Expression → its tensor, a tuple of them, or None for what is no tensor."""

    def __init__(self, known: Iterable[tuple[Any, Any]] = (), values: Iterable[tuple[Any, Any]] = ()) -> None:
        self.region = RegionSteps()
        self.known: ByIdentity[Any] = ByIdentity.of(known)
        self.values: ByIdentity[Any] = ByIdentity.of(values)

    def argument(self, expr: Any) -> Any:
        self.known[expr] = made = _tensors(expr.ty)
        self.region.inputs += _flat(made)
        return made

    def read(self, expr: Any) -> Any:
        if expr not in self.known:
            self.known[expr] = self._new(expr)
        return self.known[expr]

    def _new(self, expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return tuple(map(self.read, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return self.read(expr.tuple_value)[expr.index]
        if is_constant(expr):
            return RegionTensor(expr.ty, expr)
        if isinstance(expr, relax.Call):
            function = self.values.get(expr.op)
            return self._call(expr) if function is None else self._pattern(expr, function)
        if isinstance(expr, relax.Var):
            return self.read(self.values[expr]) if expr in self.values else self.argument(expr)
        return None

    def _call(self, call: Any) -> Any:
        inputs, made = list(_flat(map(self.read, call.args))), _tensors(call.ty)
        step = RegionStep(call.op.name, call, inputs, list(_flat(made)))
        if step.op in CONVERSIONS:
            _settle(inputs[0] if step.op == DEQUANTIZE else made, conversion(call, self.values))
        self.region.steps.append(step)
        return made

    def _pattern(self, call: Any, function: relax.Function) -> Any:
        arguments = zip(function.params, map(self.read, call.args))
        inner = _Reader(arguments, [*bindings_of(function), *zip(function.params, call.args)])
        root = function.body.body
        group = _group(root, inner.values)
        if group is not None and all(t and (is_constant(t.tensor) or t.tensor in inner.known) for t in group.inputs):
            return self.group(group, call.ty, lambda expr: inner.known.get(expr) or self.read(expr))
        made, steps = inner.read(root), inner.region.steps
        name, inputs = composite_of(function).partition(".")[2], list(_flat(map(self.read, call.args)))
        is_pattern = [name] != [step.op for step in steps]  # and not one operator that a predicate has taken
        self.region.steps += [RegionStep(name, call, inputs, list(_flat(made)), None, steps)] if is_pattern else steps
        return made

    def group(self, group: QuantizedGroup, ty: Any, read: Callable[[Any], Any]) -> RegionTensor:
        """The result of a group; ``read`` gives the tensor of each of its inputs."""
        inputs, made = [], RegionTensor(ty, quantized=group.output)
        for quantized in filter(None, group.inputs):
            inputs.append(read(quantized.tensor))
            _settle(inputs[-1], quantized)
        self.region.steps.append(RegionStep(group.op, group.call, inputs, [made], group))
        return made


def _settle(tensor: RegionTensor, quantized: QuantizedTensor) -> None:
    tensor.quantized = tensor.quantized or quantized


def _group(root: Any, values: ByIdentity[Any]) -> QuantizedGroup | None:
    """The group that ends in an expression, if all that it reads are integers."""
    try:
        group = group_at(root, values)
    except InputError:
        return None
    return group if group.inputs else None


def _tensors(ty: Any) -> Any:
    if isinstance(ty, relax.TupleType):
        return tuple(map(_tensors, ty.fields))
    return RegionTensor(ty) if isinstance(ty, relax.TensorType) else None


def _flat(values: Any) -> Iterator[RegionTensor]:
    if isinstance(values, RegionTensor):
        yield values
    elif values is not None:
        for value in values:
            yield from _flat(value)
