"""Registration of target hooks, and how a region calls the PrimFunc that it became."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, te

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core.verdict import Reject
from tvm_byoc_dnnl.ir.relax_utils import global_var, make_constant
from tvm_byoc_dnnl.vendors.hook_lowering import (
    call_primfunc,
    region_arguments,
    region_constants,
    with_body,
    with_known_shapes,
)
from tvm_byoc_dnnl.vendors.hook_route import KernelTable
from tvm_byoc_dnnl.vendors.namespaces import namespace

VENDOR = "hooks_unit"


@pytest.fixture(autouse=True)
def vendor():
    yield
    byoc.unregister_compiler(VENDOR)


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


def function(params, body):
    """A Relax function of ``body(emit, *params)``."""
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(body(builder.emit, *params)))
    return builder.get()["main"]


def kernel(*shapes, outputs=1):
    """A PrimFunc that copies its first input."""
    ins = [te.placeholder(s, "float32", f"a{i}") for i, s in enumerate(shapes)]
    outs = [te.compute(shapes[0], lambda *i: ins[0](*i), f"b{k}") for k in range(outputs)]
    return te.create_prim_func([*ins, *outs], "int64").without_attr("global_symbol")


# ---------------------------------------------------------------- registration
def test_either_part_is_optional_and_decides_who_builds():
    hooks = byoc.register_target_hooks(VENDOR)
    assert not hooks.builds_apart
    assert namespace(VENDOR).hooks is hooks
    for part in ({"tir_to_runtime": lambda mod, target: None}, {"tir_passes": []}, {"target": "c"}):
        assert byoc.register_target_hooks(VENDOR, override=True, **part).builds_apart


def test_a_second_registration_has_to_say_so():
    byoc.register_target_hooks(VENDOR)
    with pytest.raises(ValueError, match="has target hooks already; pass override=True"):
        byoc.register_target_hooks(VENDOR)


WRONG = {
    "relax_to_tir": ({"relax_to_tir": lambda mod: mod}, "relax_to_tir has .*; expected TVM passes"),
    "one of several": ({"relax_to_tir": [relax.transform.LegalizeOps(), "x"]}, "relax_to_tir has 'x'"),
    "tir_passes": ({"tir_passes": ["MakePackedAPI"]}, "tir_passes has 'MakePackedAPI'"),
    "tir_to_runtime": (
        {"tir_to_runtime": "c"},
        r"tir_to_runtime is 'c'; expected a function \(IRModule, Target\) -> Module",
    ),
    "options": ({"options": {"sizes": [1, 2]}}, r"option 'sizes' is \[1, 2\]; expected a bool, int, float or str"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_hook_is_refused_at_registration(name):
    arguments, reason = WRONG[name]
    with pytest.raises(TypeError, match=reason):
        byoc.register_target_hooks(VENDOR, **arguments)
    assert VENDOR not in byoc.compilers() or namespace(VENDOR).hooks is None


# ---------------------------------------------------------------- the calling convention
def test_arguments_are_flat_and_symbols_that_a_tensor_has_are_left_out():
    n, m = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("m", "int64")
    x = relax.Var("x", tensor(n, 4))
    pair = relax.Var("pair", relax.TupleType([tensor(3), tensor(4)]))
    shape = relax.Var("shape", relax.ShapeType([n * m, 8]))
    func = function([shape, x, pair], lambda emit, s, x, p: relax.op.exp(x))
    found = region_arguments(func)
    assert [type(e).__name__ for e in found] == ["Var", "Var", "TupleGetItem", "TupleGetItem"]
    assert [getattr(e, "name", None) for e in found[:2]] == ["m", "x"]


def test_constants_are_found_in_order_and_once():
    a, b = make_constant(np.ones(4, "float32")), make_constant(np.zeros(4, "float32"))

    def body(emit, x):
        return relax.op.add(emit(relax.op.multiply(emit(relax.op.add(x, b)), a)), b)

    found = region_constants(function([relax.Var("x", tensor(4))], body))
    assert [c.same_as(d) for c, d in zip(found, (b, a), strict=True)] == [True, True]


@pytest.mark.parametrize("takes_constants", [True, False])
def test_a_primfunc_takes_all_constants_or_none(takes_constants):
    constant = make_constant(np.ones(4, "float32"))
    func = function([relax.Var("x", tensor(4))], lambda emit, x: relax.op.add(x, constant))
    primfunc = kernel((4,), (4,)) if takes_constants else kernel((4,))
    call = call_primfunc(func, global_var("kernel", primfunc), primfunc)
    assert len(call.args[1].fields) == 1 + takes_constants


def test_results_keep_their_nesting():
    x = relax.Var("x", tensor(4))
    func = function([x], lambda emit, x: relax.Tuple([relax.op.split(x, 2), relax.op.exp(x)]))
    primfunc = te.create_prim_func(
        [
            (a := te.placeholder((4,), "float32")),
            *(te.compute((size,), lambda i: a[i]) for size in (2, 2, 4)),
        ],
        "int64",
    )
    new = with_body(func, call_primfunc(func, global_var("kernel", primfunc), primfunc))
    tvm.ir.assert_structural_equal(new.ret_ty, func.ret_ty)
    assert isinstance(new.body.body.ty.fields[0], relax.TupleType)


MISFITS = {
    "too many": (kernel((4,), (4,), (4,)), "has 4 parameters; expected 1 inputs, none or all of 0 constants, and 1"),
    "wrong size": (kernel((5,)), r"parameter 0 of the PrimFunc, a0, is float32\[5\]; expected"),
    "wrong rank": (kernel((4, 1)), r"parameter 0 of the PrimFunc, a0, is float32\[4, 1\]; expected"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_primfunc_that_does_not_fit_is_refused(name):
    primfunc, reason = MISFITS[name]
    func = function([relax.Var("x", tensor(4))], lambda emit, x: relax.op.exp(x))
    with pytest.raises(Reject, match=reason):
        call_primfunc(func, global_var("kernel", primfunc), primfunc)


def test_known_shape_arguments_are_written_out():
    n = tvm.tirx.Var("n", "int64")
    x, shape = relax.Var("x", tensor(n, 4)), relax.Var("shape", relax.ShapeType([n * 4]))
    func = function([x, shape], lambda emit, x, s: relax.op.reshape(x, s))
    (call,) = [b.value for b in with_known_shapes(func).body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    assert isinstance(call.args[1], relax.ShapeExpr)


# ---------------------------------------------------------------- equal kernels
def test_equal_kernels_have_one_name_and_others_a_free_one():
    table = KernelTable(["vendor_0", "vendor_0_0"])
    assert table.add(kernel((4,)), "vendor_0") == "vendor_0_1"
    assert table.add(kernel((4,)).with_attr("global_symbol", "else"), "vendor_1") == "vendor_0_1"
    assert table.add(kernel((5,)), "vendor_1") == "vendor_1"
    assert sorted(table.functions) == ["vendor_0_1", "vendor_1"]
