"""TVM objects as keys of a dict, the elements of arrays, and when garbage is collected."""

import gc
import weakref

from tvm import relax

import tvm_byoc_dnnl
from tvm_byoc_dnnl.core.tvm_fast import ByIdentity, items
from tvm_byoc_dnnl.partitioning.account import account_of


def test_the_same_object_is_the_same_key():
    x, y = (relax.Var("x", relax.TensorType((2,), "float32")) for _ in range(2))
    call = relax.op.add(x, y)
    found = ByIdentity.of([(x, "x"), (y, "y")])
    assert [found[arg] for arg in items(call.args)] == ["x", "y"]  # new Python objects, of the same variables
    found[call.args[0]] = "again"
    del found[call.args[1]]
    assert list(found.items()) == [(x, "again")] and x in found and y not in found
    assert found.get(y) is None and found.get(y, 3) == 3 and found.setdefault(y, 4) == 4 and len(found) == 2
    found.clear()
    assert not found and x not in found


def test_the_elements_of_arrays_of_any_length():
    for length in range(5):
        variables = [relax.Var(f"x{i}", relax.TensorType((2,), "float32")) for i in range(length)]
        assert [var.name for var in items(relax.Tuple(variables).fields)] == [var.name for var in variables]


class Node:
    """An object that garbage can be made of."""


def circle() -> weakref.ref:
    node = Node()
    node.itself = node
    return weakref.ref(node)


def test_a_build_leaves_no_graphs_matches_and_calls_to_the_collector():
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            clipped = bb.emit(relax.op.clip(bb.emit(relax.op.add(x, relax.const(2.0))), 0, 6))  # no hardswish: by 2
            y = bb.emit(relax.op.divide(bb.emit(relax.op.multiply(x, clipped)), relax.const(6.0)))
            out = bb.emit_output(relax.op.nn.max_pool2d(y, (3, 3), dilation=(2, 2), ceil_mode=True))
        bb.emit_func_output(out)
    mod = bb.get()
    del bb, clipped, y, out
    gc.collect()
    gc.disable()
    try:
        account_of(tvm_byoc_dnnl.partition(mod), ["dnnl"])
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = {type(garbage).__qualname__ for garbage in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found & {"GraphBuilder", "Value", "Tensor", "Node", "Context", "Trial", "frame"}
