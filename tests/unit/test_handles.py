"""TVM objects as keys of a dict, the elements of arrays, and what the garbage collector looks at."""

import gc
import weakref

from tvm import relax

from tvm_byoc_dnnl.handles import ByIdentity, collecting_new_only, items


def test_the_same_object_is_the_same_key():
    x, y = (relax.Var("x", relax.TensorType((2,), "float32")) for _ in range(2))
    call = relax.op.add(x, y)
    found = ByIdentity.of([(x, "x"), (y, "y")])
    assert [found[arg] for arg in items(call.args)] == ["x", "y"]  # new Python objects, of the same variables
    found[call.args[0]] = "again"
    del found[call.args[1]]
    assert list(found.items()) == [(x, "again")] and x in found and y not in found
    assert found.get(y) is None and found.get(y, 3) == 3 and found.setdefault(y, 4) == 4 and len(found) == 2


class Node:
    """An object that garbage can be made of."""


def test_old_objects_are_collected_afterwards():
    def circle() -> weakref.ref:
        node = Node()
        node.itself = node
        return weakref.ref(node)

    old = circle()
    with collecting_new_only():
        new = circle()
        gc.collect()
        assert old() is not None and new() is None
        with collecting_new_only():
            pass
        assert gc.get_freeze_count()
    gc.collect()
    assert old() is None and not gc.get_freeze_count()
