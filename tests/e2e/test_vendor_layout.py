"""The layout that a namespace wants: predicates see calls in it, permutations cancel, and the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.ir.relax_utils import op_calls

V, W = "layout_npu", "layout_dsp"
RNG = np.random.default_rng(0)
OP = relax.op
CONV, POOL = "relax.nn.conv2d", "relax.nn.max_pool2d"
ALL = [CONV, POOL, "relax.add", "relax.nn.relu", "relax.clip", "relax.quantize", "relax.dequantize"]
ALL += ["relax.mean", "relax.reshape"]


@pytest.fixture(autouse=True)
def _forget():
    yield
    for name in {V, W} & set(byoc.compilers()):
        byoc.unregister_compiler(name)


def weights(*shape, dtype="float32"):
    if dtype == "int8":
        return byoc.make_constant(RNG.integers(-9, 9, shape).astype(dtype))
    return byoc.make_constant(RNG.standard_normal(shape).astype(dtype))


def conv(x, out, into, name="conv2d", size=3, **attrs):
    rank = len(x.ty.shape) - 2
    return getattr(OP.nn, name)(x, weights(out, into, *[size] * rank), padding=[size // 2] * rank, **attrs)


def scalar(value, dtype):
    return relax.const(np.array(value, dtype))


def q(x, scale=0.25):
    return OP.quantize(x, scalar(scale, "float32"), scalar(3, "int8"), axis=1, out_dtype="int8")


def dq(x, scale=0.25):
    return OP.dequantize(x, scalar(scale, "float32"), scalar(3, "int8"), axis=1, out_dtype="float32")


def per_channel(x, channels):
    zeros = byoc.make_constant(np.zeros(channels, "int8"))
    scales = byoc.make_constant((RNG.random(channels) + 0.5).astype("float32"))
    return OP.dequantize(OP.quantize(x, scales, zeros, axis=1, out_dtype="int8"), scales, zeros, axis=1)


def quantised_conv(x, out, into):
    scales = byoc.make_constant((RNG.random(out) + 0.1).astype("float32"))
    zeros = byoc.make_constant(np.zeros(out, "int8"))
    stored = OP.dequantize(weights(out, into, 3, 3, dtype="int8"), scales, zeros, axis=0)
    return OP.nn.conv2d(x, stored, padding=1)


def module(write, shape=(1, 3, 8, 9)):
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.normalize(write(builder, x)))
        builder.emit_func_output(y)
    return builder.get()


def chain(b, x):
    x = b.emit(OP.nn.relu(b.emit(OP.add(b.emit(conv(x, 4, 3)), weights(1, 4, 1, 1)))))
    return OP.nn.max_pool2d(b.emit(conv(x, 5, 4)), (2, 2), (2, 2))


def quantised(b, x):
    x = b.emit(dq(b.emit(q(b.emit(OP.clip(b.emit(conv(x, 4, 3)), 0, 6))))))
    return dq(b.emit(q(b.emit(quantised_conv(x, 5, 4)))))


def channels(b, x):
    return conv(b.emit(per_channel(b.emit(conv(x, 4, 3)), 4)), 5, 4)


def residual(b, x):
    a = b.emit(dq(b.emit(q(b.emit(conv(x, 4, 3))))))
    c = b.emit(dq(b.emit(q(b.emit(conv(a, 4, 4))))))
    return q(b.emit(OP.nn.relu(b.emit(OP.add(a, c)))))


def only_pools(b, x):
    return OP.nn.max_pool2d(b.emit(OP.nn.avg_pool2d(x, (2, 2))), (2, 2))


def between(b, x):
    return conv(b.emit(OP.exp(b.emit(conv(x, 4, 3)))), 5, 4)


def to_mean(b, x):
    return OP.mean(b.emit(conv(x, 4, 3)), [2, 3], keepdims=True)


def turned(b, x):
    """As TensorFlow's models are: NHWC outside."""
    x = b.emit(OP.permute_dims(x, [0, 3, 1, 2]))
    return OP.permute_dims(b.emit(conv(x, 4, 9)), [0, 2, 3, 1])


def flat(b, x):
    return conv(b.emit(conv(x, 4, 3, "conv1d")), 4, 4, "conv1d")


def deep(b, x):
    return conv(b.emit(conv(x, 4, 3, "conv3d")), 4, 4, "conv3d")


def classifier(b, x):
    x = b.emit(dq(b.emit(q(b.emit(OP.mean(b.emit(conv(x, 4, 3)), [2, 3], keepdims=True))))))
    return OP.matmul(b.emit(dq(b.emit(q(b.emit(OP.reshape(x, (1, 4))))))), weights(4, 5))


