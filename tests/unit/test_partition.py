"""Annotation and partitioning on every shape of program, and on those of TVM's retired tests; no library needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_byoc_dnnl as byoc
from tests.unit.programs import host, partitioned, program, regions
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, codegen_of, composite_of

V = R.Tensor((4, 4), "float32")
op = relax.op
relu, gelu, exp, add, negative = op.nn.relu, op.nn.gelu, op.exp, op.add, op.negative
VENDORS = {
    "v1": ["relax.add", "relax.nn.relu", "relax.split", "relax.concat"],
    "v2": ["relax.add", "relax.exp"],
    "va": ["relax.add", "relax.nn.relu", "relax.nn.gelu", "relax.sqrt"],
    "vb": ["relax.exp", "relax.tanh"],
}


@pytest.fixture(autouse=True)
def vendors() -> Iterator[None]:
    for name, ops in VENDORS.items():
        byoc.register_annotate_compiler(name, ops)
    yield
    for name in VENDORS:
        byoc.unregister_compiler(name)


# ---- regions of one function ----------------------------------------------------------------------------


def convex(emit: Any, x: Any) -> Any:
    a = emit(relu(x))
    return emit(relu(emit(add(a, emit(exp(a))))))  # exp is not v1's: it cuts the graph


def branches(emit: Any, x: Any) -> Any:
    a = emit(relu(x))
    b = emit(add(a, a))
    return emit(add(b, emit(add(a, b))))


def diamond(emit: Any, x: Any) -> Any:
    a = emit(relu(x))
    return emit(add(emit(relu(a)), emit(gelu(a))))


def diamond_through_another(emit: Any, x: Any) -> Any:
    a = emit(relu(x))
    return emit(add(emit(gelu(a)), emit(exp(a))))


def producers(emit: Any, x: Any, y: Any) -> Any:
    a, b = emit(relu(x)), emit(gelu(y))
    return emit(add(emit(relu(a)), emit(gelu(b))))


def producer_behind_tvms_call(emit: Any, x: Any) -> Any:
    a = emit(relu(x))
    return emit(add(a, emit(gelu(emit(negative(a))))))


def turns(emit: Any, x: Any, y: Any, z: Any) -> Any:
    """The example of the discussion that MergeCompilerRegions came from."""
    joined = emit(add(emit(add(x, y)), emit(exp(z))))
    return emit(relu(emit(add(emit(exp(joined)), emit(relu(joined))))))


def read_several_times(emit: Any, x: Any) -> Any:
    a = emit(relu(x))
    return emit(op.multiply(emit(op.abs(a)), emit(negative(a))))


def returned_twice(emit: Any, x: Any, y: Any) -> Any:
    a = emit(add(x, y))
    return a, a


def several_outputs(emit: Any, x: Any, y: Any) -> Any:
    a = emit(add(x, y))
    b = emit(relu(a))
    return a, b, emit(negative(b))


def parts_of_a_tuple(emit: Any, x: Any) -> Any:
    parts = emit(op.split(x, 2, axis=0))
    a = emit(relu(emit(parts[0])))
    return emit(op.concat((a, emit(parts[1])), axis=0)), emit(exp(a))  # `a` is read outside too


def tuple_of_constants(emit: Any, x: Any) -> Any:
    one, two = (relax.const([[v] * 4] * 4, "float32") for v in (1.0, 2.0))
    return emit(op.concat((emit(relu(x)), one, two), axis=0))


def constant(emit: Any, x: Any) -> Any:
    weight = relax.const([[2.0] * 4] * 4, "float32")
    return emit(add(emit(add(x, weight)), weight))


REGIONS: list[tuple[Any, Any, list[str], Any]] = [
    (convex, "v1", ["v1_0", "relax.exp", "v1_1"], {"v1_0": ["relu"], "v1_1": ["add", "relu"]}),
    (branches, "v1", ["v1_0"], None),
    (diamond, "va", ["va_0"], None),
    (
        diamond_through_another,
        ["va", "vb"],
        ["va_0", "vb_0", "va_1"],
        {"va_0": ["relu", "gelu"], "vb_0": ["exp"], "va_1": ["add"]},
    ),
    (producers, "va", ["va_0"], None),
    (producer_behind_tvms_call, "va", ["va_0", "relax.negative", "va_1"], None),
    (
        turns,
        ["va", "vb"],
        ["vb_0", "va_0", "vb_0", "va_1"],  # the two of vb are equal: one function
        # by composites, of which equal ones stand there once: va_0 adds twice
        {"vb_0": ["exp"], "va_0": ["add", "relu"], "va_1": ["add", "relu"]},
    ),
    (read_several_times, "va", ["va_0", "relax.abs", "relax.negative", "relax.multiply"], None),
    (returned_twice, "va", ["va_0"], None),
    (several_outputs, "va", ["va_0", "relax.negative"], None),
    (parts_of_a_tuple, "v1", ["v1_0", "relax.exp"], None),
    (tuple_of_constants, "va", ["va_0", "relax.concat"], None),
    (constant, "va", ["va_0"], None),
    (lambda emit, x: emit(relu(emit(exp(emit(relu(x)))))), "v1", ["v1_0", "relax.exp", "v1_0"], None),
    (lambda emit, x: emit(exp(emit(add(x, x)))), ["v1", "v2"], ["v1_0", "v2_0"], None),
    (lambda emit, x: emit(exp(emit(add(x, x)))), ["v2", "v1"], ["v2_0"], None),
    (lambda _emit, x: x, "v1", [], {}),
    (lambda _emit, _x: (), "va", [], {}),
]
#: outputs of the program, parameters and outputs of its first region
SIGNATURES = {
    read_several_times: (1, 1, 1),
    returned_twice: (2, 2, 2),
    several_outputs: (3, 2, 2),
    parts_of_a_tuple: (2, 1, 2),
    constant: (1, 1, 1),
}


def outputs(func: relax.Function) -> int:
    return len(func.ret_ty.fields) if isinstance(func.ret_ty, relax.TupleType) else 1


@pytest.mark.parametrize(
    ("build", "compilers", "calls", "inside"), REGIONS, ids=[f"{i} {row[0].__name__}" for i, row in enumerate(REGIONS)]
)
def test_regions_are_convex_maximal_and_numbered_in_program_order(
    build: Any, compilers: Any, calls: list[str], inside: Any
) -> None:
    mod = partitioned(program(build, build.__code__.co_argcount - 1), compilers)
    assert host(mod) == calls
    assert inside is None or regions(mod) == inside
    if build in SIGNATURES:
        region = mod[next(name for name in calls if name[0] == "v")]
        assert (outputs(mod["main"]), len(region.params), outputs(region)) == SIGNATURES[build]


def test_what_is_not_read_does_not_change_what_is() -> None:
    def unused(emit: Any, x: Any, y: Any) -> Any:
        result = emit(add(x, y))
        emit(exp(x))
        return result

    assert host(partitioned(program(unused, 2), "va"))[:1] == ["va_0"]


def test_an_empty_module() -> None:
    assert len(byoc.partition(tvm.IRModule(), "v1").functions) == 0


def test_symbolic_shapes_partition() -> None:
    @I.ir_module
    class M:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")):
            with R.dataflow():
                a = R.add(x, x)
                b = R.nn.relu(a)
                R.output(b)
            return b

    assert host(partitioned(M)) == ["v1_0"]


# ---- several functions, several runs ----------------------------------------------------------------------


def test_function_attribute_instead_of_an_argument() -> None:
    @I.ir_module
    class M:
        @R.function
        def main(x: V):
            R.func_attr({"compiler": "v1"})
            a = R.nn.relu(x)
            return a

        @R.function
        def other(x: V):
            R.func_attr({"compiler": ["v2", "v1"]})
            a = R.add(x, x)
            b = R.nn.relu(a)
            return b

        @R.function
        def none(x: V):
            a = R.nn.relu(x)
            return a

    mod = partitioned(M, None)
    assert host(mod, "main") == ["v1_0"]
    assert [c.split("_")[0] for c in host(mod, "other")] == ["v2", "v1"]
    assert host(mod, "none") == ["relax.nn.relu"]


def test_outside_dataflow_blocks_and_in_functions_that_call_each_other() -> None:
    @I.ir_module
    class M:
        @R.function
        def helper(x: V) -> V:
            a = R.nn.relu(x)
            return a

        @R.function
        def main(x: V) -> V:
            cls = M
            a = R.add(x, x)
            b: V = cls.helper(a)
            c = R.add(b, x)
            return c

    mod = partitioned(M)
    assert [c.split("_")[0] for c in host(mod)] == ["v1", "helper", "v1"]
    assert host(mod, "helper")[0].startswith("v1_")


def test_control_flow_keeps_its_meaning() -> None:
    @I.ir_module
    class M:
        @R.function
        def main(x: V, flag: R.Tensor((), "bool")) -> V:
            a = R.add(x, x)
            if flag:
                r = R.nn.relu(a)
            else:
                r = R.exp(a)
            return r

    mod = partitioned(M)
    assert host(mod)[0] == "v1_0"
    assert regions(mod) == {"v1_0": ["add"], "v1_1": ["relu"]}  # inside the branch, too


def test_loops_are_kept() -> None:
    """Relax writes loops as functions that call themselves."""

    @I.ir_module
    class M:
        @R.function
        def loop(i: R.Tensor((), "int64"), x: V) -> V:
            cls = M
            more: R.Tensor((), "bool") = R.less(i, R.const(3, "int64"))
            if more:
                y: V = R.add(x, x)
                r: V = cls.loop(R.add(i, R.const(1, "int64")), y)
            else:
                r: V = R.nn.relu(x)
            return r

    byoc.register_annotate_compiler("va", "relax.negative")
    mod = partitioned(M, "va")
    inside = [v for v in mod.functions.values() if codegen_of(v)]
    assert inside and "loop" in {gv.name_hint for gv in mod.get_global_vars()}


def test_calls_of_primfuncs_are_left_alone() -> None:
    @I.ir_module
    class M:
        @T.prim_func(private=True, s_tir=True)
        def double(a: T.Buffer((T.int64(4), T.int64(4)), "float32"), b: T.Buffer((T.int64(4), T.int64(4)), "float32")):
            for i, j in T.grid(T.int64(4), T.int64(4)):
                with T.sblock("double"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    b[vi, vj] = a[vi, vj] * T.float32(2)

        @R.function
        def main(x: V) -> V:
            cls = M
            with R.dataflow():
                a = R.nn.relu(x)
                b = R.call_tir(cls.double, (a,), out_ty=R.Tensor((4, 4), "float32"))
                c = R.nn.gelu(b)
                R.output(c)
            return c

    mod = partitioned(M, "va")
    assert host(mod) == ["va_0", "relax.call_tir", "va_1"]
    tvm.ir.assert_structural_equal(mod["double"], M["double"])


def test_local_functions_of_other_functions_are_left_alone() -> None:
    @I.ir_module
    class M:
        @R.function
        def main(x: V) -> V:
            a = R.nn.relu(x)
            return a

        @R.function
        def other(x: V) -> V:
            @R.function
            def inner(y: V) -> V:
                z = R.multiply(y, y)
                return z

            r: V = inner(x)
            return r

    mod = partitioned(M, "va")
    assert host(mod) == ["va_0"]
    (inner,) = (v for _, v in bindings_of(mod["other"]) if isinstance(v, relax.Function))
    assert "multiply" in inner.script() and composite_of(inner) == ""


def test_names_do_not_clash_with_the_modules_own_functions() -> None:
    @I.ir_module
    class M:
        @R.function
        def v1_0(x: V) -> V:
            a = R.exp(x)
            return a

        @R.function
        def main(x: V) -> V:
            cls = M
            a = R.nn.relu(x)
            b: V = cls.v1_0(a)
            return b

    assert host(partitioned(M)) == ["v1_1", "v1_0"]


def test_passes_are_real_passes() -> None:
    passes = [byoc.AnnotateExternalCompiler("v1"), byoc.PartitionGraph()]
    assert all(isinstance(p, tvm.transform.Pass) for p in passes)
    assert [p.info.name for p in passes] == ["AnnotateExternalCompiler", "PartitionGraph"]
    assert "AnnotateExternalCompiler" in str(passes[0])


def test_partitioning_twice_changes_nothing() -> None:
    once = partitioned(program(lambda emit, x: emit(exp(emit(relu(x))))))
    tvm.ir.assert_structural_equal(once, partitioned(once))


def test_two_runs_are_one_with_a_list() -> None:
    def mixed(emit: Any, x: Any) -> Any:
        a = emit(relu(x))
        return emit(add(emit(exp(a)), emit(relu(a))))

    def run(*lists: Any) -> tvm.IRModule:
        passes = [byoc.AnnotateExternalCompiler(names) for names in lists]
        return tvm.transform.Sequential([*passes, byoc.PartitionGraph()])(program(mixed))

    assert regions(run("va", "vb")) == regions(run(["va", "vb"]))
    assert host(run("va", "va")) == host(run("va"))


# ---- what is overwritten, and what is known of a value ------------------------------------------------------


def test_regions_stay_in_front_of_a_packed_function_that_overwrites_what_they_read() -> None:
    @I.ir_module
    class M:
        @R.function
        def main(x: V, y: V):
            with R.dataflow():
                b = R.nn.relu(x)
                c = R.call_inplace_packed("fill", x, inplace_indices=[0], ty_args=[V])
                d = R.add(b, c)
                e = R.add(b, x)
                f = R.nn.relu(y)
                g = R.add(f, b)
                R.output(d, e, g)
            return d, e, g

    assert host(partitioned(M)) == ["v1_0", "relax.call_inplace_packed", "v1_1", "v1_1"]
    assert regions(partitioned(M)) == {"v1_0": ["relu", "add"], "v1_1": ["add"]}


def test_a_single_call_keeps_its_variable_and_its_known_dims() -> None:
    """TVM's pass would infer the type of each call again, and forget the dims that an argument gives."""
    n = tvm.tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((n, 4), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            wide = builder.emit(op.broadcast_to(relax.const(np.ones((1, 4), "float32")), (n, 4)))
            added = builder.emit(add(wide, x))
            twice = builder.emit(op.reshape(add(added, y), (n * 2, 2)))
            result = builder.emit_output(add(twice, twice))
        builder.emit_func_output(result)
    byoc.register_annotate_compiler("v1", ["relax.broadcast_to", "relax.reshape"])
    plain = builder.get()
    mod = byoc.AnnotateExternalCompiler("v1", prepare=False)(plain)
    assert relax.analysis.well_formed(mod) is not False  # 0.27 raises instead
    by_name = {str(var.name): value for var, value in bindings_of(mod["main"])}
    assert by_name.keys() == {str(var.name) for var, _ in bindings_of(plain["main"])}
    composites = {composite_of(f): f for f in mod.functions.values() if composite_of(f)}
    assert composites.keys() == {"v1.relax.broadcast_to", "v1.relax.add", "v1.relax.reshape"}
    for func in composites.values():
        assert isinstance(func.ret_ty.shape, relax.ShapeExpr)
    assert len([f for f in mod.functions.values() if composite_of(f) == "v1.relax.add"]) == 2  # x + y and x + x
