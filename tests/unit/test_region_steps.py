"""A region as steps: names, tuples and composites are resolved, and integers say what they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op as R
from tvm.relax.dpl import is_const, is_op, wildcard

import tvm_byoc_dnnl as byoc
from tests.unit.test_own_copies import dq, module, q

VENDOR = "steps_npu"
W = np.ones((8, 4), "float32")


@pytest.fixture
def read():
    """``read(module)``: the steps of its one region."""

    def of(mod):
        made = byoc.partition(mod, VENDOR, policy=byoc.RegionPolicy())
        (region,) = (f for f in made.functions.values() if f.attrs and f.attrs.get("Codegen") == VENDOR)
        return byoc.steps_of(region)

    byoc.register_codegen(
        VENDOR,
        lambda functions, *_: [byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), b"", "") for f in functions],
    )
    yield of
    byoc.unregister_compiler(VENDOR)


def floats(emit, x):
    """``split``, whose parts are swapped, joined and multiplied; the product is returned twice, and a part."""
    parts = emit(R.split(x, 2, 1))
    left, right = (emit(relax.TupleGetItem(parts, i)) for i in range(2))
    product = emit(R.matmul(emit(R.concat([right, left], 1)), byoc.make_constant(W)))
    total = emit(R.add(product, byoc.make_constant(W[0])))
    return total, total, left


@pytest.mark.native
def test_names_and_tuples_are_resolved(read):
    byoc.register_annotate_compiler(VENDOR, ["relax.split", "relax.concat"])
    product = is_op("relax.matmul")(wildcard(), is_const())
    byoc.register_pattern(VENDOR, "dense", is_op("relax.add")(product, is_const()))
    region = read(module(floats, "float32", (3, 8)))
    (x,), (split, concat, dense) = region.inputs, region.steps
    assert [s.op for s in region.steps] == ["relax.split", "relax.concat", "dense"]
    assert (x.shape, x.dtype, x.data, x.quantized) == ((3, 8), "float32", None, None)
    assert split.inputs == [x] and concat.inputs == split.outputs[::-1] and dense.inputs[0] in concat.outputs
    assert {*region.outputs} == {*dense.outputs, split.outputs[0]}
    assert len(region.outputs) == 2
    matmul, add = dense.steps
    assert [matmul.op, add.op] == ["relax.matmul", "relax.add"] and add.inputs[0] is matmul.outputs[0]
    np.testing.assert_array_equal(matmul.inputs[1].data, W)
    np.testing.assert_array_equal(add.inputs[1].data, W[0])
    assert int(split.call.attrs.axis) == 1


@pytest.mark.native
def test_integers_say_what_they_stand_for(read):
    """Also those of arguments and results that are only moved, and equal groups read tensors of their own."""
    byoc.register_annotate_compiler(VENDOR, ["relax.permute_dims", "relax.reshape"])
    byoc.register_quantization(VENDOR, ["add"])

    def build(emit, x):
        moved = emit(R.permute_dims(emit(R.reshape(x, (2, 2, 36))), [0, 2, 1]))
        for _ in range(2):
            real = emit(dq(moved, 0.5))
            moved = emit(q(emit(R.add(real, real)), 0.5))
        return emit(R.reshape(moved, (1, 144)))

    region = read(module(build))
    assert [s.op.removeprefix("relax.") for s in region.steps] == ["reshape", "permute_dims", "add", "add", "reshape"]
    first, second = (s for s in region.steps if s.group)
    assert first.inputs == [region.steps[1].outputs[0]] * 2 and second.inputs == first.outputs * 2
    tensors = {*region.inputs, *region.outputs, *(t for s in region.steps for t in s.outputs)}
    assert len(tensors) == 6
    assert all((float(t.quantized.scales), t.dtype) == (0.5, "int8") for t in tensors)


def test_what_a_predicate_or_a_check_is_asked_about():
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    call = relax.BlockBuilder().normalize(R.matmul(x, byoc.make_constant(W.T)))
    region = byoc.steps_of(call)
    (step,) = region.steps
    assert step.inputs[0] is region.inputs[0] and step.inputs[1].data.shape == (4, 8)
    assert [t.shape for t in region.outputs] == [(2, 8)]

    found = []

    def check(group):
        found.append(byoc.steps_of(group))
        return byoc.Reject("seen")

    byoc.register_quantization(VENDOR, ["relu"], check=check)
    byoc.register_pattern(
        VENDOR,
        "exp2",
        is_op("relax.exp")(is_op("relax.exp")(wildcard())),
        check=lambda match: bool(found.append(byoc.steps_of(match))),
    )
    try:
        quantised = module(lambda emit, x: emit(q(emit(R.nn.relu(emit(dq(x)))))))
        byoc.explain(quantised, VENDOR, dry_run=True)
        twice = module(lambda emit, x: emit(R.exp(emit(R.exp(x)))), "float32", (2, 4))
        byoc.explain(twice, VENDOR, dry_run=True)
    finally:
        byoc.unregister_compiler(VENDOR)
    group, match = found
    assert [s.op for s in group.steps] == ["relax.nn.relu"] and group.steps[0].group is not None
    assert [t.quantized is not None for t in (*group.inputs, *group.outputs)] == [True, True]
    assert [s.op for s in match.steps] == ["relax.exp"] * 2 and len(match.inputs) == 1
