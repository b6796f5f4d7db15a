"""Relax -> TE: structure of functions, constants, symbols, refusals; numbers against TVM where they could differ."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.relax import op as R
from tvm.script import ir as I
from tvm.script import relax as RS
from tvm.script import tirx as T

from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.ir.tvm_compat import dtype_of
from tvm_byoc_dnnl.te import schedule_te, translate_to_te

RNG = np.random.default_rng(0)


def var(name, shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def function(params, body):
    """A module whose `main` is `body(builder)` over `params`."""
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(builder.normalize(body(builder)))
    return builder.get()


def flatten(result):
    if isinstance(result, tvm.runtime.Tensor):
        return [result.numpy()]
    return [leaf for item in result for leaf in flatten(item)]


def run(mod, *inputs):
    tensors = [tvm.runtime.tensor(i) if isinstance(i, np.ndarray) else i for i in inputs]
    return flatten(relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](*tensors))


def through_te(mod, scheduler=None):
    """The module's `main`, replaced by one call of its TE graph."""
    main = relax.utils.copy_with_new_vars(mod["main"])
    graph = translate_to_te((mod, "main"))
    builder = relax.BlockBuilder()
    with builder.function("main", main.params):
        call = graph.call(builder, main.params, schedule_te(graph, scheduler=scheduler) if scheduler else None)
        builder.emit_func_output(builder.emit(call))
    return builder.get()


def assert_same(mod, *inputs):
    expected, actual = run(mod, *inputs), run(through_te(mod), *inputs)
    assert [(a.shape, a.dtype) for a in actual] == [(e.shape, e.dtype) for e in expected]
    for a, e in zip(actual, expected, strict=True):
        assert_right(a, e)


def data(*shape):
    return RNG.uniform(-1, 1, shape).astype("float32")


# -- constants -----------------------------------------------------------------------------------------------


def test_constants_come_in_the_order_of_use_and_once():
    first, second, unused = (relax.const(data(4, 4)) for _ in range(3))
    x = var("x", (4, 4))

    def body(builder):
        builder.emit(R.add(x, unused))
        y = builder.emit(R.matmul(x, second))
        return builder.emit(R.add(R.matmul(y, first), R.multiply(second, relax.const(2.0))))

    mod = function([x], body)
    graph = translate_to_te(mod["main"])
    values = [constant.numpy() for constant in graph.constants]
    assert len(values) == 2, "unused and scalar constants are not parameters"
    np.testing.assert_array_equal(values[0], second.value.numpy() if hasattr(second, "value") else second.data.numpy())
    params = graph.to_primfunc().params
    assert len(params) == len(graph.inputs) + len(graph.constants) + len(graph.outputs) == 4
    assert_same(mod, data(4, 4))


def test_two_relax_constants_of_one_tensor_are_one_input():
    tensor = tvm.runtime.tensor(data(4))
    x = var("x", (4,))
    mod = function([x], lambda b: b.emit(R.add(R.add(x, relax.const(tensor)), relax.const(tensor))))
    assert len(translate_to_te(mod["main"]).constants) == 1


# -- tuples and results --------------------------------------------------------------------------------------


def test_tuple_parameters_and_nested_results():
    t = relax.Var("t", relax.TupleType([relax.TensorType((3,), "float32"), relax.TensorType((3,), "float32")]))
    x = var("x", (3,))

    def body(builder):
        a, b = builder.emit(t[0]), builder.emit(t[1])
        both = builder.emit(relax.Tuple([R.add(a, x), R.multiply(b, x)]))
        return relax.Tuple([both, builder.emit(both[0])])

    mod = function([t, x], body)
    graph = translate_to_te(mod["main"])
    assert [i.op.name for i in graph.inputs] == ["t_0", "t_1", "x"]
    assert len(graph.outputs) == 3
    pair, third = [tvm.runtime.tensor(data(3)) for _ in range(2)], data(3)
    assert_same(mod, tvm.runtime.convert(pair) if hasattr(tvm.runtime, "convert") else pair, third)


@pytest.mark.parametrize("scalar", [False, True], ids=["vector", "scalar"])
def test_results_that_are_inputs_constants_or_repeated(scalar):
    shape = () if scalar else (3,)
    x = var("x", shape)

    def body(builder):
        y = builder.emit(R.exp(x))
        return relax.Tuple([x, y, y, relax.const(np.float32(2) * np.ones(shape, "float32"))])

    mod = function([x], body)
    graph = translate_to_te(mod["main"])
    assert len({out.op for out in graph.outputs}) == 4
    assert_same(mod, np.asarray(data(*shape)))


# -- calls into functions ------------------------------------------------------------------------------------