def squeezed(b, x):
    """A block that scales channels by products of their means."""
    y = b.emit(dq(b.emit(q(b.emit(conv(x, 4, 3))))))
    means = b.emit(OP.reshape(b.emit(OP.mean(y, [2, 3], keepdims=True)), (1, 4)))
    spread = b.emit(OP.reshape(b.emit(OP.matmul(means, weights(4, 4))), (1, 4, 1, 1)))
    return OP.add(y, b.emit(dq(b.emit(q(spread)))))


# name: (function, shape, permutations that are left)
CASES = {
    "chain": (chain, (1, 3, 8, 9), 2),
    "quantised": (quantised, (2, 3, 8, 9), 2),
    "per channel": (channels, (1, 3, 5, 5), 2),
    "residual": (residual, (1, 3, 7, 7), 2),
    "only pools": (only_pools, (1, 3, 9, 9), 2),
    "a foreign call between": (between, (1, 3, 5, 5), 4),
    "axes move along": (to_mean, (1, 3, 5, 5), 2),
    "permuted before": (turned, (1, 8, 7, 9), 0),
    "one dimension": (flat, (1, 3, 9), 2),
    "three dimensions": (deep, (1, 3, 3, 5, 4), 2),
    "flattened": (classifier, (1, 3, 5, 5), 1),
    "flattened and back": (squeezed, (1, 3, 5, 5), 2),
    "open sizes": (chain, ("n", 3, "h", 9), 2),
}


def calls_of(mod, vendor):
    composites = (f for f in mod.functions.values() if f.attrs and str(f.attrs.get("Composite", "")).startswith(vendor))
    return [call for f in composites for _, call in op_calls(f)]


def run(mod, *arrays):
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def register(name, layout, refuse=lambda attrs: False, ops=(), **options):
    seen = []

    def predicate(attrs, args):
        seen.append(str(getattr(attrs, "data_layout", getattr(attrs, "layout", ""))))
        return byoc.Reject("not this one") if refuse(attrs) else True

    for op in (*ALL, "relax.nn.conv1d", "relax.nn.conv3d", "relax.nn.avg_pool2d", *ops):
        byoc.register_annotate_compiler(name, op, predicate)
    byoc.register_namespace(name, layout=layout, **options)
    return seen


