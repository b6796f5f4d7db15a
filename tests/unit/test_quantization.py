"""What a backend takes of quantised models: ready patterns, what they read, and the same for those who quantise."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax import op as R

import tvm_byoc_dnnl as byoc
from tests.unit.test_own_copies import dq, module, q, scale
from tvm_byoc_dnnl.vendors.quantization import KINDS

VENDOR = "int8_npu"
RNG = np.random.default_rng(0)
ROWS = np.ones((1, 1, 6, 1), "float32")


@pytest.fixture
def vendor():
    def register(*args, **limits):
        byoc.register_codegen(VENDOR, lambda functions, *_: [], override=True)
        return byoc.register_quantization(VENDOR, *args, **limits)

    yield register
    byoc.unregister_compiler(VENDOR)


def report_of(model):
    return byoc.explain(model, VENDOR, policy=byoc.RegionPolicy(), dry_run=True)


def weights(shape=(4, 4, 3, 3), axis=0, zero=0, dtype="int8", channels=None):
    channels = shape[axis] if channels is None else channels
    numbers = byoc.make_constant(RNG.integers(0, 9, shape).astype(dtype))
    scales = byoc.make_constant((2.0 ** -np.arange(3, 3 + channels)).astype("float32"))
    zeros = byoc.make_constant(np.full(channels, zero, dtype))
    return R.dequantize(numbers, scales, zeros, axis=axis, out_dtype="float32")


def conv(w):
    return lambda emit, x: emit(q(emit(R.nn.conv2d(emit(dq(x)), emit(w()), padding=(1, 1)))))


def matmul(w, transposed=False):
    def build(emit, x):
        right = emit(w())
        right = emit(R.permute_dims(right)) if transposed else right
        return emit(q(emit(R.matmul(emit(dq(x)), right))))

    return build


def two(build):
    return lambda emit, x: emit(q(emit(build(emit(dq(x)), emit(dq(x, 0.5))))))


def concat(parts):
    return lambda emit, x: emit(q(emit(R.concat([emit(dq(x)) for _ in range(parts)], 1))))


def one(build):
    return lambda emit, x: emit(q(emit(build(emit(dq(x))))))


TAKEN = {
    "conv": conv(weights),
    "conv, one scale": conv(lambda: weights(channels=1)),
    "conv, depthwise": lambda emit, x: emit(
        q(emit(R.nn.conv2d(emit(dq(x)), emit(weights((4, 1, 3, 3))), padding=(1, 1), groups=4)))
    ),
    "matmul": matmul(lambda: weights((6, 5), axis=1)),
    "matmul, transposed": matmul(lambda: weights((5, 6)), transposed=True),
    "matmul of activations": two(R.matmul),
    "add": two(R.add),
    "add and relu": one(lambda x: R.nn.relu(R.add(x, x))),
    "relu": one(R.nn.relu),
    "clip": one(lambda x: R.clip(x, 0, 6)),
    "add and clip": one(lambda x: R.clip(R.add(x, x), 0, 6)),
    "max pool": one(lambda x: R.nn.max_pool2d(x, (2, 2))),
    "average pool": one(lambda x: R.nn.avg_pool2d(x, (2, 2))),
    "mean": one(lambda x: R.mean(x, [2, 3], keepdims=True)),
    "resize": one(lambda x: R.image.resize2d(x, (12, 12), method="nearest_neighbor")),
    "reshape": one(lambda x: R.reshape(x, (1, 144))),
    "batch_flatten": one(R.nn.batch_flatten),
    "permute_dims": one(lambda x: R.permute_dims(x, [0, 2, 3, 1])),
    **{f"concat of {n}": concat(n) for n in (2, 3, 8)},
}


@pytest.mark.parametrize("build", TAKEN.values(), ids=TAKEN)
def test_a_group_is_taken_whole(vendor, build):
    vendor()
    report = report_of(module(build))
    assert {c.compiler for c in report.calls} == {VENDOR}, report.to_text()


REFUSED = {
    "dtype": ({"activations": "uint8"}, conv(weights), "activations of dtype int8; int8_npu has uint8"),
    "zero point": ({"symmetric_activations": True}, conv(weights), "zero point 3 of activations; int8_npu has 0"),
    "weights of uint8": ({}, conv(lambda: weights(dtype="uint8")), "weights of dtype uint8; int8_npu has int8"),
    "weights, zero point": ({}, conv(lambda: weights(zero=2)), "a zero point of weights that is 2; int8_npu has 0"),
    "weights, scales": ({"per_channel": False}, conv(weights), "scales along axis 0 of weights; int8_npu has one"),
    "weights, axis": ({}, conv(lambda: weights(axis=1)), "scales along axis 1 of weights; int8_npu has 0"),
    "product, axis": ({}, matmul(lambda: weights((6, 5), axis=0)), "scales along axis 0 of weights; int8_npu has 1"),
    "product, transposed": (
        {},
        matmul(lambda: weights((5, 6), axis=1), transposed=True),
        "scales along axis 1 of weights; int8_npu has 0",
    ),
    "a bias for each row": (
        {},
        lambda emit, x: emit(
            q(emit(R.add(emit(R.nn.conv2d(emit(dq(x)), emit(weights()), padding=(1, 1))), relax.const(ROWS))))
        ),
        "a bias of shape (1, 1, 6, 1), which is not one for each output",
    ),
    "other scales": (
        {"shared_scales": ["pool"]},
        one(lambda x: R.nn.max_pool2d(x, (2, 2))),
        "the scales of the inputs of a pool and of its output differ; int8_npu needs one",
    ),
    "a check": ({"check": lambda g: byoc.Reject(f"no {g.op}")}, two(R.add), "no relax.add"),
    "a check that raises": ({"check": lambda g: g.nothing}, two(R.add), "AttributeError"),
    "a kind that is not there": ({"kinds": ["conv"]}, two(R.add), "has no predicate for relax.add"),
}


@pytest.mark.parametrize(("limits", "build", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_take_has_a_reason(vendor, limits, build, reason):
    vendor(**limits)
    report = report_of(module(build))
    assert not any(c.compiler for c in report.calls)
    reasons = [r for c in report.calls for r in (*c.reasons, *(n.reason for n in c.near_misses))]
    assert any(reason in r for r in reasons), reasons


def test_equal_scales_are_taken_where_one_is_needed(vendor):
    vendor(shared_scales="pool")
    report = report_of(module(lambda emit, x: emit(q(emit(R.nn.max_pool2d(emit(dq(x, 0.5)), (2, 2)))))))
    assert {c.compiler for c in report.calls} == {VENDOR}


@pytest.mark.parametrize("what", ["kinds", "activations", "weights", "shared_scales"])
@pytest.mark.parametrize("given", [["float8"], "float8"])
def test_an_unknown_name_is_an_error(what, given):
    with pytest.raises(byoc.InputError, match=rf"register_quantization\('int8_npu'\): {what} has 'float8'; expected"):
        byoc.register_quantization(VENDOR, **{what: given})


def test_no_kind_is_an_error():
    with pytest.raises(byoc.InputError, match="kinds has none; expected some of conv"):
        byoc.register_quantization(VENDOR, [])


# ---------------------------------------------------------------- what a group says
def test_a_group_says_its_scales_and_its_bias_as_the_integers_that_it_was(vendor):
    stored = np.array([7, -70000, 0, 123456], "int32")
    scales = 0.25 * 2.0 ** -np.arange(3.0, 7.0)
    bias = byoc.make_constant((stored * scales).astype("float32").reshape(1, 4, 1, 1))
    seen = []
    vendor(check=lambda group: seen.append(group) or True)
    report_of(
        module(
            lambda emit, x: emit(
                q(emit(R.nn.relu(emit(R.add(emit(R.nn.conv2d(emit(dq(x)), emit(weights()), padding=(1, 1))), bias)))))
            )
        )
    )
    group = seen[0]
    assert (group.op, group.output.dtype, group.output.zero_points) == ("relax.nn.conv2d", "int8", 3)
    assert [(t.dtype, t.axis, t.is_symmetric) for t in group.inputs] == [("int8", None, False), ("int8", 0, True)]
    assert group.inputs[0].scales.shape == () and group.inputs[0].scales == np.float32(0.25)
    assert group.weights is group.inputs[1] and byoc.is_constant(group.weights.tensor)
    np.testing.assert_array_equal(group.bias, stored)
    assert group.bias.dtype == np.int32
    np.testing.assert_array_equal(group.sum_scales, scales)
    np.testing.assert_array_equal(group.multipliers, scales / 0.5)
    assert group.clip == (0, math.inf) and group.limits == (3, 127)


@pytest.mark.parametrize(
    ("call", "clip", "limits"),
    [
        (R.nn.relu, (0, math.inf), (3, 127)),
        (lambda x: R.clip(x, -1, 6), (-1, 6), (1, 15)),
        (lambda x: R.clip(R.nn.relu(x), -1, 6), (0, 6), (3, 15)),
    ],
)
def test_a_relu_or_a_clip_in_the_middle_bounds_the_integers(vendor, call, clip, limits):
    seen = []
    vendor(check=lambda group: seen.append(group) or True)
    report_of(module(lambda emit, x: emit(q(emit(call(emit(dq(x))))))))
    assert {(group.clip, group.limits) for group in seen} == {(clip, limits)}


def test_a_bias_that_is_no_number_of_32_bits_is_refused(vendor):
    bias = byoc.make_constant(np.full((1, 4, 1, 1), 1e12, "float32"))
    vendor(check=lambda group: group.bias is not None)
    report = report_of(
        module(
            lambda emit, x: emit(q(emit(R.add(emit(R.nn.conv2d(emit(dq(x)), emit(weights()), padding=(1, 1))), bias))))
        )
    )
    assert "a bias of 1e+12 is no number of 32 bits" in str([n.reason for c in report.calls for n in c.near_misses])


@pytest.mark.native
def test_a_codegen_and_fits_read_groups_by_any_handle():
    found = {}

    def read(region):
        for _var, value in byoc.bindings_of(region):
            if isinstance(value, relax.Function):
                found["function"] = byoc.quantized(value)
                calls = [v for _, v in byoc.bindings_of(value)]
                found["last call"] = byoc.quantized(calls[-1], value)
                found["conversion"] = byoc.quantized(calls[0], value)
            elif isinstance(value, relax.Call):
                found["call"] = byoc.quantized(value)
                found["within"] = byoc.quantized(value, region)
        return True

    def codegen(functions, _options, _names):
        read(functions[0])
        return [byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), b"", "") for f in functions]

    byoc.register_quantization(VENDOR)
    byoc.register_codegen(VENDOR, codegen)
    byoc.register_namespace(VENDOR, fits=read)
    try:
        byoc.explain(module(conv(weights)), VENDOR, policy=byoc.RegionPolicy(), dry_run=True)
        by_fits = dict(found)
        byoc.partition(module(conv(weights)), VENDOR, policy=byoc.RegionPolicy(), strict=True)
    finally:
        byoc.unregister_compiler(VENDOR)
    for groups in (by_fits, found):
        assert isinstance(groups.pop("conversion"), byoc.QuantizedTensor)
        assert {g.op for g in groups.values()} == {"relax.nn.conv2d"} and len(groups) == 4
        for group in groups.values():
            np.testing.assert_array_equal(group.weights.scales, 2.0 ** -np.arange(3.0, 7.0))


def product_with(stored, turns):
    """The group of a product whose weights are ``stored``, turned so often."""
    x = relax.Var("x", relax.TensorType((3, 2, 4), "int8"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        turned = builder.emit(dq(stored))
        for axes in turns:
            turned = builder.emit(R.permute_dims(turned, axes))
        product = builder.emit(R.matmul(builder.emit(dq(x)), turned))
        builder.emit_func_output(product)
    main = builder.get()["main"]
    return byoc.quantized([value for _, value in byoc.bindings_of(main)][-1], main)


@pytest.mark.parametrize(
    ("turns", "is_transposed"),
    [([], False), ([[1, 0]], True), ([None], True), ([[1, 0], [-1, -2]], False), ([[1, 0], [1, 0], None], True)],
)
def test_weights_that_are_turned_back_are_not_transposed(turns, is_transposed):
    stored = byoc.make_constant(np.ones((4, 4), "int8"))
    group = product_with(stored, turns)
    assert group.is_transposed == is_transposed
    assert group.weights.tensor.same_as(stored)


def test_weights_whose_axes_are_moved_otherwise_are_not_read():
    group = product_with(byoc.make_constant(np.ones((4, 3, 4), "int8")), [[1, 0, 2]])
    assert group.weights is None and group.inputs[1] is None


def test_what_is_not_quantised_is_an_error():
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    with pytest.raises(byoc.InputError, match=r"^relax\.add is not quantised as far as can be seen"):
        byoc.quantized(R.add(x, x))
    with pytest.raises(byoc.InputError, match="a Var is between the conversions"):
        byoc.quantized(R.quantize(x, *scale(), out_dtype="int8"))


# ---------------------------------------------------------------- for those who quantise
def residual_network() -> onnx.ModelProto:
    """Convolutions with a sum, a pool, a concat, a resize, a mean and a product."""
    tensors = {
        "w1": RNG.standard_normal((8, 3, 3, 3)) / 5,
        "b1": RNG.standard_normal(8),
        "w2": RNG.standard_normal((8, 8, 3, 3)) / 8,
        "b2": RNG.standard_normal(8),
        "w3": RNG.standard_normal((16, 5)) / 4,
        "b3": RNG.standard_normal(5),
        "sizes": np.array([1, 1, 2, 2]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], pads=[1] * 4),
        helper.make_node("Add", ["c2", "p1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r2"]),
        helper.make_node("Concat", ["r2", "p1"], ["cat"], axis=1),
        helper.make_node("Resize", ["cat", "", "sizes"], ["big"], mode="nearest"),
        helper.make_node("GlobalAveragePool", ["big"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(t.astype("float32"), name) for name, t in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


LIMITS = {
    "the usual": {},
    "uint8": {"activations": "uint8"},
    "symmetric": {"symmetric_activations": True},
    "one scale": {"per_channel": False},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_what_onnxruntime_quantises_for_it_is_one_region(vendor, limits, tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Reader(quantization.CalibrationDataReader):
        def __init__(self):
            self._data = iter([{"x": RNG.standard_normal((1, 3, 8, 8)).astype("float32")} for _ in range(3)])

        def get_next(self):
            return next(self._data, None)

    spec = vendor(**limits)
    onnx.save(residual_network(), tmp_path / "net.onnx")
    quantization.quantize_static(tmp_path / "net.onnx", tmp_path / "q.onnx", Reader(), **spec.onnxruntime())
    report = report_of(tmp_path / "q.onnx")
    assert len(report.regions) == 1, report.to_text()
    left = [c.op for c in report.calls if c.compiler is None]
    assert set(left) <= {"relax.quantize", "relax.dequantize"} and len(left) <= 2, report.to_text()


def test_what_torchao_quantises_for_it_is_one_region(vendor):
    torch = pytest.importorskip("torch")
    flow = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = (torch.nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8))
            self.c = torch.nn.Linear(16, 4)

        def forward(self, x):
            a = torch.relu(self.a(x))
            b = torch.nn.functional.max_pool2d(torch.relu(self.b(a) + a), 2)
            c = torch.cat([b, torch.nn.functional.max_pool2d(a, 2)], 1)
            return self.c(c.mean([2, 3]))

    for limits in ({}, {"shared_scales": ["pool", "concat"]}, {"per_channel": False, "symmetric_activations": True}):
        spec = vendor(override=True, **limits)
        inputs = (torch.randn(1, 3, 8, 8),)
        prepared = flow.prepare_pt2e(torch.export.export(Net().eval(), inputs).module(), spec.torchao())
        for _ in range(3):
            prepared(torch.randn(1, 3, 8, 8))
        report = report_of(torch.export.export(flow.convert_pt2e(prepared), inputs))
        assert len(report.regions) == 1, report.to_text()


def test_every_kind_has_an_example_that_its_pattern_takes(vendor):
    for limits in LIMITS.values():
        vendor(override=True, **limits)
        for name, pattern in byoc.register_namespace(VENDOR).patterns.items():
            mod = byoc.partition(pattern.example(), VENDOR, policy=byoc.RegionPolicy(), prepare=False, dry_run=True)
            assert f"{VENDOR}.{name}" in mod.script(), name
    assert set(KINDS) == {n.split("_")[1] for n in byoc.register_namespace(VENDOR).patterns}
