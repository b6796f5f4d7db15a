"""A region, or a call or match that is asked about, as a model of LiteRT; and how a process runs it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import tvm
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from tvm import relax

import tvm_byoc_dnnl as byoc

from .model import ACTIVATIONS, MOVES, Model, Scale, Value, constant, require

#: options of the namespace
OPTIONS = {"kernels": "xnnpack"}  # or "builtin", LiteRT's own, or "reference", which are slow and define the numbers
_KERNELS = {
    "xnnpack": OpResolverType.BUILTIN,
    "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "reference": OpResolverType.BUILTIN_REF,
}
_PRODUCTS = ("relax.nn.conv2d", "relax.matmul")
#: groups whose result may have another scale than their input
_RESCALE = (*_PRODUCTS, "relax.add", "relax.mean", "relax.nn.adaptive_avg_pool2d", "relax.concat")
#: LiteRT has kernels for int8: uint8 is written as int8 whose zero point is less, with a conversion at the borders
_SHIFT = {"int8": 0, "uint8": 128}


def _scale(tensor: Any, shift: int) -> Scale:
    require(tensor.scales is not None and tensor.zero_points is not None, "a scale or zero point that is not constant")
    require(tensor.scales.size == 1 == tensor.zero_points.size, "scales along an axis of activations")
    return (float(np.float32(tensor.scales)),), (int(tensor.zero_points) - shift,), 0


def _value(tensor: Any, at_border: bool = False) -> Value:
    """A new value for a tensor of a region."""
    dtype, shape, known = tensor.dtype, tensor.shape, tensor.quantized
    require(dtype in ("float32", *_SHIFT), f"dtype {dtype}; this backend has float32, int8, uint8")
    require(shape is not None, f"open dims in {tensor.ty}; this backend needs fixed sizes")
    require(0 not in shape, f"shape {list(shape)} without elements")
    if tensor.constant is not None:
        return constant(tensor.data)
    if known is None:
        return Value(shape, dtype)
    return Value(shape, dtype, _scale(known, 0)) if at_border else Value(shape, "int8", _scale(known, _SHIFT[dtype]))


def _weights(group: Any, x: Value) -> list[Value]:
    """Weights of int8, and a bias of int32."""
    weights = group.weights
    require(weights is not None, "a product of activations")
    numbers, shift = np.asarray(byoc.constant_numpy(weights.tensor)), _SHIFT[weights.dtype]
    require(np.all(weights.zero_points.astype("int32") == shift), f"zero point {weights.zero_points} of weights")
    require(group.op != "relax.matmul" or numbers.ndim == 2, f"weights of {numbers.ndim} axes")
    numbers = (numbers.astype("int16") - shift).astype("int8")
    numbers = numbers.T if group.is_transposed else numbers
    bias = np.zeros(numbers.shape[group.op == "relax.matmul"], "int32") + (0 if group.bias is None else group.bias)
    scales = tuple(map(float, weights.scales.reshape(-1)))
    zeros, steps = (0,) * len(scales), tuple(s * x.scale[0][0] for s in scales)
    return [constant(numbers, scale=(scales, zeros, 0)), constant(bias, "int32", (steps, zeros, 0))]


class _Region(Model):
    def like(self, x: Value, y: Value) -> Value:
        """A value in the dtype and scale of another."""
        return x if (x.dtype, x.scale) == (y.dtype, y.scale) else self.emit("QUANTIZE", [x], y)

    def clipped(self, x: Value, low: float, high: float) -> Value:
        require(low <= high, f"limits {low} and {high}")
        if (low, high) in ACTIVATIONS and x.dtype == "float32":
            return self.emit(ACTIVATIONS[low, high][0], [x], x.like())
        for name, bound in (("MAXIMUM", low), ("MINIMUM", high)):
            if x.dtype == "float32" or bound not in (-128, 127):
                x = self.emit(name, [x, constant(bound, x.dtype, x.scale)], x.like())
        return x

    def group(self, step: Any, x: list[Value], y: Value) -> Value:
        """A quantised group; the bounds are inside of the operator, if LiteRT has that, or behind it."""
        group, op, made = step.group, step.op, x[0]
        for tensor, meaning in zip(step.inputs, group.inputs, strict=True):
            require(meaning.same_scale(tensor.quantized), f"integers that are read as {meaning} and {tensor.quantized}")
        if op in _PRODUCTS:
            x = [x[0], *_weights(group, x[0])]
        elif op == "relax.concat":
            x = [self.like(part, Value(part.shape, "int8", y.scale)) for part in x]
        require(op != "relax.nn.avg_pool2d" or made.scale == y.scale, "an average and its input differ in scale")
        if op not in ("relax.nn.relu", "relax.clip"):
            made = self.write(op, group.call.attrs, x, (y if op in _RESCALE else made).like(y.shape))
        made, bounds = self.like(made, y), [limit - _SHIFT[group.output.dtype] for limit in group.limits]
        if group.clip not in ACTIVATIONS or op not in (*_PRODUCTS, "relax.add"):
            return self.clipped(made, *bounds)
        made.producer.builtinOptions.fusedActivationFunction = ACTIVATIONS[group.clip][1]
        return made

    def step(self, step: Any, x: list[Value], y: Any) -> Any:
        """The result of a step, or a list of them."""
        if step.group is not None:
            return self.group(step, x, y)
        if step.steps:  # a product and a bias
            product, add = step.steps
            bias = next(t for t in add.inputs if t is not product.outputs[0]).data
            require(bias.shape[-1:] == y.shape[-1:] and bias.size == y.shape[-1], f"a bias of shape {bias.shape}")
            tensors = [x[0], _value(product.inputs[1]), constant(bias.reshape(-1))]
            return self.write(product.op, product.call.attrs, tensors, y)
        if step.op in ("relax.quantize", "relax.dequantize"):
            require(x[0].data is None, "a conversion of constants")
            return self.emit(step.op.removeprefix("relax.").upper(), x[:1], y)
        wrong = next((v.dtype for v in x if v.dtype != "float32" and step.op not in MOVES), "")
        require(not wrong, f"dtype {wrong}; this backend computes {step.op} in float32")
        if step.op == "relax.clip":
            return self.clipped(x[0], *(float(getattr(bound, "value", bound)) for bound in step.call.args[1:]))
        return self.write(step.op, step.call.attrs, x, y)


def model_of(what: Any, is_tried: bool = False) -> bytes:
    """A region, call, match or group as a model.

    With ``is_tried`` it is refused unless LiteRT accepts it, and makes the shapes that Relax expects.
    """
    region, model, outputs = byoc.steps_of(what), _Region(), []
    inputs = [_value(tensor, at_border=True) for tensor in region.inputs]
    known = {t: model.like(value, _value(t)) for t, value in zip(region.inputs, inputs, strict=True)}
    for step in region.steps:
        x = [known[t] if t in known else known.setdefault(t, _value(t)) for t in step.inputs]
        y = [_value(tensor) for tensor in step.outputs]
        made = model.step(step, x, y if isinstance(step.call.ty, relax.TupleType) else y[0])
        known.update(zip(step.outputs, made if isinstance(made, list) else [made], strict=True))
    for tensor in region.outputs:
        value = model.like(known[tensor], _value(tensor, at_border=True))
        # The results of a model are different tensors and none of its inputs.
        outputs.append(model.reshape(None, [value], value.like()) if value in [*inputs, *outputs] else value)
    data = model.finish(inputs, outputs)
    if is_tried:
        try:
            found = [tuple(map(int, d["shape"])) for d in _interpreter(data, "builtin").get_output_details()]
        except (RuntimeError, ValueError) as error:
            raise byoc.Reject(f"LiteRT: {' '.join(str(error).split())}") from error
        expected = [tuple(value.shape) for value in outputs]
        require(found == expected, f"LiteRT makes shapes {found} of it, and Relax {expected}")
    return data


def is_written(what: Any) -> bool:
    """Whether a call, match or group is taken: it is, if it can be written."""
    return bool(model_of(what, is_tried=True))


def takes(op: str) -> Callable[[Any, Sequence[Any]], bool]:
    """The predicate of an operator."""
    call, normal = tvm.ir.Op.get(op), relax.BlockBuilder().normalize
    return lambda attrs, args: is_written(normal(relax.Call(call, list(args), attrs)))


def codegen(functions: Sequence[Any], options: Mapping[str, Any], _names: Any) -> list[tvm.runtime.Module]:
    """A module of each region: the choice of kernels, and the model."""
    if (kernels := str(options["kernels"])) not in _KERNELS:
        raise byoc.InputError(f"option kernels is {kernels!r}; expected {', '.join(map(repr, _KERNELS))}")
    made = {str(f.attrs["global_symbol"]): f"{kernels}\n".encode() + model_of(f) for f in functions}
    return [byoc.blob_module("litert", symbol, data, version("ai-edge-litert")) for symbol, data in made.items()]


def check(compatibility: str) -> bool | byoc.Works:
    """Whether this process can run a blob: the format is kept, and an older version may lack an operator."""
    here = version("ai-edge-litert")
    return compatibility == here or byoc.Works(f"made for LiteRT {compatibility}, and here is {here}")


def load(data: bytes) -> Callable[..., None]:
    """``run(*arguments, *results)`` of a blob."""
    kernels, _, model = data.partition(b"\n")
    return runner(model, kernels.decode())


def runner(model: bytes, kernels: str) -> Callable[..., None]:
    """``run(*arguments, *results)`` of a model; each thread has an interpreter of its own."""
    local = threading.local()
    local.interpreter = first = _interpreter(model, kernels)
    inputs, outputs = ([d["index"] for d in of()] for of in (first.get_input_details, first.get_output_details))

    def run(*tensors: Any) -> None:
        if not hasattr(local, "interpreter"):
            local.interpreter = _interpreter(model, kernels)
        arrays = [np.from_dlpack(tensor) for tensor in tensors]
        for index, array in zip(inputs, arrays):
            local.interpreter.set_tensor(index, array)
        local.interpreter.invoke()
        for index, array in zip(outputs, arrays[len(inputs) :], strict=True):
            array[...] = local.interpreter.tensor(index)()

    return run


def _interpreter(model: bytes, kernels: str) -> Interpreter:
    """An interpreter that is ready, with as many threads as ``OMP_NUM_THREADS`` says, else all usable cores."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(given) if given.isdigit() and int(given) else len(os.sched_getaffinity(0))
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=_KERNELS[kernels], num_threads=threads)
    interpreter.allocate_tensors()
    return interpreter
