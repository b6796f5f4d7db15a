"""The walks over functions: what they reach, in which order, and that what does not change stays the same object."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_byoc_dnnl.ir.relax_utils import bindings_in, blocks_in, constant_numpy, constants_in, is_op_call
from tvm_byoc_dnnl.ir.walker import Substitute, rewrite_blocks, rewrite_calls, rewrite_calls_in

V = R.Tensor((4,), "float32")


@I.ir_module
class Branches:
    @R.function
    def main(x: V, flag: R.Tensor((), "bool")) -> V:
        with R.dataflow():
            a = R.add(x, R.const(1.0))
            R.output(a)
        if flag:
            with R.dataflow():
                b = R.multiply(a, R.const(2.0))
                R.output(b)
            r = b
        else:
            c = R.subtract(a, R.const(3.0))
            r = c

        @R.function
        def inner(y: V) -> V:
            with R.dataflow():
                z = R.divide(y, R.const(4.0))
                R.output(z)
            return z

        d = inner(r)
        return d


MAIN = Branches["main"]


def _ops(func: relax.Function) -> list[str]:
    return [str(b.value.op.name).removeprefix("relax.") for b in bindings_in(func) if is_op_call(b.value)]


# ---------------------------------------------------------------- reading
def test_bindings_of_branches_and_local_functions_come_before_their_result() -> None:
    assert [str(b.var.name) for b in bindings_in(MAIN)] == ["a", "b", "c", "r", "z", "inner", "d"]
    outside = [str(b.var.name) for b in bindings_in(MAIN, local_functions=False)]
    assert outside == ["a", "b", "c", "r", "inner", "d"]


def test_blocks_of_branches_and_local_functions_come_behind_the_block_that_these_are_in() -> None:
    names = [[str(b.var.name) for b in block.bindings] for block in blocks_in(MAIN)]
    assert names == [["a"], ["r", "inner", "d"], ["b"], ["c"], ["z"]]


def test_constants_come_in_the_order_of_the_program() -> None:
    assert [constant_numpy(c).item() for c in constants_in(MAIN)] == [1.0, 2.0, 3.0, 4.0]


def test_a_constant_is_found_as_often_as_it_is_there() -> None:
    one = relax.const(1.0)
    call = relax.op.add(relax.Tuple([one, one]).fields[0], one)
    assert sum(c.same_as(one) for c in constants_in(relax.Tuple([call, relax.Tuple([one])]))) == 3


# ---------------------------------------------------------------- substitution
def _function(emit: Any, *, dims: tuple[Any, ...] = (4,)) -> relax.Function:
    """A function of ``x`` whose result is what ``emit(builder, x, flag)`` gives."""
    x, flag = relax.Var("x", relax.TensorType(dims, "float32")), relax.Var("flag", relax.TensorType((), "bool"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, flag]):
        builder.emit_func_output(emit(builder, x, flag))
    return builder.get()["main"]


def _typed(expr: Any, ty: Any) -> Any:
    relax.expr._update_type(expr, ty)
    return expr


def _sequence(var: Any, value: Any) -> relax.SeqExpr:
    return _typed(relax.SeqExpr([relax.BindingBlock([relax.VarBinding(var, value)])], var), var.ty)


def _branches(builder: Any, x: Any, flag: Any) -> Any:
    call = builder.normalize(relax.op.add(x, x))
    sides = [_sequence(relax.Var(name, x.ty), call) for name in "tf"]
    return builder.emit(_typed(relax.If(flag, *sides), x.ty))


def _local(builder: Any, x: Any, _flag: Any) -> Any:
    y = relax.Var("y", x.ty)
    inner = relax.Function([y], _sequence(relax.Var("z", x.ty), builder.normalize(relax.op.exp(y))), x.ty)
    return builder.emit(relax.Call(builder.emit(inner), [x]))


_PLACES = {
    "a shape": lambda bb, x, _: bb.emit(relax.op.full(relax.ShapeExpr(x.ty.shape.values), relax.const(1.0), "float32")),
    "the type of a packed call": lambda bb, x, _: bb.emit(relax.op.call_dps_packed("f", [x], x.ty)),
    "a cast": lambda bb, x, _: bb.match_cast(x, relax.TensorType([x.ty.shape[0] + 1, 4], "float32")),
    "the type of a tuple": lambda bb, x, _: bb.emit(relax.Tuple([x, x])),
    "a variable that holds a shape": lambda bb, x, _: bb.emit(relax.op.shape_of(x)),
    "branches": _branches,
    "a local function": _local,
}


@pytest.mark.parametrize("place", _PLACES)
def test_a_symbol_is_replaced_wherever_it_stands(place: str) -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    given, wanted = (_function(_PLACES[place], dims=(dim, 4)) for dim in (n, m))
    found = Substitute({n: m}).function(given)
    assert "n" not in {str(v.name) for v in relax.analysis.all_vars(found)} and "(n" not in str(found)
    tvm.ir.assert_structural_equal(found, wanted, map_free_vars=True)


@pytest.mark.parametrize("place", _PLACES)
def test_what_does_not_change_is_the_same_object(place: str) -> None:
    func = _function(_PLACES[place], dims=(tirx.Var("n", "int64"), 4))
    k, m = tirx.Var("k", "int64"), tirx.Var("m", "int64")
    assert Substitute({k: m, relax.Var("k", func.params[0].ty): relax.const(1.0)}).function(func) is func


def test_a_variable_is_replaced_in_branches_and_local_functions() -> None:
    a, d = (next(b.var for b in bindings_in(MAIN) if b.var.name == name) for name in "ad")
    e, f = (relax.Var(name, a.ty) for name in "ef")
    found = Substitute({a: e, d: f}).function(MAIN)
    assert [str(b.var.name) for b in bindings_in(found)] == ["e", "b", "c", "r", "z", "inner", "f"]
    readers = [str(b.var.name) for b in bindings_in(found) if e in relax.analysis.free_vars(b.value)]
    assert readers == ["b", "c", "r"] and found.body.body.same_as(f)
    same = [b.same_as(o) for b, o in zip(blocks_in(found), blocks_in(MAIN), strict=True)]
    assert same == [False, False, False, False, True]


def test_a_parameter_becomes_another_variable_and_stays_where_it_is_given_a_value() -> None:
    x, flag = MAIN.params
    y, one = relax.Var("y", x.ty), relax.const([1.0] * 4)
    assert Substitute({x: y}).function(MAIN).params[0].same_as(y)
    func = Substitute({x: one}).function(MAIN)
    assert func.params[0].same_as(x) and x not in relax.analysis.free_vars(func.body)
    assert func.params[1].same_as(flag)


def test_a_shape_is_put_into_the_types_that_name_its_variable() -> None:
    s = relax.Var("s", relax.ShapeType([2, 3]))
    x = relax.Var("x", relax.TensorType(s, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [s, x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    func = Substitute({s: relax.ShapeExpr([2, 3])}).function(builder.get()["main"])
    assert [int(d) for d in func.body.body.ty.shape.values] == [2, 3]


# ---------------------------------------------------------------- blocks and calls
def test_dataflow_blocks_are_rewritten_in_branches_and_local_functions() -> None:
    seen: list[list[str]] = []

    def rewrite(block: Any) -> Any:
        seen.append([str(b.var.name) for b in block.bindings])
        return relax.DataflowBlock([relax.VarBinding(b.var, b.value.args[0]) for b in block.bindings])

    found = rewrite_blocks(MAIN, rewrite)
    assert seen == [["a"], ["b"], ["z"]] and _ops(found) == ["subtract"]
    assert rewrite_blocks(MAIN, lambda block: block) is MAIN


def test_a_block_that_becomes_empty_is_gone() -> None:
    func = _function(lambda bb, x, _: bb.emit(relax.op.exp(x)))
    (block,) = func.body.blocks
    extra = relax.DataflowBlock([relax.VarBinding(relax.DataflowVar("v", x.ty), x) for x in func.params[:1]])
    func = relax.Function(func.params, relax.SeqExpr([extra, block], func.body.body), func.ret_ty)
    assert len(rewrite_blocks(func, lambda _block: relax.DataflowBlock([])).body.blocks) == 1


def test_calls_are_replaced_and_their_types_inferred() -> None:
    def halved(builder: relax.BlockBuilder, call: Any, var: Any) -> Any:
        if not is_op_call(call) or call.op.name == "relax.divide":
            return None
        bound.append(var)
        return relax.op.divide(builder.emit(call, "whole"), relax.const(2.0))

    bound: list[Any] = []
    found = rewrite_calls(MAIN, halved)
    calls = [b.var for b in bindings_in(MAIN) if is_op_call(b.value) and b.value.op.name != "relax.divide"]
    assert len(bound) == len(calls) and all(a.same_as(b) for a, b in zip(bound, calls, strict=True))
    assert _ops(found) == ["add", "divide", "multiply", "divide", "subtract", "divide", "divide"]
    assert relax.analysis.well_formed(found) is not False  # 0.27 raises instead
    (other,) = rewrite_calls_in(Branches, [Branches.get_global_var("main")], halved).functions.values()
    tvm.ir.assert_structural_equal(found, other, map_free_vars=True)
    assert rewrite_calls(MAIN, lambda _builder, _call, _var: None) is MAIN
