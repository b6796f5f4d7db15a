"""The choice of a compute: registration, preference lists, costs, and TVM's own as the last resort."""

from __future__ import annotations

import threading

import pytest
from tvm import relax, te, topi
from tvm.relax import op as R

from tvm_byoc_dnnl.core.errors import InputError, UnsupportedError
from tvm_byoc_dnnl.te import (
    TVM_LEGALIZATION,
    TECompute,
    cheapest,
    prefer,
    register_te_compute,
    te_candidates,
    translate_to_te,
    unregister_te_compute,
)
from tvm_byoc_dnnl.te.computes import capture_call_te


def matmul_relu():
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    w = relax.Var("w", relax.TensorType((4, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(R.nn.relu(builder.emit(R.matmul(x, w)))))
    return builder.get()["main"]


def transposed(attrs, a, b):
    return topi.nn.matmul(a, topi.transpose(b), transpose_b=True)


def chosen(selector=None):
    return {node.op: node.compute for node in translate_to_te(matmul_relu(), selector=selector).nodes}


@pytest.fixture
def registered():
    register_te_compute("relax.matmul", transposed)
    register_te_compute("relax.matmul", transposed, name="wide", supports=lambda attrs, a, b: int(b.shape[1]) > 100)
    yield
    unregister_te_compute("relax.matmul", "transposed")
    unregister_te_compute("relax.matmul", "wide")


def test_tvm_is_the_default():
    assert chosen() == {"relax.matmul": "tvm", "relax.nn.relu": "tvm"}


@pytest.mark.usefixtures("registered")
def test_a_registered_compute_is_used_where_it_applies():
    graph = translate_to_te(matmul_relu())
    assert [node.compute for node in graph.nodes] == ["transposed", "tvm"]
    assert any(stage.name == "T_transpose" for stage in graph.nodes[0].stages)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("selector", "compute"),
    [
        (prefer(["tvm"]), "tvm"),
        (prefer(["wide", "tvm", "transposed"]), "tvm"),
        (prefer({"relax.matmul": ["transposed"]}), "transposed"),
        (prefer({"relax.nn.relu": ["tvm"]}), "transposed"),
        (cheapest(lambda c, op, attrs, args, target: {"tvm": 1}.get(c.name, 2)), "tvm"),
        (cheapest(lambda c, op, attrs, args, target: len(c.name)), "tvm"),
        (cheapest(lambda c, op, attrs, args, target: -len(c.name)), "transposed"),
        (lambda op, attrs, args, target: None, "tvm"),
        (lambda op, attrs, args, target: TVM_LEGALIZATION, "tvm"),
        (lambda op, attrs, args, target: transposed if op == "relax.matmul" else None, "transposed"),
        (lambda op, attrs, args, target: TECompute("mine", transposed) if op == "relax.matmul" else None, "mine"),
    ],
)
def test_selector(selector, compute):
    assert chosen(selector) == {"relax.matmul": compute, "relax.nn.relu": "tvm"}


def test_a_selector_sees_te_arguments_and_the_target():
    seen = []
    translate_to_te(matmul_relu(), {"kind": "llvm", "mcpu": "skylake-avx512"}, lambda *call: seen.append(call))
    (op, attrs, args, target), _ = seen
    assert op == "relax.matmul"
    assert not attrs.out_dtype
    assert all(isinstance(arg, te.Tensor) for arg in args)
    assert target.attrs["mcpu"] == "skylake-avx512"


def test_tvm_means_its_sort_dispatch_too():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(R.sort(x)))
    graph = translate_to_te(builder.get()["main"], selector=lambda *call: None)
    assert [node.compute for node in graph.nodes] == ["tvm"]


def test_an_op_that_tvm_cannot_lower_gets_a_compute():
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(R.ewise_fma(x, x, x)))
    func = builder.get()["main"]
    assert te_candidates("relax.ewise_fma", None, []) == []

    @register_te_compute("relax.ewise_fma")
    def fma(attrs, a, b, c):
        return te.compute(a.shape, lambda i: a[i] * b[i] + c[i], name="fma")

    try:
        assert [stage.name for stage in translate_to_te(func).nodes[0].stages] == ["fma"]
    finally:
        unregister_te_compute("relax.ewise_fma", "fma")
    with pytest.raises(UnsupportedError, match="no lowering"):
        translate_to_te(func)


def test_registration_errors():
    with pytest.raises(InputError, match=r"no op named 'relax\.nope'"):
        register_te_compute("relax.nope", transposed)
    with pytest.raises(InputError, match="named 'tvm' already"):
        register_te_compute("relax.matmul", transposed, name="tvm")
    with pytest.raises(InputError, match="no compute named 'nope'"):
        unregister_te_compute("relax.matmul", "nope")


@pytest.mark.usefixtures("registered")
def test_duplicates_are_refused():
    with pytest.raises(InputError, match="named 'transposed' already"):
        register_te_compute("relax.matmul", transposed)


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda attrs, a, b: a, r"compute makes R\.Tensor\(\(2, 4\).*Relax infers R\.Tensor\(\(2, 3\)"),
        (lambda attrs, a, b: topi.cast(topi.nn.matmul(a, b), "float64"), "float64.*Relax infers.*float32"),
        (lambda attrs, a, b: [topi.nn.matmul(a, b), a], "Relax infers"),
        (lambda attrs, a, b: 1 / 0, "failed: division by zero"),
    ],
    ids=["shape", "dtype", "arity", "exception"],
)
def test_a_wrong_compute_is_named(compute, message):
    with pytest.raises(UnsupportedError, match=r"(?s)relax\.matmul .*" + message):
        translate_to_te(matmul_relu(), selector=lambda op, *_: compute if op == "relax.matmul" else None)


# -- the capture of BlockBuilder.call_te ------------------------------------------------------------------------


def test_call_te_is_restored():
    original = relax.BlockBuilder.call_te
    translate_to_te(matmul_relu())
    with pytest.raises(UnsupportedError):
        translate_to_te(matmul_relu(), selector=lambda *call: lambda attrs, *args: 1 / 0)
    assert relax.BlockBuilder.call_te is original


def test_only_the_capturing_builder_in_the_capturing_thread_is_diverted():
    def use(builder, result):
        x = relax.Var("x", relax.TensorType((2,), "float32"))
        result.append(builder.call_te(topi.exp, x))

    mine, other, results, threaded = relax.BlockBuilder(), relax.BlockBuilder(), [], []
    marker = relax.const(1.0)
    with capture_call_te(mine, lambda func, args, kwargs: marker):
        use(mine, results)
        use(other, results)
        thread = threading.Thread(target=use, args=(mine, threaded))
        thread.start()
        thread.join()
    assert results[0].same_as(marker)
    assert [call.op.name for call in (*results[1:], *threaded)] == ["relax.call_tir"] * 2


def test_translation_in_threads():
    func = matmul_relu()
    expected, found = translate_to_te(func).name, []

    def work():
        found.extend(translate_to_te(func).name for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20
