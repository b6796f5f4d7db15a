"""Near misses: each kind of constraint that can fail, named with what was found instead."""

import numpy as np
import pytest
from tvm import relax
from tvm.relax.dpl import is_const, is_op, is_tuple, is_tuple_get_item, wildcard

import tvm_byoc_dnnl as byoc
from tests.unit.test_explain import build
from tvm_byoc_dnnl._compat import constant_numpy
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
    mod = byoc.AnnotateExternalCompiler(compiler, prepare=False)(build(body, *(shapes or [(4,)]), dtype=dtype))
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


def test_another_operator_inside():
    byoc.register_pattern(VENDOR, "gelu", gelu())
    found = misses(lambda bb, x: spell_gelu(bb, x, inner=op.multiply))
    assert not found[0], "the multiply is what is wrong, not a part of the match"
    miss, prepared = found[1]
    assert (prepared.pattern, prepared.reason) == ("prepare.gelu", "a factor is 1.414 instead of 0.707107")
    assert (miss.pattern, miss.matched, miss.of) == ("near.gelu", 4, 5)
    assert miss.reason == "operand 0 of relax.erf (lv1) must be relax.divide, found relax.multiply (lv)"
    assert miss.calls == [1, 2, 3, 4]


def test_another_operator_behind():
    byoc.register_pattern(VENDOR, "scaled", is_op("relax.tanh")(is_op("relax.erf")(is_op("relax.exp")(wildcard()))))
    found = misses(lambda bb, x: op.sin(bb.emit(op.erf(bb.emit(op.exp(x))))))
    (miss,) = found[1]
    assert (miss.matched, miss.of) == (2, 3)
    assert miss.reason == "relax.erf (lv1) must be read by relax.tanh, but relax.sin (gv) reads it"
    assert not found[2]


def test_nothing_behind():
    byoc.register_pattern(VENDOR, "pair", is_op("relax.tanh")(is_op("relax.exp")(wildcard())))
    ((miss,),) = misses(lambda bb, x: op.exp(x))
    assert miss.reason == "relax.exp (gv) must be read by relax.tanh, but it is a result of the function"


def test_an_operand_that_is_not_constant():
    byoc.register_pattern(VENDOR, "bias", is_op("relax.add")(is_op("relax.exp")(wildcard()), is_const()))
    found = misses(lambda bb, x, y: op.add(bb.emit(op.exp(x)), y), (4,), (4,))
    assert found[0][0].reason == "operand 1 of relax.add (gv) must be a constant, found an input"
    assert (found[0][0].matched, found[0][0].of) == (2, 2)


def test_operands_in_the_other_order_match():
    byoc.register_pattern(VENDOR, "bias", is_op("relax.add")(is_op("relax.exp")(wildcard()), is_const()))
    assert misses(lambda bb, x: op.add(scalar(1), bb.emit(op.exp(x)))) == [[], []]


def test_two_values_where_the_pattern_has_one():
    x = wildcard()
    byoc.register_pattern(VENDOR, "swish", is_op("relax.multiply")(x, is_op("relax.sigmoid")(x)))
    found = misses(lambda bb, a, b: op.multiply(a, bb.emit(op.sigmoid(b))), (4,), (4,))
    assert "must be the same value as in the pattern's other use of it" in found[0][0].reason


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (
            lambda: is_op("relax.nn.softmax")(wildcard()).has_attr({"axis": 0}),
            "relax.nn.softmax (lv): attribute axis is 1, the pattern asks for 0",
        ),
        (
            lambda: is_op("relax.nn.softmax")(wildcard()).has_dtype("float16"),
            "relax.nn.softmax (lv): dtype is float32, the pattern asks for float16",
        ),
        (
            lambda: is_op("relax.nn.softmax")(wildcard().has_shape((1, 2))),
            "an input: shape is ['3', '4'], the pattern asks for ['1', '2']",
        ),
    ],
    ids=["attribute", "dtype", "shape"],
)
def test_a_constraint(pattern, reason):
    byoc.register_pattern(VENDOR, "p", is_op("relax.exp")(pattern()))
    found = misses(lambda bb, x: op.exp(bb.emit(nn.softmax(x, axis=1))), (3, 4))
    assert found[0][0].reason == reason


def test_the_patterns_own_check():
    factor = is_const()
    byoc.register_pattern(
        VENDOR,
        "half",
        is_op("relax.exp")(is_op("relax.multiply")(wildcard(), factor)),
        annotations={"factor": factor},
        check=lambda m: byoc.Reject(f"factor {float(constant_numpy(m['factor'])):g} is not 0.5"),
    )
    found = misses(lambda bb, x: op.exp(bb.emit(op.multiply(x, scalar(0.25)))))
    assert [m[0].reason for m in found] == ["factor 0.25 is not 0.5"] * 2
    assert found[0][0].matched == found[0][0].of == 2


def test_an_intermediate_result_that_leaks():
    byoc.register_pattern(VENDOR, "gelu", gelu())
    found = misses(lambda bb, x: spell_gelu(bb, x, tail=lambda bb, erf, out: op.subtract(out, erf)))
    assert found[1][0].reason == (
        "relax.erf (lv1) would be an intermediate result, but relax.subtract (gv) reads it too"
    )
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
    assert "is a result of the function too" in calls[0].near_misses[0].reason


def test_tuples_and_their_fields():
    parts = is_op("relax.split")(wildcard())
    pattern = is_op("relax.concat")(is_tuple([is_tuple_get_item(parts, 0), wildcard()]))
    byoc.register_pattern(VENDOR, "swap", pattern)

    def model(bb, x):
        split = bb.emit(op.split(x, 2, axis=0))
        a, b = bb.emit(split[0]), bb.emit(split[1])
        return op.concat([b, a], axis=0)

    found = misses(model, (4, 2))
    assert "must be field 0 of a tuple, found field 1 of relax.split" in found[1][0].reason


def test_alternatives():
    either = is_op("relax.exp")(wildcard()) | is_op("relax.tanh")(wildcard())
    byoc.register_pattern(VENDOR, "or", is_op("relax.sin")(is_op("relax.cos")(either)))
    found = misses(lambda bb, x: op.sin(bb.emit(op.cos(bb.emit(op.erf(x))))))
    assert found[1][0].reason == "operand 0 of relax.cos (lv1) must be relax.exp, found relax.erf (lv)"
    assert misses(lambda bb, x: op.sin(bb.emit(op.cos(bb.emit(op.tanh(x)))))) == [[]] * 3


def test_a_faint_likeness_is_not_told():
    byoc.register_pattern(VENDOR, "gelu", gelu())
    assert misses(lambda bb, x: op.multiply(x, scalar(2))) == [[]]


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


def test_the_nearest_comes_first():
    byoc.register_pattern(VENDOR, "far", is_op("relax.tan")(is_op("relax.exp")(is_op("relax.sin")(wildcard()))))
    byoc.register_pattern(VENDOR, "near", is_op("relax.exp")(is_op("relax.sin")(wildcard())), check=lambda m: False)
    (sine, _) = misses(lambda bb, x: op.exp(bb.emit(op.sin(x))))
    assert [(m.pattern, m.matched, m.of) for m in sine] == [("near.near", 2, 2), ("near.far", 2, 3)]
