"""The questions of TVM's retired partitioning tests, and of Relax's tests of fusing and merging, to our two passes.

docs/conformance.md says which test is which. Structure only, no library needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, is_tuple_get_item, wildcard
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.ir.relax_utils import bindings_of, codegen_of, composite_of

V = R.Tensor((4, 4), "float32")


@pytest.fixture(autouse=True)
def vendors() -> Iterator[None]:
    byoc.register_annotate_compiler("va", ["relax.add", "relax.nn.relu", "relax.nn.gelu", "relax.sqrt"])
    byoc.register_annotate_compiler("vb", ["relax.exp", "relax.tanh"])
    yield
    for name in ("va", "vb"):
        byoc.unregister_compiler(name)


@pytest.fixture
def fusing() -> Iterator[Callable[..., None]]:
    """Patterns of a namespace of their own; it takes no single calls."""
    made: list[str] = []

    def register(name: str, pattern: Any, **options: Any) -> None:
        byoc.register_pattern("vp", name, pattern, **options)
        made.append(name)

    yield register
    if made:
        byoc.unregister_compiler("vp")


def module(build: Callable[..., Any], inputs: int = 2) -> tvm.IRModule:
    """`main` with one dataflow block; ``build(emit, *params)`` returns its result, or a tuple of them."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType((4, 4), "float32")) for i in range(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = build(builder.emit, *params)
            output = builder.emit_output(relax.Tuple(result) if isinstance(result, tuple) else result)
        builder.emit_func_output(output)
    return builder.get()


def partitioned(mod: tvm.IRModule, compilers: Any) -> tvm.IRModule:
    result = byoc.partition(mod, compilers)
    assert relax.analysis.well_formed(result) is not False
    return result


def regions(mod: tvm.IRModule) -> dict[str, list[str]]:
    return {
        gv.name_hint: [composite_of(v).split(".")[-1] for _, v in bindings_of(f) if isinstance(v, relax.Function)]
        for gv, f in mod.functions.items()
        if codegen_of(f)
    }


def host(mod: tvm.IRModule, name: str = "main") -> list[str]:
    calls = [v for _, v in bindings_of(mod[name]) if isinstance(v, relax.Call)]
    return [c.op.name if isinstance(c.op, tvm.ir.Op) else c.op.name_hint for c in calls]


op = relax.op
relu, gelu, exp, add = op.nn.relu, op.nn.gelu, op.exp, op.add


# ---- regions ------------------------------------------------------------------------------------------


def test_a_diamond_is_one_region() -> None:
    def diamond(emit: Any, x: Any, _y: Any) -> Any:
        a = emit(relu(x))
        return emit(add(emit(relu(a)), emit(gelu(a))))

    assert host(partitioned(module(diamond), "va")) == ["va_0"]


def test_a_diamond_through_another_compiler_is_cut() -> None:
    def diamond(emit: Any, x: Any, _y: Any) -> Any:
        a = emit(relu(x))
        return emit(add(emit(gelu(a)), emit(exp(a))))

    mod = partitioned(module(diamond), ["va", "vb"])
    assert host(mod) == ["va_0", "vb_0", "va_1"]
    assert regions(mod) == {"va_0": ["relu", "gelu"], "vb_0": ["exp"], "va_1": ["add"]}


def test_producers_that_do_not_know_each_other_are_merged() -> None:
    def producers(emit: Any, x: Any, y: Any) -> Any:
        a, b = emit(relu(x)), emit(gelu(y))
        return emit(add(emit(relu(a)), emit(gelu(b))))

    assert host(partitioned(module(producers), "va")) == ["va_0"]


def test_a_producer_behind_tvms_call_is_not_merged() -> None:
    def cycle(emit: Any, x: Any, _y: Any) -> Any:
        a = emit(relu(x))
        return emit(add(a, emit(gelu(emit(op.negative(a))))))

    assert host(partitioned(module(cycle), "va")) == ["va_0", "relax.negative", "va_1"]


