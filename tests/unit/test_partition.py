"""Annotation and partitioning on every shape of program; structure only, no library needed."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, is_tuple, is_tuple_get_item, wildcard
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, codegen_of, composite_of
from tvm_byoc_dnnl.partitioning.annotate.needed import ops_of_pattern
from tvm_byoc_dnnl.partitioning.annotate.passes import Matcher
from tvm_byoc_dnnl.vendors.namespaces import namespace

T = R.Tensor((4, 4), "float32")


@pytest.fixture(autouse=True)
def vendors():
    byoc.register_annotate_compiler("v1", ["relax.add", "relax.nn.relu", "relax.split", "relax.concat"])
    byoc.register_annotate_compiler("v2", ["relax.add", "relax.exp"])
    yield
    byoc.unregister_compiler("v1")
    byoc.unregister_compiler("v2")


def regions(mod):
    """Region name → names of the composites inside, in order."""
    return {
        gv.name_hint: [composite_of(v) for _, v in bindings_of(f) if isinstance(v, relax.Function)]
        for gv, f in mod.functions.items()
        if codegen_of(f)
    }


def host_calls(mod, name="main"):
    """The names of the operators and regions that a function still calls, in order."""
    return [v.op.name if isinstance(v.op, tvm.ir.Op) else v.op.name_hint for v in _calls(mod[name])]


def _calls(func):
    return [v for _, v in bindings_of(func) if isinstance(v, relax.Call)]


def partitioned(mod, compiler="v1"):
    result = byoc.partition(mod, compiler)
    assert relax.analysis.well_formed(result) is not False  # 0.27 raises instead
    return result


def test_regions_are_convex_and_numbered_in_program_order():
    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                a = R.nn.relu(x)
                b = R.exp(a)  # not v1's: cuts the graph
                c = R.add(a, b)
                d = R.nn.relu(c)
                R.output(d)
            return d

    mod = partitioned(M)
    assert regions(mod) == {"v1_0": ["v1.relax.nn.relu"], "v1_1": ["v1.relax.add", "v1.relax.nn.relu"]}
    assert host_calls(mod) == ["v1_0", "relax.exp", "v1_1"]


def test_a_region_is_maximal_across_branches():
    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                a = R.nn.relu(x)
                b = R.add(a, a)
                c = R.add(a, b)
                d = R.add(b, c)
                R.output(d)
            return d

    assert len(regions(partitioned(M))) == 1


def test_compilers_in_order_of_priority():
    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                a = R.add(x, x)
                b = R.exp(a)
                R.output(b)
            return b

    assert host_calls(partitioned(M, ["v1", "v2"])) == ["v1_0", "v2_0"]
    assert host_calls(partitioned(M, ["v2", "v1"])) == ["v2_0"]


def test_function_attribute_instead_of_an_argument():
    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            R.func_attr({"compiler": "v1"})
            a = R.nn.relu(x)
            return a

        @R.function
        def other(x: T):
            R.func_attr({"compiler": ["v2", "v1"]})
            a = R.add(x, x)
            b = R.nn.relu(a)
            return b

        @R.function
        def none(x: T):
            a = R.nn.relu(x)
            return a

    mod = partitioned(M, None)
    assert host_calls(mod, "main") == ["v1_0"]
    assert [c.split("_")[0] for c in host_calls(mod, "other")] == ["v2", "v1"]
    assert host_calls(mod, "none") == ["relax.nn.relu"]


def test_outside_dataflow_blocks_and_in_functions_that_call_each_other():
    @I.ir_module
    class M:
        @R.function
        def helper(x: T) -> T:
            a = R.nn.relu(x)
            return a

        @R.function
        def main(x: T) -> T:
            cls = M
            a = R.add(x, x)
            b: T = cls.helper(a)
            c = R.add(b, x)
            return c

    mod = partitioned(M)
    assert [c.split("_")[0] for c in host_calls(mod)] == ["v1", "helper", "v1"]
    assert host_calls(mod, "helper")[0].startswith("v1_")


def test_control_flow_keeps_its_meaning():
    @I.ir_module
    class M:
        @R.function
        def main(x: T, flag: R.Tensor((), "bool")) -> T:
            a = R.add(x, x)
            if flag:
                r = R.nn.relu(a)
            else:
                r = R.exp(a)
            return r

    mod = partitioned(M)
    assert host_calls(mod)[0] == "v1_0"
    assert regions(mod) == {"v1_0": ["v1.relax.add"], "v1_1": ["v1.relax.nn.relu"]}  # inside the branch, too


def test_tuples_and_multiple_outputs():
    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                parts = R.split(x, 2, axis=0)
                a = R.nn.relu(parts[0])
                b = R.concat((a, parts[1]), axis=0)
                c = R.exp(a)
                R.output(b, c)
            return (b, c)

    mod = partitioned(M)
    assert len(regions(mod)) == 1
    (region,) = (f for f in mod.functions.values() if codegen_of(f))
    assert isinstance(region.ret_ty, relax.TupleType)  # `a` is read outside too


def test_equal_regions_share_one_function():
    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                a = R.nn.relu(x)
                b = R.exp(a)
                c = R.nn.relu(b)
                R.output(c)
            return c

    mod = partitioned(M)
    assert host_calls(mod) == ["v1_0", "relax.exp", "v1_0"]


def test_constants_used_twice_stay_one_constant():
    weight = relax.const([[1.0, 2.0], [3.0, 4.0]], "float32")
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 2), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            a = bb.emit(relax.op.add(x, weight))
            b = bb.emit_output(relax.op.add(a, weight))
        bb.emit_func_output(b)
    mod = partitioned(bb.get())
    assert len(regions(mod)) == 1
    assert host_calls(mod) == ["v1_0"]


def test_a_users_own_annotation_in_place_of_ours():
    pattern = is_op("relax.nn.relu")(is_op("relax.add")(wildcard(), wildcard()))
    own = relax.transform.FuseOpsByPattern([("v1.mine", pattern)], bind_constants=True)

    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                a = R.add(x, x)
                b = R.nn.relu(a)
                c = R.nn.relu(b)
                R.output(c)
            return c

    mod = tvm.transform.Sequential([own, byoc.PartitionGraph()])(M)
    assert regions(mod) == {"v1_0": ["v1.mine"]}
    assert host_calls(mod) == ["v1_0", "relax.nn.relu"]


def test_a_pattern_does_not_take_a_value_that_is_read_elsewhere():
    pattern = is_op("relax.exp")(is_op("relax.add")(wildcard(), wildcard()))
    byoc.register_pattern("v3", "exp_add", pattern)

    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                a = R.add(x, x)
                b = R.exp(a)
                c = R.exp(R.add(b, a))
                R.output(c)
            return c

    try:
        mod = partitioned(M, "v3")
        assert host_calls(mod) == ["relax.add", "relax.exp", "v3_0"]
    finally:
        byoc.unregister_compiler("v3")


def test_a_patterns_check_sees_the_annotated_parts():
    seen = []
    add = is_op("relax.add")(wildcard(), wildcard())

    def check(match):
        seen.append((match["sum"].op.name, match["root"].op.name))
        return byoc.Reject("not today")

    byoc.register_pattern("v3", "exp_add", is_op("relax.exp")(add), annotations={"sum": add}, check=check)

    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                b = R.exp(R.add(x, x))
                R.output(b)
            return b

    try:
        assert regions(partitioned(M, "v3")) == {}
        assert seen == [("relax.add", "relax.exp")]
    finally:
        byoc.unregister_compiler("v3")


def test_names_do_not_clash_with_the_modules_own_functions():
    @I.ir_module
    class M:
        @R.function
        def v1_0(x: T) -> T:
            a = R.exp(x)
            return a

        @R.function
        def main(x: T) -> T:
            cls = M
            a = R.nn.relu(x)
            b: T = cls.v1_0(a)
            return b

    mod = partitioned(M)
    assert host_calls(mod) == ["v1_1", "v1_0"]


def test_symbolic_shapes_partition():
    @I.ir_module
    class M:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")):
            with R.dataflow():
                a = R.add(x, x)
                b = R.nn.relu(a)
                R.output(b)
            return b

    assert host_calls(partitioned(M)) == ["v1_0"]


def test_passes_are_real_passes():
    passes = [byoc.AnnotateExternalCompiler("v1"), byoc.PartitionGraph()]
    assert all(isinstance(p, tvm.transform.Pass) for p in passes)
    assert [p.info.name for p in passes] == ["AnnotateExternalCompiler", "PartitionGraph"]
    assert "AnnotateExternalCompiler" in str(passes[0])


def test_partitioning_twice_changes_nothing():
    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                a = R.exp(R.nn.relu(x))
                R.output(a)
            return a

    once = partitioned(M)
    tvm.ir.assert_structural_equal(once, partitioned(once))


def test_an_empty_module_and_one_without_matches():
    assert len(byoc.partition(tvm.IRModule(), "v1").functions) == 0

    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            return x

    assert host_calls(partitioned(M)) == []


def test_a_match_that_would_read_what_is_overwritten_meanwhile_is_not_taken():
    x, y = wildcard(), wildcard()
    byoc.register_pattern("v1", "relu_matmul", is_op("relax.matmul")(is_op("relax.nn.relu")(x), y))

    @I.ir_module
    class M:
        @R.function
        def main(x: T):
            with R.dataflow():
                a = R.exp(x)
                b = R.nn.relu(a)
                c = R.multiply(a, a)
                d = R.matmul(b, c)
                R.output(d)
            return d

    assert regions(partitioned(M)) == {"v1_0": ["v1.relu_matmul"]}
    mod = partitioned(relax.transform.DataflowUseInplaceCalls()(M))
    assert regions(mod) == {"v1_0": ["v1.relax.nn.relu"]}
    assert host_calls(mod) == ["relax.exp", "v1_0", "relax.call_tir_inplace", "relax.matmul"]


def test_regions_stay_in_front_of_a_packed_function_that_overwrites_what_they_read():
    @I.ir_module
    class M:
        @R.function
        def main(x: T, y: T):
            with R.dataflow():
                b = R.nn.relu(x)
                c = R.call_inplace_packed("fill", x, inplace_indices=[0], ty_args=[T])
                d = R.add(b, c)
                e = R.add(b, x)
                f = R.nn.relu(y)
                g = R.add(f, b)
                R.output(d, e, g)
            return d, e, g

    assert host_calls(partitioned(M)) == ["v1_0", "relax.call_inplace_packed", "v1_1", "v1_1"]
    assert regions(partitioned(M)) == {"v1_0": ["v1.relax.nn.relu", "v1.relax.add"], "v1_1": ["v1.relax.add"]}


@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        (
            is_op("relax.add")(wildcard(), is_op("relax.exp")(wildcard()).has_dtype("float32")),
            {"relax.add", "relax.exp"},
        ),
        (is_op("relax.add")(wildcard(), wildcard()) | is_op("relax.exp")(wildcard()), set()),
        (is_op("relax.exp")(wildcard()) | is_op("relax.exp")(is_const()), {"relax.exp"}),
        (is_tuple_get_item(is_op("relax.split")(wildcard()), 0), {"relax.split"}),
        (is_op("relax.concat")(is_tuple([wildcard(), is_op("relax.exp")(wildcard())])), {"relax.concat", "relax.exp"}),
        (wildcard()(varg_default_wildcard=True) & ~is_op("relax.exp")(wildcard()), set()),
    ],
)
def test_a_pattern_is_tried_where_its_operators_occur(pattern, ops):
    assert ops_of_pattern(pattern) == ops


def test_a_single_call_keeps_its_variable_and_its_known_dims():
    """TVM's pass would infer the type of each call again, and forget the dims that an argument gives."""
    n = tvm.tirx.Var("n", "int64")
    builder = relax.BlockBuilder()
    x, y = (relax.Var(name, relax.TensorType((n, 4), "float32")) for name in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            wide = builder.emit(relax.op.broadcast_to(relax.const(np.ones((1, 4), "float32")), (n, 4)))
            added = builder.emit(relax.op.add(wide, x))
            twice = builder.emit(relax.op.reshape(relax.op.add(added, y), (n * 2, 2)))
            result = builder.emit_output(relax.op.add(twice, twice))
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


def test_all_single_calls_are_one_candidate():
    ops = {"relax.nn.relu", "relax.add", "relax.tan"}
    patterns = sum(len(namespace(name).patterns) for name in ("v1", "v2"))
    assert len(Matcher(["v1", "v2"], ops).candidates) == patterns + 2
