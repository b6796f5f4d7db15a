"""Every op that TVM can lower: the TE graph gives TVM's own result, or the op is refused with a reason.

`OPS` has one row per op. An op of the installed TVM that has neither a row there nor a reason in `REFUSED` fails the
test, so the table cannot fall behind TVM.
"""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, s_tir
from tvm.ir import Op
from tvm.relax import op as R

from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.ir.tvm_compat import dtype_of
from tvm_byoc_dnnl.te import translate_to_te
from tvm_byoc_dnnl.te.computes import REFUSED
from tvm_byoc_dnnl.testing.op_calls import NEEDS_BUILDER, OPS, REFERENCE

ALL = sorted(name for name in Op.list_op_names() if name.startswith("relax."))


def build(fn, arrays):
    """A module with one function that calls the op on parameters like the example arrays."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)]
    with builder.function("main", params):
        args = [builder, *params] if fn in NEEDS_BUILDER else params
        builder.emit_func_output(builder.emit(fn(*args)))
    return builder.get(), [tvm.runtime.tensor(a) for a in arrays]


def wrap(graph, func):
    """A module that does nothing but call the graph's PrimFunc."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", param.ty) for i, param in enumerate(func.params)]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(graph.call(builder, params)))
    return builder.get()


def run(mod, inputs):
    with tvm.target.Target("llvm"):
        result = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"](*inputs)
    if isinstance(result, tvm.runtime.Tensor):
        return [result.numpy()]
    return [item.numpy() for item in result]


@pytest.mark.parametrize("name", ALL)
def test_op(name):
    short = name.removeprefix("relax.")
    if name in REFUSED:
        assert short not in OPS, "an op is translated or refused, not both"
        assert len(REFUSED[name]) > 20
        return
    assert short in OPS, f"{name} is new: give it a row in OPS, or a reason in refusals.py"
    fn, arrays = OPS[short]
    mod, inputs = build(fn, arrays)
    main = mod["main"]
    called = {b.value.op.name for block in main.body.blocks for b in block.bindings if hasattr(b.value, "op")}
    assert name in called, f"the row of {name} does not call it"
    graph = translate_to_te((mod, "main"))
    sch = s_tir.Schedule(graph.to_primfunc())
    blocks = graph.blocks(sch)
    assert set(blocks) == {stage for node in graph.nodes for stage in node.stages}
    for stage, block in blocks.items():
        assert sch.get(block).name_hint.startswith(stage.name.replace(".", "_"))

    types = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    assert [dtype_of(t) for t in graph.outputs] == [dtype_of(t) for t in types]
    for out, ty in zip(graph.outputs, types, strict=True):
        if ty.shape is not None:
            assert [int(d) for d in out.shape] == [int(d) for d in ty.shape.values]
    expected = run(build(REFERENCE[short], arrays)[0] if short in REFERENCE else mod, inputs)
    actual = run(wrap(graph, main), inputs)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        assert_right(a, e)


def test_rows_are_ops_of_this_tvm():
    assert {f"relax.{name}" for name in OPS} <= set(ALL)


def test_refusals_name_op_reason_and_advice():
    x = relax.Var("x", relax.TensorType((3, 5), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(R.nonzero(x)))
    with pytest.raises(UnsupportedError, match=r"relax\.nonzero .*depends on the values.*register_te_compute"):
        translate_to_te(builder.get()["main"])
