"""Near misses: matches of patterns that were refused, with the reason."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, wildcard

import tvm_byoc_dnnl as byoc
from tests.unit.importing import module
from tvm_byoc_dnnl.ir.relax_utils import constant_numpy
from tvm_byoc_dnnl.report import explain

op, nn = relax.op, relax.op.nn
VENDOR = "near"


def scalar(value):
    return relax.const(np.float32(value))


@pytest.fixture(autouse=True)
def vendor():
    """A compiler that has patterns only."""
    byoc.register_annotate_compiler(VENDOR, "relax.square", lambda attrs, args: False)
    yield
    byoc.unregister_compiler(VENDOR)


def misses(body, *shapes, compiler=VENDOR, dtype="float32"):
    """Near misses of each call of ``body``, in order."""
    mod = byoc.AnnotateExternalCompiler(compiler, prepare=False)(module(body, *(shapes or [(4,)]), dtype=dtype))
    return [c.near_misses for c in explain(byoc.PartitionGraph()(mod), compiler).calls]


def gelu():
    """0.5·x·(1 + erf(x/√2)), as one spelling of it."""
    x = wildcard()
    erf = is_op("relax.erf")(is_op("relax.divide")(x, is_const()))
    return is_op("relax.multiply")(is_op("relax.multiply")(x, is_op("relax.add")(erf, is_const())), is_const())


def spell_gelu(bb, x, inner=op.divide, tail=None):
    erf = bb.emit(op.erf(bb.emit(inner(x, scalar(1.414)))))
    out = bb.emit(op.multiply(bb.emit(op.multiply(x, bb.emit(op.add(erf, scalar(1))))), scalar(0.5)))
    return out if tail is None else tail(bb, erf, out)


def test_a_match_is_no_miss():
    byoc.register_pattern(VENDOR, "gelu", gelu())
    assert misses(spell_gelu) == [[]] * 5


def test_operands_in_the_other_order_match():
    byoc.register_pattern(VENDOR, "bias", is_op("relax.add")(is_op("relax.exp")(wildcard()), is_const()))
    assert misses(lambda bb, x: op.add(scalar(1), bb.emit(op.exp(x)))) == [[], []]


def register_half() -> None:
    """A pattern that refuses every factor, and names it."""
    factor = is_const()
    byoc.register_pattern(
        VENDOR,
        "half",
        is_op("relax.exp")(is_op("relax.multiply")(wildcard(), factor)),
        annotations={"factor": factor},
        check=lambda m: byoc.Reject(f"factor {float(constant_numpy(m['factor'])):g} is not 0.5"),
    )


def test_the_patterns_own_check():
    register_half()
    found = misses(lambda bb, x: op.exp(bb.emit(op.multiply(x, scalar(0.25)))))
    assert [m[0].reason for m in found] == ["factor 0.25 is not 0.5"] * 2
    assert found[0][0].matched == found[0][0].of == 2


def test_the_reason_of_a_call_that_only_patterns_take_is_that_of_the_pattern():
    match = is_op("relax.add")(is_op("relax.exp")(wildcard()), is_const())
    byoc.register_pattern(VENDOR, "bias", match, check=lambda m: byoc.Reject("no adder"))

    def body(bb, x):
        return bb.emit(op.square(bb.emit(op.add(bb.emit(op.exp(x)), scalar(1)))))

    mod = byoc.AnnotateExternalCompiler(VENDOR, prepare=False)(module(body, (4,)))
    calls = explain(byoc.PartitionGraph()(mod), VENDOR).calls
    assert [call.reasons for call in calls[:2]] == [[f"{VENDOR}: pattern bias: no adder"]] * 2
    assert "pattern" not in calls[2].reasons[0]


def test_an_intermediate_result_that_leaks():
    byoc.register_pattern(VENDOR, "gelu", gelu())
    found = misses(lambda bb, x: spell_gelu(bb, x, tail=lambda bb, erf, out: op.subtract(out, erf)))
    assert found[1][0].reason == "the intermediate result lv1 is used outside of the match, by gv"
    assert found[1][0].matched == 5


def test_an_intermediate_result_that_is_returned():
    byoc.register_pattern(VENDOR, "pair", is_op("relax.exp")(is_op("relax.sin")(wildcard())))
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            sine = bb.emit_output(op.sin(x))
            out = bb.emit_output(op.exp(sine))
        bb.emit_func_output(relax.Tuple([sine, out]))
    calls = explain(bb.get(), VENDOR).calls
    assert "is used outside of the match, behind the dataflow block" in calls[0].near_misses[0].reason


def test_calls_offloaded_one_by_one_tell_only_what_was_refused():
    byoc.register_annotate_compiler(VENDOR, ["relax.exp", "relax.sin"])
    byoc.register_pattern(VENDOR, "whole", is_op("relax.exp")(is_op("relax.sin")(wildcard())), check=lambda m: False)
    byoc.register_pattern(VENDOR, "longer", is_op("relax.tan")(is_op("relax.exp")(is_op("relax.sin")(wildcard()))))
    found = misses(lambda bb, x: op.exp(bb.emit(op.sin(x))))
    assert [[m.pattern for m in of_call] for of_call in found] == [["near.whole"]] * 2
    assert "says no" in found[0][0].reason


def test_a_match_across_the_borders_of_regions_is_seen():
    """One call is in a region, the other with TVM: the pattern is still recognised as refused."""
    byoc.register_annotate_compiler(VENDOR, ["relax.sin"])
    byoc.register_pattern(VENDOR, "whole", is_op("relax.exp")(is_op("relax.sin")(wildcard())), check=lambda m: False)
    found = misses(lambda bb, x: op.exp(bb.emit(op.sin(x))))
    assert [[m.pattern for m in of_call] for of_call in found] == [["near.whole"]] * 2


def test_functions_whose_variables_have_the_same_names():
    register_half()
    functions = {
        name: module(lambda bb, x, number=number: op.exp(bb.emit(op.multiply(x, scalar(number)))), (4,))["main"]
        for name, number in (("main", 0.25), ("other", 0.75))
    }
    mod = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in functions.items()})
    mod = byoc.AnnotateExternalCompiler(VENDOR, prepare=False)(mod)
    calls = explain(byoc.PartitionGraph()(mod), VENDOR).calls
    found = [(miss.reason, miss.calls) for call in calls for miss in call.near_misses]
    assert found == [("factor 0.25 is not 0.5", [0, 1])] * 2 + [("factor 0.75 is not 0.5", [2, 3])] * 2