def test_two_compilers_in_turns() -> None:
    """The example of the discussion that MergeCompilerRegions came from."""

    def turns(emit: Any, x: Any, y: Any, z: Any) -> Any:
        first, other = emit(add(x, y)), emit(exp(z))
        joined = emit(add(first, other))
        return emit(relu(emit(add(emit(exp(joined)), emit(relu(joined))))))

    mod = partitioned(module(turns, 3), ["va", "vb"])
    assert host(mod) == ["vb_0", "va_0", "vb_0", "va_1"]  # the two of vb are equal: one function
    # by composites, of which equal ones stand there once: va_0 adds twice
    assert regions(mod) == {"vb_0": ["exp"], "va_0": ["add", "relu"], "va_1": ["add", "relu"]}


def test_a_result_read_several_times_leaves_the_region_once() -> None:
    def several(emit: Any, x: Any, _y: Any) -> Any:
        a = emit(relu(x))
        return emit(op.multiply(emit(op.abs(a)), emit(op.negative(a))))

    mod = partitioned(module(several), "va")
    assert host(mod) == ["va_0", "relax.abs", "relax.negative", "relax.multiply"]
    assert not isinstance(mod["va_0"].ret_ty, relax.TupleType)


def test_an_output_returned_twice() -> None:
    def twice(emit: Any, x: Any, y: Any) -> Any:
        a = emit(add(x, y))
        return (a, a)

    mod = partitioned(module(twice), "va")
    assert host(mod) == ["va_0"]
    assert len(mod["main"].ret_ty.fields) == 2


def test_one_output_and_several_of_one_region() -> None:
    def outputs(emit: Any, x: Any, y: Any) -> Any:
        a = emit(add(x, y))
        b = emit(relu(a))
        return (a, b, emit(op.negative(b)))

    mod = partitioned(module(outputs), "va")
    assert host(mod) == ["va_0", "relax.negative"]
    assert len(mod["va_0"].ret_ty.fields) == 2


def test_a_tuple_of_constants() -> None:
    one, two = (relax.const([[v] * 4] * 4, "float32") for v in (1.0, 2.0))
    mod = partitioned(module(lambda emit, x, _: emit(op.concat((emit(relu(x)), one, two), axis=0))), "va")
    assert host(mod) == ["va_0", "relax.concat"]


def test_what_is_not_read_does_not_change_what_is() -> None:
    def unused(emit: Any, x: Any, y: Any) -> Any:
        result = emit(add(x, y))
        emit(exp(x))
        return result

    assert host(partitioned(module(unused), "va"))[:1] == ["va_0"]


def test_constants_stay_inside_the_region() -> None:
    weight = relax.const([[2.0] * 4] * 4, "float32")
    mod = partitioned(module(lambda emit, x, _: emit(add(x, weight))), "va")
    assert len(mod["va_0"].params) == 1


def test_a_module_without_calls_keeps_its_empty_tuple() -> None:
    mod = partitioned(module(lambda _emit, _x, _y: ()), "va")
    assert host(mod) == [] and len(mod["main"].ret_ty.fields) == 0


# ---- several runs, several compilers --------------------------------------------------------------------


def test_two_runs_are_one_with_a_list() -> None:
    def mixed(emit: Any, x: Any, _y: Any) -> Any:
        a = emit(relu(x))
        return emit(add(emit(exp(a)), emit(relu(a))))

    def run(*lists: Any) -> tvm.IRModule:
        passes = [byoc.AnnotateExternalCompiler(names) for names in lists]
        return tvm.transform.Sequential([*passes, byoc.PartitionGraph()])(module(mixed))

    assert regions(run("va", "vb")) == regions(run(["va", "vb"]))
    assert host(run("va", "va")) == host(run("va"))


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


# ---- patterns -------------------------------------------------------------------------------------------

ADD_RELU = is_op("relax.nn.relu")(is_op("relax.add")(wildcard(), wildcard()))


def add_relu(emit: Any, x: Any, y: Any) -> Any:
    return emit(relu(emit(add(x, y))))