@I.ir_module
class Calls:
    @T.prim_func(private=True, s_tir=True)
    def double(a: T.Buffer((3, 5), "float32"), b: T.Buffer((3, 5), "float32")):
        for i, j in T.grid(3, 5):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, vj] * T.float32(2)

    @RS.function(private=True)
    def biased(p: RS.Tensor(("n", "m"), "float32"), q: RS.Tensor(("m",), "float32")) -> RS.Tensor(
        ("n", "m"), "float32"
    ):
        n, m = T.int64(), T.int64()
        gv = RS.add(p, RS.broadcast_to(q, RS.shape([n, m])))
        return gv

    @RS.function
    def main(x: RS.Tensor((3, 5), "float32"), y: RS.Tensor((5,), "float32")):
        cls = Calls

        @RS.function(pure=True)
        def local(v: RS.Tensor((3, 5), "float32")) -> RS.Tensor((3, 5), "float32"):
            w = RS.add(RS.exp(v), x)
            return w

        a = cls.biased(x, y)
        b = RS.call_tir(cls.double, (a,), out_ty=RS.Tensor((3, 5), "float32"))
        c = RS.call_tir(cls.double, (b,), out_ty=RS.Tensor((3, 5), "float32"))
        d = local(c)
        e = local(d)
        f = cls.biased(e, y)
        return f


def test_local_global_and_tir_functions_are_inlined():
    graph = translate_to_te((Calls, "main"))
    assert [node.op for node in graph.nodes].count("double") == 2
    x, y = data(3, 5) / 4, data(5) / 4

    def local(v):  # TVM cannot compile a captured variable: NumPy is the reference
        return np.exp(v) + x

    assert_right(run(through_te(Calls), x, y)[0], local(local(4 * (x + y))) + y)


def test_a_composite_is_translated_by_its_global_var():
    x, w = var("x", (2, 4)), var("w", (4, 3))
    mod = function([x, w], lambda b: b.emit(R.nn.relu(b.emit(R.matmul(x, w)))))
    pattern = relax.dpl.is_op("relax.nn.relu")(
        relax.dpl.is_op("relax.matmul")(relax.dpl.wildcard(), relax.dpl.wildcard())
    )
    mod = relax.transform.ConvertToDataflow()(mod)
    mod = relax.transform.FuseOpsByPattern([("v.matmul_relu", pattern)])(mod)
    (gvar,) = (g for g, f in mod.functions.items() if g.name_hint != "main")
    graph = translate_to_te((mod, gvar))
    assert [node.op for node in graph.nodes] == ["relax.matmul", "relax.nn.relu"]
    assert graph.anchor.op == "relax.matmul"


def test_call_tir_with_symbols_and_a_scalar():
    n = tirx.Var("n", "int64")
    k = tirx.Var("k", "int64")
    a = te.placeholder((n, 4), "float32", "a")
    axis = te.reduce_axis((0, 4), "j")
    total = te.compute((n,), lambda i: te.sum(a[i, axis], axis=axis), name="total")
    scaled = te.compute((n,), lambda i: total[i] * k.astype("float32"), name="scaled")
    func = te.create_prim_func([a, k, scaled], "int64").without_attr("global_symbol")
    m = tirx.Var("m", "int64")
    x = var("x", (m, 4))

    def body(builder):
        gvar = builder.add_func(func, "row_sums")
        ty = relax.TensorType((m,), "float32")
        args = relax.Tuple([x, tirx.const(3, "int64")])
        return builder.emit(R.exp(builder.emit(R.call_tir(gvar, args, ty))))

    assert_same(function([x], body), data(7, 4))


# -- symbolic shapes -----------------------------------------------------------------------------------------


def test_symbols_of_tensors_need_no_parameter():
    n = tirx.Var("n", "int64")
    x, y = var("x", (n, 4)), var("y", (4, 6))
    mod = function([x, y], lambda b: b.emit(R.nn.softmax(b.emit(R.reshape(R.matmul(x, y), (n * 2, 3))))))
    graph = translate_to_te(mod["main"])
    assert all(isinstance(i, te.Tensor) for i in graph.inputs)
    assert graph.inputs[0].shape[0] is not n, "the graph has symbols of its own"
    assert_same(mod, data(5, 4), data(4, 6))


def test_shape_parameters_become_scalars():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = var("x", (n * m,))
    s = relax.Var("s", relax.ShapeType([n, m]))
    mod = function([x, s], lambda b: b.emit(R.reshape(x, relax.ShapeExpr([n, m]))))
    graph = translate_to_te(mod["main"])
    assert [i.op.name if isinstance(i, te.Tensor) else i.name for i in graph.inputs] == ["x", "n", "m"]
    assert_same(mod, data(6), tvm.runtime.ShapeTuple([2, 3]))


