"""The sweep itself: scopes, names, use counts, several functions, symbols."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tests.harness import assert_right
from tests.unit.importing import module, ops, prepared, rand, run, same_numbers
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, op_calls
from tvm_byoc_dnnl.prepare import Prepare
from tvm_byoc_dnnl.prepare.activations import BOUNDS
from tvm_byoc_dnnl.prepare.rewrite import rewrite_pass


def test_unchanged_functions_are_the_same_objects() -> None:
    mod = module(lambda b, x: b.emit(relax.op.nn.relu(x)), (2, 3))
    assert rewrite_pass("nothing", {})(mod)["main"].same_as(mod["main"])


def test_a_variable_that_stands_for_another_is_replaced_without_any_rule() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return b.emit(relax.op.nn.relu(b.emit(x)))

    func = rewrite_pass("nothing", {})(module(build, (2, 3)))["main"]
    ((_, relu),) = op_calls(func)
    assert relu.args[0].same_as(func.params[0])


def test_output_that_becomes_an_input() -> None:
    mod = module(lambda b, x: b.emit(relax.op.reshape(x, (2, 3))), (2, 3))
    x = rand(2, 3)
    assert same_numbers(mod, x) == {}


def test_output_that_becomes_a_constant() -> None:
    one = relax.const(np.ones((2, 3), "float32"))
    mod = module(lambda b, _x: b.emit(relax.op.add(one, one)), (2, 3))
    np.testing.assert_array_equal(run(prepared(mod), rand(2, 3))[0], 2 * np.ones((2, 3)))


def test_output_that_becomes_an_intermediate() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(relax.op.nn.relu(x))
        return b.emit(relax.op.reshape(y, (2, 3)))

    assert same_numbers(module(build, (2, 3)), rand(2, 3)) == {"nn.relu": 1}


def test_tuple_of_outputs() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(relax.op.nn.relu(x))
        same = b.emit(relax.op.reshape(y, (2, 3)))
        return b.emit(relax.Tuple([same, y, b.emit(relax.op.multiply(x, relax.const(1.0)))]))

    assert same_numbers(module(build, (2, 3)), rand(2, 3)) == {"nn.relu": 1}


def test_branches_keep_what_they_read() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            a = R.reshape(x, R.shape([4]))
            b = R.multiply(a, R.const(1.0, "float32"))
            if flag:
                c = R.add(a, b)
                y = R.nn.relu(c)
            else:
                y = R.negative(b)
            return y

    after = prepared(Module)
    for flag in (True, False):
        x = rand(4)
        want = np.maximum(2 * x, 0) if flag else -x
        assert_right(run(after, np.array(flag), x)[0], want, 0)


def test_functions_without_dataflow_and_several_of_them() -> None:
    @I.ir_module
    class Module:
        @R.function(private=True)
        def inner(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = R.add(x, R.const(0.0, "float32"))
            return R.nn.relu(y)

        @R.function
        def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            cls = Module
            y = R.multiply(x, R.const(1.0, "float32"))
            return cls.inner(y)

        @R.function
        def other(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            y = R.reshape(x, R.shape([4]))
            return R.exp(y)

    after = prepared(Module)
    assert ops(after, "inner") == {"nn.relu": 1}
    assert ops(after) == {"call": 1}
    assert ops(after, "other") == {"exp": 1}


def test_functions_of_a_backend_are_left_alone() -> None:
    mod = module(lambda b, x: b.emit(relax.op.add(x, relax.const(0.0))), (4,))
    mod["main"] = mod["main"].with_attr("Codegen", "acme")
    assert ops(prepared(mod)) == {"add": 1}


def test_symbolic_shapes() -> None:
    n = tvm.tirx.Var("n", "int64")

    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        w = relax.const(rand(8, 4))
        y = b.emit(relax.op.add(b.emit(relax.op.matmul(x, w)), relax.const(rand(1, 4))))
        z = b.emit(relax.op.multiply(y, relax.const(2.0)))
        r = b.emit(relax.op.reshape(z, (n * 4,)))
        return b.emit(relax.op.maximum(r, relax.const(0.0)))

    assert same_numbers(module(build, (n, 8)), rand(3, 8)) == {"matmul": 1, "add": 1, "reshape": 1, "nn.relu": 1}


def test_unknown_shapes() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(relax.op.add(b.emit(relax.op.multiply(x, relax.const(2.0))), relax.const(1.0)))
        return b.emit(relax.op.maximum(y, relax.const(0.0)))

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=2))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(build(builder, x))
        builder.emit_func_output(out)
    assert ops(prepared(builder.get())) == {"multiply": 1, "add": 1, "maximum": 1}


def test_match_cast_is_kept() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n",), "float32")) -> R.Tensor((4,), "float32"):
            y = R.exp(x)
            z = R.match_cast(y, R.Tensor((4,), "float32"))
            u = R.add(z, R.const(0.0, "float32"))
            return R.nn.relu(u)

    x = rand(4)
    after = prepared(Module)
    assert ops(after) == {"exp": 1, "nn.relu": 1}
    assert_right(run(after, x)[0], np.exp(x), 1e-6, elementwise=True)


def test_rules_that_never_settle_are_reported() -> None:
    rules = {
        "relax.exp": [lambda _s, call: relax.op.log(call.args[0])],
        "relax.log": [lambda _s, call: relax.op.exp(call.args[0])],
    }
    mod = module(lambda b, x: b.emit(relax.op.exp(x)), (2,))
    with pytest.raises(RuntimeError, match="do not settle"):
        rewrite_pass("loop", rules)(mod)


def _output_of_a_local(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return b.emit(relax.op.nn.relu(b.emit(relax.op.multiply(x, relax.const(1.0)))))


def _output_that_is_read_inside(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    y = b.emit(relax.op.exp(b.emit(relax.op.multiply(x, relax.const(1.0)))))
    return b.emit(relax.Tuple([y, b.emit(relax.op.nn.relu(y))]))


def _item_of_a_known_tuple(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    y = b.emit(relax.op.exp(b.emit(relax.op.multiply(x, relax.const(1.0)))))
    both = b.emit(relax.Tuple([y, x]))
    return b.emit(relax.op.add(b.emit(relax.TupleGetItem(both, 0)), b.emit(relax.TupleGetItem(both, 1))))


def _output_that_is_a_constant(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return b.emit(relax.op.add(relax.const(np.ones((2, 3), "float32")), relax.const(1.0)))


def _cast_to_a_symbol(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    n = tvm.tirx.Var("n", "int64")
    y = b.match_cast(x, relax.TensorType((n, 3), "float32"))
    return b.emit(relax.op.nn.relu(b.emit(relax.op.multiply(y, relax.const(1.0)))))


@pytest.mark.parametrize(
    "build",
    [
        _output_of_a_local,
        _output_that_is_read_inside,
        _item_of_a_known_tuple,
        _output_that_is_a_constant,
        _cast_to_a_symbol,
    ],
)
def test_a_prepared_function_is_tidy(build: Callable[..., relax.Expr]) -> None:
    after = Prepare()(module(build, (2, 3)))
    again = relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(after))
    assert tvm_ffi.structural_equal(again, after, map_free_vars=True)
    names, names_again = ([str(var.name) for var, _ in bindings_of(mod["main"])] for mod in (after, again))
    assert names == names_again


def test_an_item_of_a_known_tuple_is_left_to_a_pass_where_no_rule_replaces_it() -> None:
    rules = {"relax.multiply": [lambda _s, call: call.args[0]]}
    swept = rewrite_pass("one", rules, tidy=True)(module(_item_of_a_known_tuple, (2, 3)))
    assert [type(value) for _, value in bindings_of(swept["main"])] == [relax.Call, relax.Call]


def test_a_result_without_readers_does_not_count_as_a_reader() -> None:
    def build(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        once = b.emit(relax.op.clip(x, -1.0, 1.0))
        b.emit(relax.op.exp(once))
        return b.emit(relax.op.nn.relu(once))

    swept = rewrite_pass("bounds", BOUNDS)(module(build, (2, 3)))
    assert [call.op.name for _, call in op_calls(swept["main"])] == ["relax.clip"]