def test_a_pattern_becomes_one_composite(fusing: Any) -> None:
    fusing("add_relu", ADD_RELU)
    mod = partitioned(module(add_relu), "vp")
    assert host(mod) == ["vp_0"] and regions(mod) == {"vp_0": ["add_relu"]}


@pytest.mark.parametrize("small_first", [False, True])
def test_the_order_of_patterns_is_their_priority(fusing: Any, small_first: bool) -> None:
    patterns = [("add_relu", ADD_RELU), ("just_add", is_op("relax.add")(wildcard(), wildcard()))]
    for name, pattern in patterns[::-1] if small_first else patterns:
        fusing(name, pattern)
    mod = partitioned(module(add_relu), "vp")
    assert regions(mod) == {"vp_0": ["just_add" if small_first else "add_relu"]}
    assert host(mod) == (["vp_0", "relax.nn.relu"] if small_first else ["vp_0"])


def add_sub_mul() -> Any:
    x, y = wildcard(), wildcard()
    return is_op("relax.multiply")(is_op("relax.add")(x, y), is_op("relax.subtract")(x, y))


def block(emit: Any, x: Any, y: Any) -> Any:
    return emit(op.multiply(emit(add(x, y)), emit(op.subtract(x, y))))


def test_a_pattern_that_branches(fusing: Any) -> None:
    fusing("block", add_sub_mul())
    mod = partitioned(module(lambda emit, x, y: emit(exp(block(emit, y, block(emit, x, y))))), "vp")
    assert host(mod) == ["vp_0", "relax.exp"]
    assert regions(mod)["vp_0"] in (["block"], ["block", "block"])


def test_equal_blocks_side_by_side(fusing: Any) -> None:
    fusing("block", add_sub_mul())
    mod = partitioned(module(lambda emit, x, y: emit(op.divide(block(emit, x, y), block(emit, y, x)))), "vp")
    assert host(mod)[-1] == "relax.divide" and "relax.add" not in host(mod)


@pytest.mark.parametrize("same", [True, False])
def test_one_wildcard_is_one_value(fusing: Any, same: bool) -> None:
    fusing("block", add_sub_mul())

    def net(emit: Any, x: Any, y: Any, z: Any) -> Any:
        return emit(op.multiply(emit(add(x, y)), emit(op.subtract(x, y if same else z))))

    assert bool(regions(partitioned(module(net, 3), "vp"))) is same


def test_a_diamond_with_one_node_more_is_not_the_pattern(fusing: Any) -> None:
    inner = is_op("relax.nn.relu")(wildcard())
    fusing("gated", is_op("relax.multiply")(inner, is_op("relax.exp")(inner)))

    def net(emit: Any, x: Any, y: Any) -> Any:
        a = emit(relu(x))
        return emit(op.multiply(a, emit(exp(emit(add(a, y))))))

    assert regions(partitioned(module(net), "vp")) == {}


def test_a_pattern_through_a_tuple(fusing: Any) -> None:
    norm = is_op("relax.nn.batch_norm")(wildcard(), wildcard(), wildcard(), wildcard(), wildcard())
    fusing("bn_relu", is_op("relax.nn.relu")(is_tuple_get_item(norm, 0)))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8), "float32"))
    stats = [relax.Var(f"s{i}", relax.TensorType((8,), "float32")) for i in range(4)]
    with builder.function("main", [x, *stats]):
        with builder.dataflow():
            first = builder.emit(builder.emit(op.nn.batch_norm(x, *stats, axis=1))[0])
            out = builder.emit_output(relu(first))
        builder.emit_func_output(out)
    mod = tvm.transform.Sequential([byoc.AnnotateExternalCompiler("vp", prepare=False), byoc.PartitionGraph()])(
        builder.get()
    )
    assert regions(mod) == {"vp_0": ["bn_relu"]}


def test_a_pattern_with_an_optional_end(fusing: Any) -> None:
    body = is_op("relax.exp")(is_op("relax.add")(wildcard(), wildcard()))
    fusing("layer", is_op("relax.nn.relu")(body) | body)

    def net(emit: Any, x: Any, y: Any) -> Any:
        return emit(exp(emit(add(add_then(emit, x, y), y))))

    def add_then(emit: Any, x: Any, y: Any) -> Any:
        return emit(relu(emit(exp(emit(add(x, y))))))

    mod = partitioned(module(net), "vp")
    assert host(mod) == ["vp_0"] and regions(mod) == {"vp_0": ["layer", "layer"]}