def test_scalar_parameters_become_scalars():
    n, k = tirx.Var("n", "int64"), relax.Var("k", tvm.ir.PrimType("int64"))
    x = var("x", (n,))
    mod = function([x, k], lambda b: b.emit(R.reshape(x, relax.ShapeExpr([k, n // k]))))
    graph = translate_to_te(mod["main"])
    assert [i.op.name if isinstance(i, te.Tensor) else i.name for i in graph.inputs] == ["x", "k"]
    result = run(through_te(mod), data(6), 3)[0]
    assert result.shape == (3, 2)


def test_match_cast_binds_and_checks():
    n, k = tirx.Var("n", "int64"), tirx.Var("k", "int64")
    x = var("x", (n, 4))

    def body(builder):
        flat = builder.emit(R.flatten(x))
        cast = builder.match_cast(flat, relax.TensorType((k,), "float32"))
        return builder.emit(R.reshape(cast, (1, k)))

    assert_same(function([x], body), data(3, 4))

    unproven = function([x], lambda b: b.match_cast(x, relax.TensorType((n, n), "float32")))
    with pytest.raises(UnsupportedError, match="checked at run time"):
        translate_to_te(unproven["main"])


def test_a_parameter_of_known_rank_gets_symbols():
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=2))
    mod = function([x], lambda b: b.emit(R.sum(x, axis=[1])))
    graph = translate_to_te(mod["main"])
    assert [d.name for d in graph.inputs[0].shape] == ["x_0", "x_1"]
    assert len(graph.outputs[0].shape) == 1


def test_bfloat16_and_integers_keep_their_dtype():
    x = var("x", (4,), "bfloat16")
    y = var("y", (4,), "int8")
    mod = function([x, y], lambda b: relax.Tuple([b.emit(R.exp(x)), b.emit(R.add(y, y))]))
    assert [dtype_of(out) for out in translate_to_te(mod["main"]).outputs] == ["bfloat16", "int8"]


# -- several reductions ---------------------------------------------------------------------------------------


def _attention(n):
    q, k, v = (var(name, (n, 6, 8)) for name in "qkv")

    def body(builder):
        scores = R.matmul(q, R.permute_dims(k, [0, 2, 1]))
        weights = R.nn.softmax(R.add(scores, relax.const(data(6, 6))))
        gamma, beta = relax.const(data(8)), relax.const(data(8))
        return relax.Tuple([R.nn.layer_norm(R.matmul(weights, v), gamma, beta, axes=[-1]), R.argmax(weights, 2)])

    return function([q, k, v], body), [data(2, 6, 8) for _ in range(3)]


def _inception(n):
    x = var("x", (n, 4, 9, 9))

    def body(builder):
        def conv(y, k, p, channels=4):
            return R.nn.relu(R.nn.conv2d(y, relax.const(data(3, channels, k, k)), padding=p))

        first = builder.emit(conv(x, 1, 0))
        pooled = builder.emit(R.nn.max_pool2d(x, (3, 3), padding=(1, 1)))
        branches = [first, conv(first, 3, 1, 3), conv(first, 5, 2, 3), conv(pooled, 1, 0)]
        return R.concat([builder.emit(branch) for branch in branches], axis=1)

    return function([x], body), [data(2, 4, 9, 9)]


def _statistics(n):
    x = var("x", (n, 5))

    def body(builder):
        parts = builder.emit(R.split(R.cumsum(x, axis=1), [2], axis=1))
        best = builder.emit(R.topk(builder.emit(parts[1]), k=2, axis=1))
        return relax.Tuple([R.std(x, axis=[1]), best, R.size(x), R.variance(builder.emit(parts[0]))])

    return function([x], body), [data(3, 5)]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("make", [_attention, _inception, _statistics])
def test_regions_with_several_reductions(make, symbolic):
    n = 3 if make is _statistics else 2
    mod, inputs = make(tirx.Var("n", "int64") if symbolic else n)
    assert_same(mod, *inputs)


# -- refusals ------------------------------------------------------------------------------------------------


@I.ir_module(check_well_formed=False)
class Refused:
    @RS.function
    def branch(x: RS.Tensor((3,), "float32"), c: RS.Tensor((), "bool")):
        if c:
            y = RS.exp(x)
        else:
            y = RS.log(x)
        return y

    @RS.function
    def recursive(x: RS.Tensor((3,), "float32")) -> RS.Tensor((3,), "float32"):
        y = Refused.recursive(x)
        return y

    @RS.function(pure=False)
    def printing(x: RS.Tensor((3,), "float32")):
        _ = RS.print(x, format="{}")
        return x

    @RS.function
    def packed(x: RS.Tensor((3,), "float32")):
        y = RS.call_dps_packed("f", (x,), out_ty=RS.Tensor((3,), "float32"))
        return y

    @RS.function
    def no_rank(x: RS.Tensor("float32")):
        y = RS.exp(x)
        return y

    @RS.function
    def shape(x: RS.Tensor((3,), "float32")):
        y = RS.shape_of(x)
        return y


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("branch", "if .*no control flow"),
        ("recursive", "recursive .*it is recursive"),
        ("printing", r"relax\.print .*side effect"),
        ("packed", r"relax\.call_dps_packed .*only exists at run time"),
        ("no_rank", "parameter x.*known rank.*annotate it"),
        ("shape", "returns tensors only"),
    ],
)
def test_refused_function(name, message):
    with pytest.raises(UnsupportedError, match=message):
        translate_to_te((Refused, name))


def _conv_of_two_layouts(builder, x):
    image = R.reshape(x, (1, 3, 2, 2))
    return R.nn.conv2d(image, relax.const(data(4, 3, 1, 1)), data_layout="NCHW", out_layout="NHWC")


def _onnx_nms(builder, x):
    limits = (relax.const(3, "int64"), relax.const(0.5), relax.const(0.0))
    boxes, scores = R.reshape(x, (1, 3, 4)), relax.const(data(1, 2, 3))
    return R.vision.all_class_non_max_suppression(boxes, scores, *limits, output_format="onnx")


def _shape_of_values(builder, x):
    shape = builder.emit(R.tensor_to_shape(R.astype(R.sum(x, axis=[0]), "int64")))
    return R.zeros(shape, "float32")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, x: R.nonzero(x), r"relax\.nonzero .*values of its inputs"),
        (lambda b, x: R.ewise_fma(x, x, x), r"relax\.ewise_fma .*no lowering"),
        (_conv_of_two_layouts, r"relax\.nn\.conv2d .*declines this call"),
        (_onnx_nms, r"relax\.vision\.all_class_non_max_suppression .*lowered to relax\.dynamic_strided_slice"),
        (_shape_of_values, r"relax\.tensor_to_shape .*not a constant"),
        (lambda b, x: R.log_add_exp(*[R.astype(x, "int8")] * 2), r"relax\.log_add_exp .*floats only, got int8"),
    ],
    ids=["data_dependent", "no_lowering", "declined", "composed", "shape_of_values", "floats_only"],
)
def test_refused_call(make, message):
    x = var("x", (3, 4))
    with pytest.raises(UnsupportedError, match=message) as error:
        translate_to_te(function([x], lambda b: b.emit(make(b, x)))["main"])
    assert "; " in str(error.value), "the message ends with advice"


