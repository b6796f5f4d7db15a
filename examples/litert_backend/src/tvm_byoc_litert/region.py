"""A region, or a call or match that is asked about, as a model of LiteRT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tvm
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from tvm import relax

import tvm_byoc_dnnl as byoc

from .flatbuffer import Model, Value, require
from .operators import DTYPES, MOVES, OPERATORS, shape_of
from .quantised import as_int8, bordered, scale_of, write

__all__ = ["BIAS", "check_bias", "check_group", "group_of", "model_of", "takes"]

#: operators that take a bias
_WITH_BIAS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


class Writer:
    """Writes expressions; ``bound`` is what variables are bound to that are no inputs."""

    def __init__(self, bound: Mapping[Any, Any] | None = None, region: Any = None) -> None:
        self.model, self.bound, self.region = Model(), dict(bound or {}), region
        self.inputs: list[Value] = []
        self.known: dict[Any, Any] = {}

    def parameter(self, expr: Any) -> Value:
        """A new input of the model."""
        self.inputs.append(self.model.value(shape_of(expr.ty, DTYPES), byoc.dtype_of(expr.ty)))
        return self.inputs[-1]

    def value(self, expr: Any) -> Any:
        """The value of an expression; a list of them for a tuple, and None for what is no tensor."""
        if isinstance(expr, relax.Tuple):
            return [self.value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        if byoc.is_constant(expr):
            return self.model.constant(byoc.constant_numpy(expr))
        if not isinstance(expr, relax.Var | relax.Call):
            return None
        if expr not in self.known:
            is_call = isinstance(expr, relax.Call)
            made = self.call(expr) if is_call else self.value(self.bound[expr]) if expr in self.bound else None
            self.known[expr] = self.parameter(expr) if made is None else made
        return self.known[expr]

    def call(self, call: Any) -> Any:
        """The results of a call of an operator."""
        op, values = call.op.name, [v for v in map(self.value, call.args) if v is not None]
        if op == "relax.quantize":
            scale = self._scale(call, str(call.attrs.out_dtype))
            return self.model.emit("QUANTIZE", values[:1], shape_of(call.args[0].ty), "int8", scale)
        if op == "relax.dequantize":
            x = as_int8(self.model, values[0], self._scale(call, byoc.dtype_of(call.args[0].ty)))
            return self.model.emit("DEQUANTIZE", [x], shape_of(call.ty))
        for value in _flat(values):
            require(
                op in MOVES or value.dtype == "float32", f"dtype {value.dtype}; this backend computes {op} in float32"
            )
        return OPERATORS[op](self.model, call, values)

    def _scale(self, call: Any, dtype: str) -> Any:
        require(all(map(byoc.is_constant, call.args[1:])), "a scale or zero point that is not constant")
        require(not byoc.is_constant(call.args[0]), "a conversion of constants")
        return scale_of(*map(byoc.constant_numpy, call.args[1:]), dtype)

    def with_bias(self, add: Any) -> Value:
        """A product whose bias is the constant of a sum behind it."""
        first, second = map(self.value, add.args)
        product, bias = (second, first) if second.data is None else (first, second)
        channels = product.shape[-1]
        require(bias.shape[-1:] == [channels] and bias.data.size == channels, f"a bias of shape {bias.shape}")
        require(product.made_by in _WITH_BIAS, "a sum of a product that takes no bias")
        product.producer.inputs[2] = self.model.constant(bias.data.reshape(-1)).index
        return product

    def composite(self, call: Any, function: relax.Function) -> Any:
        """The results of a call of a composite function, which other calls may share."""
        name, result = byoc.composite_of(function).partition(".")[2], function.body.body
        if name.startswith("quantized_"):
            return self.group(byoc.quantized(call, within=self.region))
        around, self.known = self.known, dict(zip(function.params, map(self.value, call.args), strict=True))
        self.bound = dict(byoc.bindings_of(function))
        made = self.with_bias(self.bound.get(result, result)) if name == BIAS else self.value(result)
        self.known = around
        return made

    def group(self, group: Any) -> Value:
        """The result of a quantised group."""
        return write(self.model, group, [self.value(t.argument) for t in group.inputs if t is not group.weights])


#: the name of the pattern of a product with a bias
BIAS = "product_with_bias"


def _flat(values: Any) -> Iterator[Any]:
    for item in values if isinstance(values, list) else [values]:
        yield from _flat(item) if isinstance(item, list) else [item]


def model_of(region: relax.Function) -> tuple[bytes, list[int]]:
    """The model of a region, and for each tensor that the region is called with the one that it equals.

    The results of a model are different tensors and none of its inputs: what is, is copied.
    """
    writer, composites = Writer(region=region), {}
    writer.known = {p: writer.parameter(p) for p in region.params}
    for var, value in byoc.bindings_of(region):
        if isinstance(value, relax.Function):
            composites[var] = value
        elif isinstance(value, relax.Call):
            writer.known[var] = writer.composite(value, composites[value.op])
        else:
            writer.known[var] = writer.value(value)
    tensors, body = list(writer.inputs), region.body.body
    for value, ty in zip(_flat(writer.value(body)), _types(body.ty), strict=True):
        tensors.append(bordered(writer.model, value, byoc.dtype_of(ty)))
    places = [tensors.index(tensor) for tensor in tensors]
    outputs = [t for i, t in enumerate(tensors) if places[i] == i and i >= len(region.params)]
    return writer.model.finish(writer.inputs, outputs), places


def _types(ty: Any) -> list[Any]:
    """The types of the tensors in a type."""
    return [t for field in ty.fields for t in _types(field)] if isinstance(ty, relax.TupleType) else [ty]


# ---------------------------------------------------------------- what is taken: the conversion, tried
def _tried(writer: Writer, results: Any, ty: Any) -> bytes:
    """What was written, if LiteRT itself accepts it and makes the shapes that Relax expects."""
    outputs = [v for v in _flat(results) if v not in writer.inputs]
    model = writer.model.finish(writer.inputs, outputs)
    try:
        resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        interpreter = Interpreter(model_content=model, experimental_op_resolver_type=resolver)
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise byoc.Reject(f"LiteRT: {' '.join(str(error).split())}") from error
    found = [[int(size) for size in detail["shape"]] for detail in interpreter.get_output_details()]
    expected = [list(byoc.static_shape(t)) for t in _types(ty)]
    require(not outputs or found == expected, f"LiteRT makes shapes {found} of it, and Relax {expected}")
    return model


def takes(op: str) -> Callable[[Any, Sequence[Any]], bool]:
    """The predicate of an operator."""

    def predicate(attrs: Any, args: Sequence[Any]) -> bool:
        call = relax.BlockBuilder().normalize(relax.Call(tvm.ir.Op.get(op), list(args), attrs))
        writer = Writer()
        return bool(_tried(writer, writer.call(call), call.ty))

    return predicate


def check_bias(match: Mapping[str, Any]) -> bool:
    """The check of the pattern of a product with a bias."""
    writer = Writer(match.bindings)
    return bool(_tried(writer, writer.with_bias(match["root"]), match["root"].ty))


def group_of(group: Any) -> bytes:
    """The model of a quantised group."""
    writer = Writer()
    return _tried(writer, writer.group(group), group.call.ty)


def check_group(group: Any) -> bool:
    """The check of a quantised group."""
    return bool(group_of(group))