@pytest.mark.parametrize(("wanted", "taken"), [("float32", True), ("float16", False)])
def test_a_check_sees_types(fusing: Any, wanted: str, taken: bool) -> None:
    def check(match: Any) -> Any:
        dtype = str(match["root"].ty.dtype)
        return True if dtype == wanted else byoc.Reject(f"dtype {dtype}")

    fusing("add_relu", ADD_RELU, check=check)
    assert bool(regions(partitioned(module(add_relu), "vp"))) is taken


def test_a_pattern_that_would_feed_itself_is_left(fusing: Any) -> None:
    """FuseOpsByPattern stops with an error here: the second operand depends on the middle of the match."""
    fusing("chain", is_op("relax.add")(is_op("relax.nn.relu")(is_op("relax.negative")(wildcard())), wildcard()))

    def net(emit: Any, x: Any, _y: Any) -> Any:
        a = emit(op.negative(x))
        return emit(add(emit(relu(a)), emit(gelu(a))))

    assert regions(partitioned(module(net), "vp")) == {}


def test_the_second_of_two_patterns_that_feed_each_other_is_left(fusing: Any) -> None:
    """FuseOpsByPattern stops with an error here: each reads an early result of the other."""
    first = is_op("relax.exp")(wildcard())
    fusing("pair", is_op("relax.add")(first, wildcard()), annotations={"first": first}, outputs=["first"])

    def net(emit: Any, x: Any, y: Any) -> Any:
        a, b = emit(exp(x)), emit(exp(y))
        return emit(op.multiply(emit(add(a, b)), emit(add(b, a))))

    assert regions(partitioned(module(net), "vp")) == {"vp_0": ["pair"]}


def test_matches_inside_branches(fusing: Any) -> None:
    fusing("add_relu", ADD_RELU)

    @I.ir_module
    class M:
        @R.function
        def main(x: V, flag: R.Tensor((), "bool")) -> V:
            if flag:
                with R.dataflow():
                    a = R.add(x, x)
                    b = R.nn.relu(a)
                    R.output(b)
                r = b
            else:
                with R.dataflow():
                    c = R.exp(x)
                    R.output(c)
                r = c
            return r

    assert regions(partitioned(M, "vp")) == {"vp_0": ["add_relu"]}


def test_a_split_with_its_parts(fusing: Any) -> None:
    split = is_op("relax.split")(wildcard())
    fusing("halves", is_op("relax.add")(is_tuple_get_item(split, 0), is_tuple_get_item(split, 1)))

    def halves(emit: Any, x: Any, _y: Any) -> Any:
        parts = emit(op.split(x, 2, axis=0))
        return emit(add(emit(parts[0]), emit(parts[1])))

    assert regions(partitioned(module(halves), "vp")) == {"vp_0": ["halves"]}


def test_numbers_as_arguments_stay_inside(fusing: Any) -> None:
    fusing("clip", is_op("relax.clip")(wildcard(), wildcard(), wildcard()))
    mod = partitioned(module(lambda emit, x, _: (emit(op.clip(x, 0, 4)), emit(op.clip(x, 1, 3)))), "vp")
    assert regions(mod) and all(len(mod[name].params) == 1 for name in regions(mod))


def test_an_einsum_with_reshapes(fusing: Any) -> None:
    operands = wildcard()
    fusing("einsum", is_op("relax.reshape")(is_op("relax.einsum")(operands), wildcard()))

    def net(emit: Any, x: Any, y: Any) -> Any:
        product = emit(op.einsum((emit(op.reshape(x, (2, 8))), emit(op.reshape(y, (2, 8)))), "ab,cb->ac"))
        return emit(op.reshape(product, (4,)))

    assert regions(partitioned(module(net), "vp")) == {"vp_0": ["einsum"]}
