"""TVM objects as keys of a dict, and the elements of arrays."""

from tvm import relax

from tvm_byoc_dnnl.handles import ByIdentity, items


def test_the_same_object_is_the_same_key():
    x, y = (relax.Var("x", relax.TensorType((2,), "float32")) for _ in range(2))
    call = relax.op.add(x, y)
    found = ByIdentity.of([(x, "x"), (y, "y")])
    assert [found[arg] for arg in items(call.args)] == ["x", "y"]  # new Python objects, of the same variables
    found[call.args[0]] = "again"
    del found[call.args[1]]
    assert list(found.items()) == [(x, "again")] and x in found and y not in found
    assert found.get(y) is None and found.get(y, 3) == 3 and found.setdefault(y, 4) == 4 and len(found) == 2
