"""Quantised tensors that several calls read: a pattern finds each group by itself, and nothing is computed twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, wildcard

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tvm_byoc_dnnl.ir.relax_utils import op_calls

VENDOR = "qdq_npu"
SHAPE = (1, 4, 6, 6)


def scale(value=0.25, dtype="int8", zero=3):
    return relax.const(np.float32(value)), byoc.make_constant(np.array(zero, dtype))


def dq(x, value=0.25):
    return R.dequantize(x, *scale(value), axis=0, out_dtype="float32")


def q(x, value=0.5):
    return R.quantize(x, *scale(value), axis=0, out_dtype="int8")


def weights(seed=0):
    w = np.random.default_rng(seed).integers(-9, 9, (4, 4, 3, 3)).astype("int8")
    return byoc.make_constant(w)


def module(build, dtype="int8", shape=SHAPE) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = build(builder.emit, x)
            outputs = [builder.emit_output(v) for v in (made if isinstance(made, tuple) else (made,))]
        builder.emit_func_output(outputs if len(outputs) > 1 else outputs[0])
    return builder.get()


def conv(x, seed=0):
    return R.nn.conv2d(x, dq(weights(seed), 2**-6), padding=(1, 1))


def residual(emit, x):
    a = emit(dq(x))
    b = emit(dq(emit(q(emit(conv(a))))))
    return emit(q(emit(R.add(a, b))))


def three_readers(emit, x):
    a = emit(dq(x))
    parts = [emit(dq(emit(q(emit(conv(a, i)))), 0.5)) for i in range(3)]
    return emit(q(emit(R.add(emit(R.add(parts[0], parts[1])), parts[2]))))


def twice_in_one_call(emit, x):
    a = emit(dq(x))
    return emit(q(emit(R.add(a, a))))


def conversion_of_a_float(emit, x):
    a = emit(dq(emit(q(x, 0.125)), 0.125))
    return emit(q(emit(conv(a)))), emit(q(emit(conv(a, 1))))


def weights_of_two(emit, x):
    a, w = emit(dq(x)), emit(dq(weights(), 2**-6))
    b = emit(dq(emit(q(emit(R.nn.conv2d(a, w, padding=(1, 1)))))))
    return emit(q(emit(R.nn.conv2d(b, w, padding=(1, 1)))))


def also_a_result(emit, x):
    a = emit(dq(x))
    return a, emit(q(emit(conv(a))))


def also_for_tvm(emit, x):
    a = emit(dq(x))
    return emit(R.exp(a)), emit(R.tan(a)), emit(q(emit(conv(a))))


def only_for_tvm(emit, x):
    a = emit(dq(x))
    return emit(R.exp(a)), emit(R.tan(a)), emit(R.sin(a))


CASES = {  # model → the groups that are found, the calls that stay
    "residual": (residual, {"conv": 1, "add": 1}, {}),
    "three readers": (three_readers, {"conv": 3}, {"dequantize": 3, "add": 2, "quantize": 1}),
    "twice in one call": (twice_in_one_call, {"add": 1}, {}),
    "a float, dtype float32": (conversion_of_a_float, {"conv": 2}, {"quantize": 1}),
    "weights of two": (weights_of_two, {"conv": 2}, {}),
    "also a result": (also_a_result, {"conv": 1}, {"dequantize": 1}),
    "also for TVM": (also_for_tvm, {"conv": 1}, {"dequantize": 1, "exp": 1, "tan": 1}),
    "only for TVM": (only_for_tvm, {}, {"dequantize": 1, "exp": 1, "tan": 1, "sin": 1}),
}


def pattern_dq(x=None):
    return is_op("relax.dequantize")(wildcard() if x is None else x, wildcard(), wildcard())


def pattern_q(x):
    return is_op("relax.quantize")(x, wildcard(), wildcard())


def conv_group(x=None):
    return pattern_q(is_op("relax.nn.conv2d")(pattern_dq(x), pattern_dq(is_const())))


@pytest.fixture
def vendor():
    byoc.register_pattern(VENDOR, "conv", conv_group())
    byoc.register_pattern(VENDOR, "add", pattern_q(is_op("relax.add")(pattern_dq(), pattern_dq())))
    byoc.register_codegen(VENDOR, lambda functions, *_: [])
    yield
    byoc.unregister_compiler(VENDOR)


def found(mod: tvm.IRModule) -> tuple[Counter, Counter]:
    """The composites that main calls, and the operators that it still has."""
    composites: Counter = Counter()
    for _, value in byoc.bindings_of(mod["main"]):
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            composites[byoc.composite_of(mod[value.op]).partition(".")[2]] += 1
    return composites, Counter(call.op.name.removeprefix("relax.") for _, call in op_calls(mod["main"]))


def annotated(mod, compilers=VENDOR):
    return byoc.AnnotateExternalCompiler(compilers)(mod)


@pytest.mark.parametrize(("build", "groups", "left"), CASES.values(), ids=CASES)
def test_each_reader_has_a_group_of_its_own(vendor, build, groups, left):
    mod = annotated(module(build, "float32" if build is conversion_of_a_float else "int8"))
    assert found(mod) == (groups, left)
    assert relax.analysis.well_formed(mod) is not False


def test_a_pattern_may_begin_with_the_quantize_of_a_float(vendor):
    byoc.register_pattern(VENDOR, "whole", conv_group(pattern_q(wildcard())))
    byoc.unregister_compiler(VENDOR)
    byoc.register_pattern(VENDOR, "whole", conv_group(pattern_q(wildcard())))
    assert found(annotated(module(conversion_of_a_float, "float32"))) == ({"whole": 2}, {})


@pytest.mark.parametrize("name", ["quantize", "dequantize"])
def test_a_group_that_is_only_the_conversion_is_computed_once(vendor, name):
    byoc.unregister_compiler(VENDOR)
    byoc.register_pattern(VENDOR, "alone", is_op(f"relax.{name}")(wildcard(), wildcard(), wildcard()))
    composites, _ = found(annotated(module(conversion_of_a_float, "float32")))
    assert composites == {"alone": 3}  # of x once, and that of each convolution's result or weights


def test_the_end_of_a_group_is_not_copied_for_its_readers(vendor):
    def build(emit, x):
        y = emit(q(emit(conv(emit(dq(x))))))
        a, b = emit(dq(y)), emit(dq(y, 0.5))
        return emit(q(emit(R.add(a, b))))

    assert found(annotated(module(build))) == ({"conv": 1, "add": 1}, {})


def test_a_sum_of_32_bits_is_scaled_once(vendor):
    byoc.unregister_compiler(VENDOR)
    product = is_op("relax.matmul")(wildcard(), wildcard())
    byoc.register_pattern(VENDOR, "sum", is_op("relax.dequantize")(product, wildcard(), wildcard()))

    def build(emit, x):
        total = emit(R.matmul(x, x, out_dtype="int32"))
        real = emit(R.dequantize(total, *scale(0.1, "int32", 0), axis=0, out_dtype="float32"))
        return emit(R.exp(real)), emit(R.tan(real))

    assert found(annotated(module(build))) == ({"sum": 1}, {"exp": 1, "tan": 1})


def test_no_match_is_reported_as_refused_because_of_another_reader(vendor):
    report = byoc.explain(module(residual), VENDOR, policy=byoc.RegionPolicy(), dry_run=True)
    assert [c.near_misses for c in report.calls if c.near_misses] == []
    assert len({c.name for c in report.calls}) == len(report.calls)


@pytest.mark.native
@pytest.mark.parametrize("build", [case[0] for case in CASES.values()], ids=CASES)
def test_dnnl_computes_the_same_behind_a_vendor_and_alone(vendor, build):
    dtype = "float32" if build is conversion_of_a_float else "int8"
    x = np.random.default_rng(1).integers(-9, 9, SHAPE).astype(dtype)
    mod = module(build, dtype)
    want = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(x))
    want = [want] if isinstance(want, tvm.runtime.Tensor) else list(want)
    for compilers in ("dnnl", [VENDOR, "dnnl"]):
        got = byoc.Runner(byoc.compile(mod, compilers))(x)
        for g, w in zip(got if isinstance(got, list) else [got], want, strict=True):
            assert_right(g, w.numpy())
