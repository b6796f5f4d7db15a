"""Steps between two tensors of bytes: tables of 256 results, and normalisations from bytes to bytes."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tests.harness import Case, data
from tests.patterns.dnnl.quantized_reference import ERF, number, stored, whole, within_a_step

op, nn = relax.op, relax.op.nn


def between_bytes(steps, reference, *shape, source="uint8", result="uint8"):
    """Steps between a dequantisation and a quantisation."""

    def function(x, s, z, rs, rz):
        return op.quantize(steps(op.dequantize(x, s, z)), rs, rz, out_dtype=result)

    def wanted(x, s, z, rs, rz):
        return stored(reference((x - z) * s), rs, rz, result)

    operands = (
        whole(*shape, dtype=source, make=data),
        number(0.031),
        number(7, source),
        number(0.013),
        number(60, result),
    )
    return Case(function, operands, wanted)


def real(value):
    return relax.const(np.asarray(value, "float32"))


STEPS = {
    "gelu": (nn.gelu, lambda x: x * (1 + ERF(x / np.sqrt(2))) / 2),
    "swish": (lambda x: op.multiply(x, op.sigmoid(x)), lambda x: x / (1 + np.exp(-x))),
    "numbers": (
        lambda x: op.tanh(op.divide(op.add(op.multiply(x, real(0.7)), real(0.1)), real(3.0))),
        lambda x: np.tanh((x * 0.7 + 0.1) / 3),
    ),
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
    "nothing": (lambda x: x, lambda x: x),
}


@pytest.mark.parametrize("dtypes", [("uint8", "uint8"), ("int8", "uint8")])
@pytest.mark.parametrize("name", STEPS)
def test_steps_between_bytes_are_a_table(name, dtypes):
    case = between_bytes(*STEPS[name], 3, 5, 41, source=dtypes[0], result=dtypes[1]).offloads()
    kinds = [kind for kind, _ in case.nodes()]
    assert kinds == (["eltwise"] if name == "nothing" and dtypes[0] == dtypes[1] else ["lookup"]), kinds
    within_a_step(case)


@pytest.mark.parametrize(
    "steps",
    [
        lambda x: op.add(nn.gelu(x), real(np.linspace(-1, 1, 41))),  # depends on the place
        lambda x: op.sqrt(x),  # NaN for some bytes
        lambda x: nn.gelu(op.mean(x, [2], keepdims=True)),
    ],
)
def test_what_is_no_function_of_one_byte_is_no_table(steps):
    case = between_bytes(steps, None, 3, 5, 41).offloads()
    assert "lookup" not in [kind for kind, _ in case.nodes()]


def test_real_results_that_are_read_elsewhere_are_no_table():
    def function(x, s, z):
        y = nn.gelu(op.dequantize(x, s, z))
        return op.quantize(y, s, z, out_dtype="uint8"), y

    case = Case(function, (whole(3, 41, dtype="uint8", make=data), number(0.031), number(7, "uint8")))
    case.offloads()
    assert "lookup" not in [kind for kind, _ in case.nodes()]


@pytest.mark.parametrize("kind", ["softmax", "layer_norm"])
def test_a_normalisation_between_bytes(kind):
    weights = np.linspace(-1, 2, 41, dtype="float32")

    def steps(x):
        return nn.softmax(x, -1) if kind == "softmax" else nn.layer_norm(x, real(weights), real(weights), [-1])

    def reference(x):
        if kind == "softmax":
            e = np.exp(x - x.max(-1, keepdims=True))
            return e / e.sum(-1, keepdims=True)
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weights + weights

    case = between_bytes(steps, reference, 3, 5, 41).offloads()
    assert [k for k, _ in case.nodes()] == ["softmax" if kind == "softmax" else "layer_normalization"]
    within_a_step(case)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4, 1), -1), ((2, 3, 1), 1), ((2, 33, 5, 6), 1), ((2, 1, 5), 1), ((2, 3, 4, 5), 2), ((7, 16), 0)],
)
def test_a_softmax_along_any_axis(shape, axis, dtype):
    """oneDNN's primitive multiplies its result by the scale of its source."""

    def reference(x):
        e = np.exp(x - x.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    def function(x, s, z, rs, rz):
        return op.quantize(nn.softmax(op.dequantize(x, s, z), axis), rs, rz, out_dtype=dtype)

    scalings = (number(0.031), number(7, dtype), number(0.0043), number(0, dtype))
    operands = (whole(*shape, dtype=dtype, make=data), *scalings)
    case = Case(function, operands, lambda x, s, z, rs, rz: stored(reference((x - z) * s), rs, rz, dtype))
    within_a_step(case.offloads(), share=0.05)


def test_scales_of_shape_one_are_equal_to_those_without_a_shape():
    def function(x, s, z, s2, z2):
        return op.quantize(op.permute_dims(op.dequantize(x, s, z)), s2, z2, out_dtype="uint8")

    one = number(np.full(1, 0.03)), number(np.full(1, 7), "uint8")
    operands = (whole(3, 41, dtype="uint8", make=data), *one, number(0.03), number(7, "uint8"))
    case = Case(function, operands, lambda x, *_: x.T).offloads()
    within_a_step(case.becomes(), share=0)
