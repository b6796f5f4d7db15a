"""How much work annotation and partitioning are, in calls of functions, so that no clock is needed."""

import sys

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc


@pytest.fixture(autouse=True)
def vendor():
    byoc.register_annotate_compiler("v1", ["relax.add", "relax.nn.relu"])
    yield
    byoc.unregister_compiler("v1")


def work(function):
    """The number of functions that are called meanwhile, those of C included."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def long_model(calls, shapes_of_program):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = side = builder.emit(relax.op.nn.relu(x))
            for number in range(calls):
                value, side = shapes_of_program(builder.emit, number, value, side)
            result = builder.emit_output(relax.op.add(value, side))
        builder.emit_func_output(result)
    return builder.get()


def a_chain(emit, number, value, side):
    return emit(relax.op.nn.relu(value)), side


def with_calls_of_the_host(emit, number, value, side):
    return emit([relax.op.nn.relu, relax.op.tan, relax.op.nn.relu][number % 3](value)), side


def beside_a_chain_of_the_host(emit, number, value, side):
    side = emit(relax.op.tan(side))
    return emit(relax.op.add(value, side)), side


def one_result_read_everywhere(emit, number, value, side):
    return emit(relax.op.add(emit(relax.op.tan(value)), side)), side


def with_weights_of_its_own(emit, number, value, side):
    return emit(relax.op.add(value, relax.const(np.full((4, 4), number, "float32")))), side


@pytest.mark.parametrize(
    "program",
    [
        a_chain,
        with_calls_of_the_host,
        beside_a_chain_of_the_host,
        one_result_read_everywhere,
        with_weights_of_its_own,
    ],
)
def test_the_work_grows_as_the_model_does(program):
    def counted(calls):
        plain = long_model(calls, program)
        annotated = byoc.AnnotateExternalCompiler("v1")(plain)
        annotate = work(lambda: byoc.AnnotateExternalCompiler("v1")(plain))
        return annotate, work(lambda: byoc.PartitionGraph()(annotated))

    counted(10)  # what is done once
    for small, large in zip(counted(150), counted(600), strict=True):
        assert large < 4.4 * small
