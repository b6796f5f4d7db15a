"""Fused operators: a pattern becomes one kernel with its own compute and schedule, and the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.relax.dpl import is_const, is_op, is_tuple, wildcard

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tvm_byoc_dnnl.core.compilation import read_log
from tvm_byoc_dnnl.ir.relax_utils import codegen_of
from tvm_byoc_dnnl.pipeline.regions import build_regions

VENDOR = "fused_op_vendor"
op, nn = relax.op, relax.op.nn


@pytest.fixture(autouse=True)
def vendor():
    yield
    byoc.unregister_compiler(VENDOR)


def module(function, *types):
    """A Relax module of ``function(builder, *variables)``."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(*t)) for i, t in enumerate(types)]
    with builder.function("main", params):
        with builder.dataflow():
            result = function(builder.emit, *params)
            result = builder.emit_output(relax.Tuple(list(result)) if isinstance(result, tuple) else result)
        builder.emit_func_output(result)
    return builder.get()


def inputs(mod, **symbols):
    rng = np.random.default_rng(0)
    shapes = [
        [int(d) if isinstance(d, tvm.tirx.IntImm) else symbols[d.name] for d in p.ty.shape] for p in mod["main"].params
    ]
    return [rng.standard_normal(s).astype("float32") for s in shapes]


