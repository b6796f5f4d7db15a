"""Means of equal numbers are their value, and norms lose nothing to a mean that is large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.e2e.test_exact_integers import module, results
from tests.harness import assert_right
from tests.isa import has_kernels
from tests.unit.importing import node, onnx_model

pytestmark = [pytest.mark.native, pytest.mark.skipif(not has_kernels(), reason="they need AVX2")]

op, nn = relax.op, relax.op.nn
#: the compilers, and whether the common forms are recognised first
WAYS = {"dnnl": {}, "unprepared": {"prepare": False}, "tvm": {"compiler": []}}
GAMMA, BETA = np.float32(0.8), np.float32(0.3)


def model(nodes: list[Any], shape: list[Any], channels: int, opset: int = 21) -> onnx.ModelProto:
    return onnx_model(nodes, {"x": shape}, {"g": np.full(channels, GAMMA), "b": np.full(channels, BETA)}, opset=opset)


def normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    x = x.astype("float64")
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def by_group(x: np.ndarray) -> np.ndarray:
    return normalized(x.reshape(x.shape[0], 2, -1), (2,)).reshape(x.shape) * GAMMA + BETA


#: name → model of inputs of a shape, the function in float64
NORMS: dict[str, tuple[Callable[[list[Any], int], onnx.ModelProto], Callable[[np.ndarray], np.ndarray]]] = {
    "layer": (
        lambda shape, channels: model([node("LayerNormalization", ["x", "G", "B"], ["y"], axis=2)], shape, channels),
        lambda x: normalized(x, (2, 3)) * GAMMA + BETA,
    ),
    "instance": (
        lambda shape, channels: model([node("InstanceNormalization", ["x", "g", "b"], ["y"])], shape, channels),
        lambda x: normalized(x, (2, 3)) * GAMMA + BETA,
    ),
    "group": (
        lambda shape, channels: model(
            [node("GroupNormalization", ["x", "g", "b"], ["y"], num_groups=2)], shape, channels
        ),
        by_group,
    ),
    "mean and variance": (
        lambda shape, channels: model([node("MeanVarianceNormalization", ["x"], ["y"])], shape, channels, opset=13),
        lambda x: normalized(x, (0, 2, 3), epsilon=0),
    ),
}


def norm(name: str, shape: list[Any], sizes: tuple[int, ...]) -> onnx.ModelProto:
    made = NORMS[name][0](shape, sizes[1])
    if name == "layer":
        for key, value in (("G", GAMMA), ("B", BETA)):
            made.graph.initializer.append(onnx.numpy_helper.from_array(np.full(sizes[2:], value), key))
    return made


#: a layer norm's parameters have the sizes of its axes
FORMS = [(name, is_open) for name in NORMS for is_open in (False, True) if not (is_open and name == "layer")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("offset", [0.0, pytest.param(100.0, marks=pytest.mark.sweep), 3000.0])
@pytest.mark.parametrize(("name", "is_open"), FORMS)
def test_a_large_mean(name: str, offset: float, is_open: bool, way: str) -> None:
    sizes = (2, 4, 61, 83)
    x = (np.random.default_rng(3).standard_normal(sizes) + offset).astype("float32")
    made = norm(name, ["n", 4, "h", "w"] if is_open else list(sizes), sizes)
    got = np.asarray(byoc.Runner(byoc.compile(made, policy=byoc.RegionPolicy(), **WAYS[way]))(x))
    # a spelled-out form rounds the mean to float32, and an average of pixels is added in it
    is_spelled_out = name == "mean and variance" or (name == "instance" and way != "dnnl")
    within = 2e-6 + (offset * 2e-6 if is_spelled_out else 0)
    assert_right(got, NORMS[name][1](x).astype("float32"), within, least=1.0, elementwise=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [10000.7, *(pytest.param(value, marks=pytest.mark.sweep) for value in (50.3, -0.1))])
@pytest.mark.parametrize("name", ["layer", "instance", "group"])
def test_equal_numbers_become_the_shift(name: str, value: float, way: str) -> None:
    for sizes in ((2, 4, 1, 1), (3, 6, 1, 7), (1, 4, 16, 48), (2, 2, 29, 101)):
        made = norm(name, list(sizes), sizes)
        got = np.asarray(
            byoc.Runner(byoc.compile(made, policy=byoc.RegionPolicy(), **WAYS[way]))(np.full(sizes, value, "float32"))
        )
        np.testing.assert_array_equal(got, np.full(sizes, BETA))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "axes", [(3,), (2, 3), (0, 2), *(pytest.param(a, marks=pytest.mark.sweep) for a in ((1,), (0, 1, 2, 3)))], ids=str
)
@pytest.mark.parametrize(("name", "is_spread"), [("mean", False), ("variance", True), ("std", True)])
def test_statistics_of_equal_numbers(name: str, is_spread: bool, axes: tuple[int, ...], way: str) -> None:
    x = np.full((3, 7, 11, 13), 10000.7, "float32")
    mod = module(lambda x: getattr(op, name)(x, axis=list(axes)), *x.shape)
    got = results(mod, x, **WAYS[way])
    if axes == (2, 3) and way != "tvm" and not is_spread:  # a pooling
        np.testing.assert_allclose(got, x[..., 0, 0], rtol=2e-6)
    else:
        np.testing.assert_array_equal(got, np.zeros_like(got) if is_spread else np.full_like(got, x[0, 0, 0, 0]))


@pytest.mark.parametrize("op_type", ["ReduceMean", "GlobalAveragePool"])
def test_a_mean_of_many_pixels(op_type: str) -> None:
    x = (np.random.default_rng(1).standard_normal((1, 3, 150, 160)) + 1000).astype("float32")
    inputs = ["x", "axes"] if op_type == "ReduceMean" else ["x"]
    made = onnx_model([node(op_type, inputs, ["y"])], {"x": x.shape}, {"axes": np.array([2, 3])}, opset=18)
    got = np.asarray(byoc.Runner(byoc.compile(made, policy=byoc.RegionPolicy()))(x))
    np.testing.assert_array_equal(got, x.astype("float64").mean((2, 3), keepdims=True).astype("float32"))


@pytest.mark.parametrize("width", [1, 2, 7, 16, 768])
def test_quantised_rows_of_equal_numbers(width: int) -> None:
    names = {"s": 0.2633055, "t": 0.00541498}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("LayerNormalization", ["d", "g", "b"], ["l"]),
        node("QuantizeLinear", ["l", "t", "z"], ["y"]),
    ]
    constants = {
        **{name: np.float32(value) for name, value in names.items()},
        "z": np.uint8(0),
        "g": np.full(width, GAMMA),
        "b": np.full(width, BETA),
    }
    made = onnx_model(nodes, {"x": (3, width)}, constants, dtypes={"y": TensorProto.UINT8})
    got = np.asarray(byoc.Runner(byoc.compile(made))(np.full((3, width), 50.3, "float32")))
    np.testing.assert_array_equal(got, np.full((3, width), round(float(BETA) / names["t"]), "uint8"))


def test_a_batch_norm_that_trains() -> None:
    x = (np.random.default_rng(1).standard_normal((4, 3, 90, 90)) + 3000).astype("float32")

    def build(x: Any) -> Any:
        ones, zeros = (relax.const(np.full(3, v, "float32")) for v in (1, 0))
        return relax.TupleGetItem(nn.batch_norm(x, ones, zeros, zeros, ones, axis=1, training=True), 0)

    got = results(module(build, *x.shape), x)
    assert_right(got, normalized(x, (0, 2, 3)).astype("float32"), 4e-4, least=1.0, elementwise=True)


KERNELS: dict[str, Callable[[Any], Any]] = {
    "log": lambda x: op.log(op.abs(x)),
    "layer norm": lambda x: nn.layer_norm(x, *(relax.const(np.full(37, v)) for v in (GAMMA, BETA)), axes=[-1]),
    "mean": lambda x: op.mean(x, axis=[1, 2]),
    "quotient": lambda x: op.divide(x, relax.const(np.float32(49))),
}


@pytest.mark.parametrize(
    "name", [name if name == "layer norm" else pytest.param(name, marks=pytest.mark.sweep) for name in KERNELS]
)
def test_source_gives_the_same(name: str) -> None:
    x = (np.random.default_rng(1).standard_normal((5, 3, 37)) + 100).astype("float32")
    mod = module(KERNELS[name], *x.shape)
    np.testing.assert_array_equal(results(mod, x, output="source", strict=True), results(mod, x))