def test_not_a_function():
    with pytest.raises(InputError, match=r"no function 'other' in the module; it has .*main"):
        translate_to_te((Calls, "other"))
    with pytest.raises(InputError, match=r"got PrimFunc, expected a relax\.Function"):
        translate_to_te((Calls, "double"))


# -- what TVM lowers wrong -----------------------------------------------------------------------------------

FAR = (1000 + RNG.standard_normal((2, 4, 3, 3))).astype("float32")


@pytest.mark.parametrize(
    ("body", "inputs", "expected"),
    [
        (
            lambda x, g, b: R.nn.group_norm(x, g, b, num_groups=2, channel_axis=1, axes=[2, 3]),
            [FAR, np.ones(4, "float32"), np.zeros(4, "float32")],
            lambda x, *_: (lambda y: (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5))(
                x.astype("float64").reshape(2, 2, 18)
            ).reshape(x.shape),
        ),
        (lambda x: R.variance(x, axis=[2, 3]), [FAR], lambda x: x.astype("float64").var((2, 3))),
        (lambda x: R.sum(x), [np.ones(4097, "float16")], lambda x: np.float16(4097)),
        (lambda x: R.image.resize2d(x, (6, 6), layout="CHWN"), [FAR], lambda x: None),
    ],
)
def test_numbers_are_those_of_host_code(body, inputs, expected):
    params = [var(f"x{i}", x.shape, str(x.dtype)) for i, x in enumerate(inputs)]
    mod = function(params, lambda _builder: body(*params))
    (got,) = run(through_te(mod), *inputs)
    ours = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline="byoc"), tvm.cpu())["main"]
    np.testing.assert_array_equal(got, ours(*map(tvm.runtime.tensor, inputs)).numpy())
    if (wanted := expected(*inputs)) is not None:
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=1e-6)


def test_more_elements_than_there_are_is_refused():
    x = var("x", (3, 4))
    mod = function([x], lambda _builder: R.topk(x, 5, axis=1, ret_type="values"))
    with pytest.raises(UnsupportedError, match="topk of 5 elements along an axis of 4"):
        translate_to_te((mod, "main"))
