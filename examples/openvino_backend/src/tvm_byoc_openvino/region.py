"""A region as an OpenVINO model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openvino as ov
import tvm
from openvino import opset13 as ops
from tvm import relax

from .operators import convert, parameter

__all__ = ["model_of"]


def model_of(region: relax.Function) -> tuple[ov.Model, list[str]]:
    """The model of a region, and for each result of the region the name of the model's output or input that it is.

    OpenVINO does not copy a parameter that is a result, too, and a saved model may have its results in another order.
    """
    inputs = [parameter(p) for p in region.params]
    places = {node.output(0): f"input_{i}" for i, node in enumerate(inputs)}
    outputs, results = list(_flat(_run(region, [node.output(0) for node in inputs]))), []
    for output in outputs:
        if output not in places:
            places[output] = f"output_{len(results)}"
            results.append(ops.result(output))
            results[-1].set_friendly_name(places[output])
    return ov.Model(results, inputs, str(region.attrs["global_symbol"])), [places[output] for output in outputs]


def _flat(result: Any) -> Iterator[Any]:
    for item in result if isinstance(result, list) else [result]:
        yield from _flat(item) if isinstance(item, list) else [item]


def _run(func: relax.Function, arguments: list[Any]) -> Any:
    """The outputs of a function whose parameters have these values; composite functions are run in their place."""
    known: dict[Any, Any] = dict(zip(func.params, arguments, strict=True))

    def value(expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return [value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return value(expr.tuple_value)[expr.index]
        if not isinstance(expr, relax.Call):
            return known[expr]
        if isinstance(expr.op, tvm.ir.Op):
            return convert(expr, value)
        return _run(known[expr.op], [value(arg) for arg in expr.args])

    for block in func.body.blocks:
        for binding in block.bindings:
            is_function = isinstance(binding.value, relax.Function)
            known[binding.var] = binding.value if is_function else value(binding.value)
    return value(func.body.body)