def run(executable, args):
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, args))
    return [t.numpy() for t in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def behind_the_hooks(mod):
    with tvm.target.Target("llvm"):
        return build_regions(byoc.partition(mod, VENDOR))[1]


def kernels(mod):
    """The kernels of the fused operators."""
    return {g.name_hint: f for g, f in behind_the_hooks(mod).functions.items() if g.name_hint.startswith(VENDOR)}


def matches_stock(mod, count=1, rtol=1e-5, **symbols):
    """So many kernels, the numbers of stock TVM."""
    assert len(kernels(mod)) == count
    args = inputs(mod, **symbols)
    got = run(tvm.compile(byoc.partition(mod, VENDOR), "llvm", relax_pipeline="byoc"), args)
    for a, b in zip(got, run(tvm.compile(mod, "llvm"), args), strict=True):
        assert_right(a, b, rtol, least=1e-5 / rtol, elementwise=True)


# ---------------------------------------------------------------- the examples
def attention_pattern():
    q, k, v = wildcard(), wildcard(), wildcard()
    scores = is_op("relax.matmul")(q, k)
    return is_op("relax.matmul")(is_op("relax.nn.softmax")(scores), v)


def attention(q, k, v):
    rows, width = q.shape
    length, out = v.shape
    d, m, s, t = (te.reduce_axis((0, n), x) for n, x in ((width, "d"), (length, "m"), (length, "s"), (length, "t")))
    scores = te.compute((rows, length), lambda i, j: te.sum(q[i, d] * k[d, j], d), "scores")
    most = te.compute((rows,), lambda i: te.max(scores[i, m], m), "most")
    weight = te.compute((rows, length), lambda i, j: te.exp(scores[i, j] - most[i]), "weight")
    total = te.compute((rows,), lambda i: te.sum(weight[i, s], s), "total")
    mixed = te.compute((rows, out), lambda i, j: te.sum(weight[i, t] * v[t, j], t), "mixed")
    return te.compute((rows, out), lambda i, j: mixed[i, j] / total[i], "attention")


def row_by_row(sch):
    """Everything that a row of the result needs is computed in the iteration of that row."""
    row = sch.get_loops(sch.get_sblock("attention"))[0]
    for name in ("mixed", "total", "weight", "most", "scores"):
        sch.compute_at(sch.get_sblock(name), row)


def attention_module(emit, q, k, v):
    return emit(op.matmul(emit(nn.softmax(emit(op.matmul(q, k)))), v))


def test_attention_in_one_kernel():
    byoc.register_fused_op(VENDOR, "attention", attention_pattern(), compute=attention, schedule=row_by_row)
    mod = module(attention_module, ((16, 8), "float32"), ((8, 24), "float32"), ((24, 8), "float32"))
    matches_stock(mod)
    (kernel,) = kernels(mod).values()
    outermost = [line for line in kernel.script().splitlines() if line.startswith("    for ")]
    assert len(outermost) == 1, "the stages share the loop over rows"


def conv_relu_pattern():
    x, w = wildcard(), wildcard()
    conv = is_op("relax.nn.conv2d")(x, w)
    return is_op("relax.nn.relu")(conv), conv


def conv_relu(x, w, conv):
    (n, c, h, width), (k, _, r, s) = x.shape, w.shape
    top, left, bottom, right = (int(p) for p in conv.attrs.padding)
    padded = te.compute(
        (n, c, h + top + bottom, width + left + right),
        lambda b, i, y, z: te.if_then_else(
            te.all(y >= top, y < h + top, z >= left, z < width + left), x[b, i, y - top, z - left], 0.0
        ),
        "pad",
    )
    ci, ri, si = te.reduce_axis((0, c), "c"), te.reduce_axis((0, r), "r"), te.reduce_axis((0, s), "s")
    conv = te.compute(
        (n, k, padded.shape[2] - r + 1, padded.shape[3] - s + 1),
        lambda b, o, y, z: te.sum(padded[b, ci, y + ri, z + si] * w[o, ci, ri, si], [ci, ri, si]),
        "conv",
    )
    return te.compute(conv.shape, lambda *i: te.max(conv[i], 0.0), "relu")


def conv_at_rows(sch):
    n, k, y, z = sch.get_loops(sch.get_sblock("relu"))
    sch.compute_at(sch.get_sblock("conv"), y)
    sch.compute_inline(sch.get_sblock("pad"))
    sch.parallel(sch.fuse(n, k))
    sch.vectorize(z)


def test_conv2d_relu_with_compute_at_and_the_attributes_of_the_call():
    pattern, conv = conv_relu_pattern()
    byoc.register_fused_op(VENDOR, "conv_relu", pattern, conv_relu, conv_at_rows, annotations={"conv": conv})
    mod = module(
        lambda emit, x, w: emit(nn.relu(emit(nn.conv2d(x, w, padding=(1, 2, 0, 1))))),
        ((1, 3, 10, 12), "float32"),
        ((4, 3, 3, 3), "float32"),
    )
    matches_stock(mod, rtol=1e-4)
    (kernel,) = kernels(mod).values()
    assert "T.parallel" in kernel.script()


def inception_pattern():
    x = wildcard()
    weights = [wildcard() for _ in range(4)]
    conv = is_op("relax.nn.conv2d")
    branches = [
        conv(x, weights[0]),
        conv(conv(x, weights[1]), weights[2]),
        conv(is_op("relax.nn.max_pool2d")(x), weights[3]),
    ]
    return is_op("relax.concat")(is_tuple(branches))


def inception_block(emit, x, a, b, c, d):
    one = emit(nn.conv2d(x, a))
    two = emit(nn.conv2d(emit(nn.conv2d(x, b)), c, padding=(1, 1)))
    pooled = emit(nn.conv2d(emit(nn.max_pool2d(x, (3, 3), padding=(1, 1))), d))
    return emit(op.concat([one, two, pooled], axis=1))


INCEPTION = [((1, 8, 6, 6), "float32"), ((4, 8, 1, 1), "float32"), ((3, 8, 1, 1), "float32")]
INCEPTION += [((5, 3, 3, 3), "float32"), ((2, 8, 1, 1), "float32")]


def test_an_inception_block_in_one_kernel_with_the_operators_own_computes():
    parallel = []

    def schedule(sch):
        blocks = sch.get_child_blocks(sch.get_sblock("root"))
        parallel.append(len(blocks))
        sch.parallel(sch.get_loops(blocks[-1])[1])

    byoc.register_fused_op(VENDOR, "inception", inception_pattern(), schedule=schedule)
    mod = module(inception_block, *INCEPTION)
    matches_stock(mod, rtol=1e-4)
    assert parallel[-1] >= 6  # four convolutions, the pooling, the concatenation


def spread_pattern():
    x = wildcard()
    mean = is_op("relax.mean")(x)
    off = is_op("relax.subtract")(x, mean)
    return is_op("relax.multiply")(off, off), mean


def spread(x):
    rows, length = x.shape
    k = te.reduce_axis((0, length), "k")
    total = te.compute((rows, 1), lambda i, _: te.sum(x[i, k], k), "total")
    mean = te.compute((rows, 1), lambda i, j: total[i, j] / te.const(int(length), "float32"), "mean")
    off = te.compute(x.shape, lambda i, j: x[i, j] - mean[i, 0], "off")
    return te.compute(x.shape, lambda *i: off(*i) * off(*i), "squares"), mean


def spread_module(emit, x):
    mean = emit(op.mean(x, axis=[1], keepdims=True))
    off = emit(op.subtract(x, mean))
    return emit(op.multiply(off, off)), emit(op.exp(mean))


@pytest.mark.parametrize("compute", [spread, None], ids=["own compute", "default compute"])
@pytest.mark.parametrize("rows", [4, "n"], ids=["static", "symbolic"])
def test_an_op_of_two_outputs(compute, rows):
    pattern, mean = spread_pattern()
    byoc.register_fused_op(VENDOR, "spread", pattern, compute, outputs=[mean])
    rows = tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows
    matches_stock(module(spread_module, ((rows, 8), "float32")), n=5)


# ---------------------------------------------------------------- matches that are refused
def test_a_leaking_intermediate_is_refused_and_named():
    pattern, _ = spread_pattern()
    byoc.register_fused_op(VENDOR, "spread", pattern, spread)  # without outputs=
    mod = module(spread_module, ((4, 8), "float32"))
    assert not any(codegen_of(f) for f in byoc.partition(mod, VENDOR).functions.values())
    matches_stock(mod, count=0)


def test_a_match_that_would_feed_itself_is_refused():
    x, y = wildcard(), wildcard()
    inner = is_op("relax.exp")(x)
    byoc.register_fused_op(VENDOR, "sum", is_op("relax.add")(inner, y), outputs=[inner])

    def feeding(emit, x):
        a = emit(op.exp(x))
        return emit(op.add(a, emit(op.negative(a))))  # the second operand comes from the first result

    matches_stock(module(feeding, ((4, 8), "float32")), count=0)

    def parallel(emit, x):
        a = emit(op.exp(x))
        return emit(op.add(a, emit(op.negative(x)))), emit(op.negative(a))

    matches_stock(module(parallel, ((4, 8), "float32")))


FAILING = {
    "compute raises": ({"compute": lambda q, k, v: 1 / 0}, "the compute of fused op fused_op_vendor.attention failed"),
    "compute takes other inputs": ({"compute": lambda q: q}, "the compute of fused op"),
    "wrong shape": (
        {"compute": lambda q, k, v: te.compute((2, 2), lambda i, j: q[i, j] + k[i, j] + v[i, j])},
        "made float32[2, 2], expected",
    ),
    "too many results": (
        {"compute": lambda q, k, v: [te.compute(q.shape, lambda *i: q(*i)) for _ in range(2)]},
        "made 2 results, not 1",
    ),
    "schedule raises": (
        {"compute": attention, "schedule": lambda sch: sch.get_sblock("nothing")},
        "the schedule of fused op fused_op_vendor.attention failed",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failing_compute_or_schedule_leaves_the_calls_with_tvm(name):
    functions, reason = FAILING[name]
    byoc.register_fused_op(VENDOR, "attention", attention_pattern(), **functions)
    mod = module(attention_module, ((16, 8), "float32"), ((8, 24), "float32"), ((24, 8), "float32"))
    log = read_log(byoc.partition(mod, VENDOR))
    assert any(reason in e.reason for e in log), [e.reason for e in log]
    matches_stock(mod, count=0)


# ---------------------------------------------------------------- beside the rest
def test_the_other_passes_work_on_the_result():
    """Two equal matches share a kernel; what stands around them is fused and planned as ever."""
    byoc.register_fused_op(VENDOR, "attention", attention_pattern(), compute=attention, schedule=row_by_row)

    def twice(emit, q, k, v):
        first = attention_module(emit, emit(nn.relu(emit(op.negative(q)))), k, v)
        return emit(op.tanh(emit(op.exp(attention_module(emit, first, k, v)))))

    mod = module(twice, ((16, 8), "float32"), ((8, 24), "float32"), ((24, 8), "float32"))
    matches_stock(mod)
    with tvm.target.Target("llvm"):
        final = byoc.byoc_pipeline()(byoc.partition(mod, VENDOR))
    names = {g.name_hint for g, f in final.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    assert names == {f"{VENDOR}_0", "fused_tir_negative_relu", "fused_tir_exp_tanh"}


def test_constants_are_arguments_of_the_kernel():
    x, c = wildcard(), is_const()
    byoc.register_fused_op(
        VENDOR,
        "scaled",
        is_op("relax.exp")(is_op("relax.multiply")(x, c)),
        compute=lambda x, c: te.compute(x.shape, lambda i, j: te.exp(x[i, j] * c[j]), "scaled"),
    )
    scale = relax.const(np.linspace(0, 1, 8, dtype="float32"))
    matches_stock(module(lambda emit, x: emit(op.exp(emit(op.multiply(x, scale)))), ((4, 8), "float32")))


def test_in_a_namespace_with_a_runtime_of_its_own(tmp_path):
    """The kernel is built by the namespace's hooks, exported, and beside other regions of the namespace."""
    byoc.register_target_hooks(VENDOR, target="c")
    byoc.register_annotate_compiler(VENDOR, ["relax.nn.relu"])
    byoc.register_fused_op(VENDOR, "attention", attention_pattern(), compute=attention, schedule=row_by_row)
    mod = module(
        lambda emit, q, k, v: emit(nn.relu(attention_module(emit, q, k, v))),
        ((16, 8), "float32"),
        ((8, 24), "float32"),
        ((24, 8), "float32"),
    )
    executable = tvm.compile(byoc.partition(mod, VENDOR), "llvm", relax_pipeline="byoc")
    executable.export_library(str(tmp_path / "m.so"))
    args = inputs(mod)
    (want,) = run(tvm.compile(mod, "llvm"), args)
    loaded = tvm.runtime.load_module(str(tmp_path / "m.so"))
    for either in (executable, loaded):
        assert_right(run(either, args)[0], want, 1e-5, least=0.1, elementwise=True)
    text = executable.as_text()
    assert f"{VENDOR}_0" in text
    assert f"{VENDOR}_1" in text


def test_a_compute_that_returns_an_input_or_one_result_twice():
    root = is_op("relax.add")(is_op("relax.multiply")(wildcard(), wildcard()), wildcard())
    byoc.register_fused_op(VENDOR, "second", root, lambda a, b, c: b)
    mod = module(lambda emit, a, b, c: emit(op.add(op.multiply(a, b), c)), *[([4, 6], "float32")] * 3)
    args = inputs(mod)
    np.testing.assert_array_equal(
        run(tvm.compile(byoc.partition(mod, VENDOR), "llvm", relax_pipeline="byoc"), args)[0], args[1]
    )
    assert kernels(mod)

    product = is_op("relax.multiply")(wildcard(), wildcard())
    root = is_op("relax.nn.relu")(product)

    def compute(a, b):
        sum_ = te.compute(a.shape, lambda *i: a(*i) + b(*i))
        return sum_, sum_

    byoc.register_fused_op(VENDOR, "twice", root, compute, outputs=[product])
    mod = module(lambda emit, a, b: (emit(nn.relu(p := emit(op.multiply(a, b)))), p), *[([4, 6], "float32")] * 2)
    args = inputs(mod)
    for got in run(tvm.compile(byoc.partition(mod, VENDOR), "llvm", relax_pipeline="byoc"), args):
        np.testing.assert_array_equal(got, args[0] + args[1])
