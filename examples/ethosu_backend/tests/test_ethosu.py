"""MobileNetV2 and a DS-CNN of int8 are one region each, whose integers are those of LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.conformance import run_conformance

pytest.importorskip("ethosu.vela")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")

REAL, RELU6 = (0.05, 3), (6 / 255, -128)  # scale and zero point of what is not bounded, and of what is
STEP = {"int8": "1 step", "uint8": "1 step"}


class Network:
    """Quantised layers with random weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._random, self._builder = np.random.default_rng(0), relax.BlockBuilder()
        self._x, self._scale = relax.Var("x", relax.TensorType(shape, "int8")), {}

    def module(self, body: Callable[[Network, Any], Any]) -> tvm.IRModule:
        with self._builder.function("main", [self._x]):
            with self._builder.dataflow():
                self._scale[self._x] = REAL
                result = self._builder.emit_output(body(self, self._x))
            self._builder.emit_func_output(result)
        return self._builder.get()

    def _dq(self, x: Any) -> Any:
        scale, zero = self._scale[x]
        args = byoc.make_constant(np.float32(scale)), byoc.make_constant(np.asarray(zero, "int8"))
        return self._builder.emit(R.dequantize(x, *args))

    def _q(self, real: Any, scale: tuple[float, int] = REAL) -> Any:
        args = byoc.make_constant(np.float32(scale[0])), byoc.make_constant(np.asarray(scale[1], "int8"))
        made = self._builder.emit(R.quantize(self._builder.emit(real), *args, out_dtype="int8"))
        self._scale[made] = scale
        return made

    def _weights(self, *shape: int) -> Any:
        stored = byoc.make_constant(self._random.integers(-127, 128, shape).astype("int8"))
        scales = np.full(shape[0], 1.4 / 73 / np.sqrt(np.prod(shape[1:])), "float32")
        scales *= self._random.uniform(0.7, 1.3, shape[0]).astype("float32")
        zeros = byoc.make_constant(np.zeros(shape[0], "int8"))
        return self._builder.emit(R.dequantize(stored, byoc.make_constant(scales), zeros, axis=0))

    def conv(
        self, x: Any, channels: int, size: Any = 1, stride: int = 1, depthwise: bool = False, relu: bool = True
    ) -> Any:
        height, width = (size, size) if isinstance(size, int) else size
        groups = int(x.ty.shape[1]) if depthwise else 1
        weights = self._weights(channels, int(x.ty.shape[1]) // groups, height, width)
        padding = [(height - 1) // 2, (width - 1) // 2, height // 2, width // 2]
        real = R.nn.conv2d(self._dq(x), weights, strides=stride, padding=padding, groups=groups)
        bias = byoc.make_constant(self._random.normal(0, 0.3, (1, channels, 1, 1)).astype("float32"))
        real = R.add(self._builder.emit(real), bias)
        return self._q(R.clip(self._builder.emit(real), 0, 6), RELU6) if relu else self._q(real)

    def add(self, x: Any, y: Any) -> Any:
        return self._q(R.add(self._dq(x), self._dq(y)))

    def classes(self, x: Any, count: int) -> Any:
        mean = self._q(R.mean(self._dq(x), [2, 3]), RELU6)
        weights = self._builder.emit(R.permute_dims(self._weights(count, int(x.ty.shape[1]))))
        return self._q(R.matmul(self._dq(mean), weights))


def mobilenet(net: Network, x: Any) -> Any:
    """MobileNetV2: expansion, channels, blocks and stride of each stage."""
    x = net.conv(x, 32, 3, 2)
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, channels, blocks, stride in stages:
        for block in range(blocks):
            given, wide = x, int(x.ty.shape[1]) * expansion
            x = net.conv(x, wide) if expansion > 1 else x
            x = net.conv(x, wide, 3, 1 if block else stride, depthwise=True)
            x = net.conv(x, channels, relu=False)
            x = net.add(given, x) if block else x
    return net.classes(net.conv(x, 1280), 1000)


def ds_cnn(net: Network, x: Any) -> Any:
    """The keyword spotter of MLPerf Tiny: 49 by 10 features of sound, 12 words."""
    x = net.conv(x, 64, (10, 4), 2)
    for _ in range(4):
        x = net.conv(net.conv(x, 64, 3, depthwise=True), 64)
    return net.classes(x, 12)


NETWORKS = {"MobileNetV2": (mobilenet, (1, 3, 96, 96)), "DS-CNN": (ds_cnn, (1, 1, 49, 10))}


def network(name: str) -> tuple[tvm.IRModule, np.ndarray]:
    body, shape = NETWORKS[name]
    x = np.random.default_rng(1).integers(-128, 128, shape).astype("int8")
    return Network(shape).module(body), x


def regions(mod: tvm.IRModule) -> list[Any]:
    return [f for f in mod.functions.values() if f.attrs and "Codegen" in f.attrs]


def border(model: Any) -> list[tuple[Any, ...]]:
    """Shape, dtype, scale and zero point of the inputs and outputs of a model."""
    graph = schema.ModelT.InitFromPackedBuf(model, 0).subgraphs[0]
    tensors = [graph.tensors[i] for i in (*graph.inputs, *graph.outputs)]
    return [(*t.shape, t.type, *t.quantization.scale, *t.quantization.zeroPoint) for t in tensors]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_one_region_and_its_integers_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    from tvm_byoc_litert.region import model_of

    mod, x = network(name)
    (region,) = regions(byoc.partition(mod, "ethosu"))
    left = byoc.explain(mod, "ethosu", dry_run=True).calls
    assert {call.op for call in left if not call.compiler} <= {"relax.permute_dims"}
    ex = byoc.compile(mod, "ethosu", strict=True, options={"ethosu": {"folder": str(tmp_path)}})
    got = byoc.Runner(ex)(x)

    model = model_of(region)
    kinds = interpreter.OpResolverType
    reference = interpreter.Interpreter(model_content=model, experimental_op_resolver_type=kinds.BUILTIN_REF)
    reference.allocate_tensors()
    reference.set_tensor(
        reference.get_input_details()[0]["index"], x.transpose(0, 2, 3, 1).reshape(border(model)[0][:4])
    )
    reference.invoke()
    want = reference.get_tensor(reference.get_output_details()[0]["index"])
    np.testing.assert_array_equal(got, want)
    assert len(np.unique(got)) > 5

    (path,) = tmp_path.glob("*.tflite")
    made = path.read_bytes()
    assert border(made) == border(model)
    codes = schema.ModelT.InitFromPackedBuf(made, 0).operatorCodes
    assert [code.customCode for code in codes] == [b"ethos-u"]


def test_the_integers_are_near_those_of_real_numbers() -> None:
    mod, x = network("DS-CNN")
    want = byoc.Runner(tvm.compile(mod, "llvm"))(x).astype("float64").ravel()
    got = byoc.Runner(byoc.compile(mod, "ethosu", strict=True))(x).astype("float64").ravel()
    assert np.corrcoef(got, want)[0, 1] > 0.98


def test_it_conforms() -> None:
    """A share of the kit; ``python -m tvm_byoc_dnnl.testing ethosu`` runs the whole."""
    report = run_conformance("ethosu", share=0.1, tolerances=STEP)
    assert report.ok, report.to_text()


def test_explain_shows_what_vela_expects() -> None:
    mod, _ = network("DS-CNN")
    report = byoc.explain(mod, "ethosu", options={"ethosu": {"accelerator": "ethos-u55-256"}})
    (region,) = report.regions
    assert region.notes.startswith("ethos-u55-256: SRAM ")
    assert "cycles" in region.notes
    assert region.notes[:30] in report.to_text()


def test_regions_are_cut_to_the_memory_of_the_device() -> None:
    """A layer of the DS-CNN needs 15.6 KiB; what the NPU has no room for, LiteRT's reference kernels compute."""
    mod, x = network("DS-CNN")
    settings = {"ethosu": {"sram": 15 * 1024}, "litert": {"kernels": "reference"}}
    report = byoc.explain(mod, ["ethosu", "litert"], options=settings)
    assert {region.compiler for region in report.regions} == {"ethosu", "litert"}
    assert any("the device has 15360" in reason for call in report.calls for reason in call.reasons)
    got = byoc.Runner(byoc.compile(mod, ["ethosu", "litert"], options=settings))(x)
    np.testing.assert_array_equal(got, byoc.Runner(byoc.compile(mod, "ethosu"))(x))


def test_vela_trades_cycles_for_memory() -> None:
    mod, _ = network("DS-CNN")
    (region,) = regions(byoc.partition(mod, "ethosu"))
    from tvm_byoc_ethosu.vela import compiled
    from tvm_byoc_litert.region import model_of

    wide, narrow = (compiled(model_of(region), "ethos-u55-128", sram) for sram in (0, 16 * 1024))
    assert narrow.sram_bytes <= 16 * 1024 < wide.sram_bytes
    assert narrow.cycles > wide.cycles


def test_velas_estimate_is_the_cost() -> None:
    mod, _ = network("DS-CNN")
    placement = byoc.tune(mod, "ethosu", budget=10)
    assert {who for call, who in placement.items()} >= {"ethosu"}


def test_what_vela_leaves_to_the_cpu_is_not_taken() -> None:
    """The window of this pooling is higher than any that the NPU has."""

    def body(net: Network, x: Any) -> Any:
        return net._q(R.nn.max_pool2d(net._dq(x), (300, 1), (300, 1)))

    mod = Network((1, 8, 300, 2)).module(body)
    report = byoc.explain(mod, "ethosu", dry_run=True)
    assert not report.regions
