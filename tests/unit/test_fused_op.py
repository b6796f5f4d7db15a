"""Registration of fused operators: what pattern can become one, and what cannot, with the reason."""

from __future__ import annotations

import pytest
from tvm.relax.dpl import is_const, is_op, is_tuple, wildcard

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.vendors.namespaces import namespace

VENDOR = "fused_op_unit"


@pytest.fixture(autouse=True)
def vendor():
    yield
    byoc.unregister_compiler(VENDOR)


def test_inputs_are_the_leaves_from_left_to_right_each_once():
    x, w, b = wildcard(), wildcard(), is_const()
    conv = is_op("relax.nn.conv2d")(x, w)
    fused = byoc.register_fused_op(VENDOR, "f", is_op("relax.add")(is_op("relax.add")(conv, b), x))
    assert [p.same_as(q) for p, q in zip(fused.inputs, (x, w, b), strict=True)] == [True] * 3


def test_constraints_around_a_leaf_and_around_a_call_are_no_inputs():
    x = wildcard()
    call = is_op("relax.exp")(x.has_dtype("float32")).has_attr({})
    fused = byoc.register_fused_op(VENDOR, "f", is_op("relax.tanh")(call))
    assert len(fused.inputs) == 1
    assert fused.inputs[0].same_as(x)


def test_a_namespace_needs_nothing_else():
    byoc.register_fused_op(VENDOR, "f", is_op("relax.exp")(wildcard()))
    assert VENDOR in byoc.compilers()
    assert list(namespace(VENDOR).fused_ops) == ["f"]
    assert byoc.supported_ops(VENDOR) == []


ROOTS = {
    "a value": (wildcard(), "the root of the pattern is a WildcardPattern; expected a call"),
    "a tuple": (is_tuple([wildcard(), wildcard()]), "TuplePattern; expected a call. For several results"),
}


@pytest.mark.parametrize("name", ROOTS)
def test_the_root_is_a_call(name):
    pattern, reason = ROOTS[name]
    with pytest.raises(ValueError, match=reason):
        byoc.register_fused_op(VENDOR, "f", pattern)


def test_operands_are_written_out():
    with pytest.raises(ValueError, match=r"leaves its operands open; write one wildcard\(\) for each"):
        byoc.register_fused_op(VENDOR, "f", is_op("relax.nn.relu")(is_op("relax.add")(varg_default_wildcard=True)))


def test_alternatives_are_registered_one_by_one():
    either = is_op("relax.exp")(wildcard()) | is_op("relax.tanh")(wildcard())
    with pytest.raises(ValueError, match=r"contains a OrPattern.*register one fused op for each alternative"):
        byoc.register_fused_op(VENDOR, "f", is_op("relax.nn.relu")(either))


@pytest.mark.parametrize("where", ["annotations", "outputs"])
def test_annotations_and_outputs_are_parts_of_the_pattern(where):
    stranger = is_op("relax.exp")(wildcard())
    options = {"annotations": {"part": stranger}} if where == "annotations" else {"outputs": [stranger]}
    with pytest.raises(ValueError, match="is not a part of the pattern"):
        byoc.register_fused_op(VENDOR, "f", is_op("relax.tanh")(wildcard()), **options)


def test_a_name_is_taken_once():
    byoc.register_fused_op(VENDOR, "f", is_op("relax.exp")(wildcard()))
    with pytest.raises(ValueError, match="pass override=True"):
        byoc.register_fused_op(VENDOR, "f", is_op("relax.tanh")(wildcard()))
    assert byoc.register_fused_op(VENDOR, "f", is_op("relax.tanh")(wildcard()), override=True).name == "f"