@pytest.mark.parametrize(("write", "shape", "left"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("stored", ["", "HWIO"])
def test_calls_come_in_the_layout(write, shape, left, stored):
    seen = register(V, "NHWC", weights=stored)
    open_sizes = {size: tvm.tirx.Var(size, "int64") for size in shape if isinstance(size, str)}
    given = module(write, tuple(open_sizes.get(size, size) for size in shape))
    made = byoc.AnnotateExternalCompiler(V)(given)
    taken = calls_of(made, V)
    assert {text for text in seen if text} <= {"NWC", "NHWC", "NDHWC"}
    kernels = {str(c.attrs.kernel_layout) for c in taken if "conv" in c.op.name}
    order = stored or "OHWI"
    assert kernels <= {order.replace("H", dims) for dims in ("", "H", "DH")}
    permutations = [call for _, call in op_calls(made["main"]) if call.op.name == "relax.permute_dims"]
    assert len(permutations) == left
    assert not any(call.op.name == "relax.permute_dims" for call in taken)
    x = RNG.standard_normal([{"n": 2, "h": 8}.get(size, size) for size in shape]).astype("float32")
    np.testing.assert_allclose(run(byoc.InlineComposites()(made), x), run(given, x), rtol=1e-4, atol=1e-4)


def test_a_quantised_group_at_the_border_comes_in_the_layout():
    def write(b, x):
        real = b.emit(dq(b.emit(q(b.emit(OP.exp(x))))))
        return q(b.emit(OP.nn.relu(b.emit(OP.add(b.emit(quantised_conv(real, 4, 3)), weights(1, 4, 1, 1))))))

    byoc.register_namespace(V, layout="NHWC")
    byoc.register_quantization(V, ["conv"], check=lambda group: group.call.attrs.data_layout == "NHWC")
    given = module(write)
    made = byoc.AnnotateExternalCompiler(V)(given)
    assert [call.op.name for call in calls_of(made, V)].count(CONV) == 1
    x = RNG.standard_normal((1, 3, 8, 9)).astype("float32")
    np.testing.assert_array_equal(run(byoc.InlineComposites()(made), x), run(given, x))


def test_calls_that_it_does_not_take_stay_as_they_are():
    register(V, "NHWC", refuse=lambda attrs: getattr(attrs, "groups", 1) > 1)

    def write(b, x):
        return conv(b.emit(conv(b.emit(conv(x, 4, 3)), 4, 2, groups=2)), 5, 4)

    made = byoc.AnnotateExternalCompiler(V)(module(write))
    left = [call for _, call in op_calls(made["main"]) if call.op.name == CONV]
    assert [str(call.attrs.data_layout) for call in left] == ["NCHW"]
    assert [str(call.attrs.data_layout) for call in calls_of(made, V)] == ["NHWC"] * 2


def test_the_reason_is_that_of_the_call_in_the_layout():
    seen = register(V, "NHWC", refuse=lambda attrs: hasattr(attrs, "data_layout"))
    byoc.register_quantization(V, ["pool"], check=lambda group: byoc.Reject(f"in {group.call.attrs.layout}"))

    def write(b, x):
        pooled = b.emit(q(b.emit(OP.nn.max_pool2d(b.emit(dq(b.emit(q(x)))), (2, 2)))))
        return conv(b.emit(dq(pooled)), 4, 3)

    byoc.register_codegen(V, lambda functions, *_: [])
    report = byoc.explain(module(write), V, policy=byoc.RegionPolicy(), dry_run=True)
    reasons = {call.op: call.reasons for call in report.calls}
    assert reasons[CONV] == [f"{V}: not this one"]
    assert {text for text in seen if text} == {"NHWC"}
    assert {miss.reason for call in report.calls for miss in call.near_misses} <= {"in NHWC"}


def test_nothing_changes_where_it_takes_nothing():
    register(V, "NHWC", refuse=lambda attrs: True)
    made = byoc.AnnotateExternalCompiler(V)(module(chain))
    assert not any(call.op.name == "relax.permute_dims" for _, call in op_calls(made["main"]))


@pytest.mark.parametrize("first", [V, W])
def test_two_namespaces_have_a_layout_each(first):
    register(V, "NHWC", refuse=lambda attrs: getattr(attrs, "groups", 1) > 1)
    register(W, "CHWN", weights="IHWO")

    def write(b, x):
        return conv(b.emit(conv(x, 4, 3)), 4, 2, groups=2)

    given = module(write)
    second = W if first == V else V
    made = byoc.AnnotateExternalCompiler([first, second])(given)
    layouts = {name: [str(c.attrs.data_layout) for c in calls_of(made, name)] for name in (V, W)}
    assert layouts == ({V: ["NHWC"], W: ["CHWN"]} if first == V else {V: [], W: ["CHWN"] * 2})
    x = RNG.standard_normal((1, 3, 8, 9)).astype("float32")
    np.testing.assert_allclose(run(byoc.InlineComposites()(made), x), run(given, x), rtol=1e-4, atol=1e-4)


def test_a_compiler_without_a_layout_sees_the_usual_one():
    register(V, "NHWC", refuse=lambda attrs: getattr(attrs, "groups", 1) == 1)
    seen = register(W, "")
    byoc.AnnotateExternalCompiler([V, W])(module(chain))
    assert {text for text in seen if text} == {"NCHW"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"layout": "NHW"}, "layout is 'NHW'; expected the letters NCHW in some order"),
        ({"layout": "NHWC", "weights": "OIHX"}, "weights is 'OIHX'; expected the letters OIHW"),
        ({"weights": "HWIO"}, "layout is ''; expected the letters NCHW"),
        ({"layout": 3}, "layout is 3; expected"),
    ],
)
def test_what_is_no_layout_is_refused(parts, message):
    with pytest.raises(byoc.InputError, match=message):
        byoc.register_namespace(V, **parts)


# ---------------------------------------------------------------- prepare=
def test_a_preparing_pass_sees_what_its_namespace_may_take():
    seen = []

    @tvm.transform.module_pass(opt_level=0, name="Look")
    class Look:
        def transform_module(self, mod, ctx):
            seen.extend(call.op.name for f in mod.functions.values() for _, call in op_calls(f))
            return mod

    byoc.register_annotate_compiler(V, [CONV])
    byoc.register_pattern(V, "p", relax.dpl.is_op("relax.nn.relu")(relax.dpl.wildcard()))
    byoc.register_namespace(V, prepare=[lambda: Look()])
    given = module(chain)
    made = byoc.AnnotateExternalCompiler(V)(given)
    assert set(seen) == {CONV, "relax.nn.relu", "relax.call_pure_packed"}
    x = RNG.standard_normal((1, 3, 8, 9)).astype("float32")
    np.testing.assert_allclose(run(byoc.InlineComposites()(made), x), run(given, x), rtol=1e-5, atol=1e-5)
