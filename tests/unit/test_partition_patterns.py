"""Patterns of several calls as composites: priority, branches, tuples, checks, values that are read elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_const, is_op, is_tuple, is_tuple_get_item, wildcard
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.unit.importing import module
from tests.unit.programs import host, partitioned, program, regions
from tvm_byoc_dnnl.partitioning.annotate import Matcher
from tvm_byoc_dnnl.partitioning.matches import ops_of_pattern
from tvm_byoc_dnnl.vendors.namespaces import namespace

V = R.Tensor((4, 4), "float32")
op = relax.op
relu, gelu, exp, add = op.nn.relu, op.nn.gelu, op.exp, op.add
ADD_RELU = is_op("relax.nn.relu")(is_op("relax.add")(wildcard(), wildcard()))


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


@pytest.fixture
def single_calls() -> Iterator[None]:
    byoc.register_annotate_compiler("v1", ["relax.add", "relax.nn.relu"])
    yield
    byoc.unregister_compiler("v1")


def fused(build: Callable[..., Any], inputs: int = 2) -> tvm.IRModule:
    return partitioned(program(build, inputs), "vp")


def add_relu(emit: Any, x: Any, y: Any) -> Any:
    return emit(relu(emit(add(x, y))))


def test_a_pattern_becomes_one_composite(fusing: Any) -> None:
    fusing("add_relu", ADD_RELU)
    mod = fused(add_relu)
    assert host(mod) == ["vp_0"] and regions(mod) == {"vp_0": ["add_relu"]}


@pytest.mark.parametrize("small_first", [False, True])
def test_the_order_of_patterns_is_their_priority(fusing: Any, small_first: bool) -> None:
    patterns = [("add_relu", ADD_RELU), ("just_add", is_op("relax.add")(wildcard(), wildcard()))]
    for name, pattern in patterns[::-1] if small_first else patterns:
        fusing(name, pattern)
    mod = fused(add_relu)
    assert regions(mod) == {"vp_0": ["just_add" if small_first else "add_relu"]}
    assert host(mod) == (["vp_0", "relax.nn.relu"] if small_first else ["vp_0"])


def add_sub_mul() -> Any:
    x, y = wildcard(), wildcard()
    return is_op("relax.multiply")(is_op("relax.add")(x, y), is_op("relax.subtract")(x, y))


def block(emit: Any, x: Any, y: Any) -> Any:
    return emit(op.multiply(emit(add(x, y)), emit(op.subtract(x, y))))


def test_a_pattern_that_branches(fusing: Any) -> None:
    fusing("block", add_sub_mul())
    mod = fused(lambda emit, x, y: emit(exp(block(emit, y, block(emit, x, y)))))
    assert host(mod) == ["vp_0", "relax.exp"]
    assert regions(mod)["vp_0"] in (["block"], ["block", "block"])


def test_equal_blocks_side_by_side(fusing: Any) -> None:
    fusing("block", add_sub_mul())
    mod = fused(lambda emit, x, y: emit(op.divide(block(emit, x, y), block(emit, y, x))))
    assert host(mod)[-1] == "relax.divide" and "relax.add" not in host(mod)


@pytest.mark.parametrize("same", [True, False])
def test_one_wildcard_is_one_value(fusing: Any, same: bool) -> None:
    fusing("block", add_sub_mul())

    def net(emit: Any, x: Any, y: Any, z: Any) -> Any:
        return emit(op.multiply(emit(add(x, y)), emit(op.subtract(x, y if same else z))))

    assert bool(regions(fused(net, 3))) is same


def one_node_more(emit: Any, x: Any, y: Any) -> Any:
    a = emit(relu(x))
    return emit(op.multiply(a, emit(exp(emit(add(a, y))))))


def feeds_itself(emit: Any, x: Any) -> Any:
    """FuseOpsByPattern stops with an error here: the second operand depends on the middle of the match."""
    a = emit(op.negative(x))
    return emit(add(emit(relu(a)), emit(gelu(a))))


def feed_each_other(emit: Any, x: Any, y: Any) -> Any:
    """FuseOpsByPattern stops with an error here: each reads an early result of the other."""
    a, b = emit(exp(x)), emit(exp(y))
    return emit(op.multiply(emit(add(a, b)), emit(add(b, a))))


def with_its_parts(emit: Any, x: Any) -> Any:
    parts = emit(op.split(x, 2, axis=0))
    return emit(add(emit(parts[0]), emit(parts[1])))


def einsum(emit: Any, x: Any, y: Any) -> Any:
    product = emit(op.einsum((emit(op.reshape(x, (2, 8))), emit(op.reshape(y, (2, 8)))), "ab,cb->ac"))
    return emit(op.reshape(product, (4,)))


def layers(emit: Any, x: Any, y: Any) -> Any:
    return emit(exp(emit(add(emit(relu(emit(exp(emit(add(x, y)))))), y))))


INNER, SPLIT = is_op("relax.nn.relu")(wildcard()), is_op("relax.split")(wildcard())
BODY, FIRST = is_op("relax.exp")(is_op("relax.add")(wildcard(), wildcard())), is_op("relax.exp")(wildcard())


@pytest.mark.parametrize(
    ("build", "pattern", "options", "taken"),
    [
        (one_node_more, is_op("relax.multiply")(INNER, is_op("relax.exp")(INNER)), {}, []),
        (
            feeds_itself,
            is_op("relax.add")(is_op("relax.nn.relu")(is_op("relax.negative")(wildcard())), wildcard()),
            {},
            [],
        ),
        (
            feed_each_other,
            is_op("relax.add")(FIRST, wildcard()),
            {"annotations": {"first": FIRST}, "outputs": ["first"]},
            ["it"],  # the first of them
        ),
        (with_its_parts, is_op("relax.add")(is_tuple_get_item(SPLIT, 0), is_tuple_get_item(SPLIT, 1)), {}, ["it"]),
        (einsum, is_op("relax.reshape")(is_op("relax.einsum")(wildcard()), wildcard()), {}, ["it"]),
        (layers, is_op("relax.nn.relu")(BODY) | BODY, {}, ["it", "it"]),  # with an end that may be missing
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_what_a_pattern_takes(fusing: Any, build: Any, pattern: Any, options: dict[str, Any], taken: list[str]) -> None:
    fusing("it", pattern, **options)
    mod = fused(build, build.__code__.co_argcount - 1)
    assert regions(mod) == ({"vp_0": taken} if taken else {})
    assert build is not layers or host(mod) == ["vp_0"]


def test_a_pattern_through_a_tuple(fusing: Any) -> None:
    norm = is_op("relax.nn.batch_norm")(wildcard(), wildcard(), wildcard(), wildcard(), wildcard())
    fusing("bn_relu", is_op("relax.nn.relu")(is_tuple_get_item(norm, 0)))

    def net(builder: Any, x: Any, *stats: Any) -> Any:
        return relu(builder.emit(builder.emit(op.nn.batch_norm(x, *stats, axis=1))[0]))

    passes = [byoc.AnnotateExternalCompiler("vp", prepare=False), byoc.PartitionGraph()]
    assert regions(tvm.transform.Sequential(passes)(module(net, (1, 8), *[(8,)] * 4))) == {"vp_0": ["bn_relu"]}


@pytest.mark.parametrize(("wanted", "taken"), [("float32", True), ("float16", False)])
def test_a_check_sees_types(fusing: Any, wanted: str, taken: bool) -> None:
    def check(match: Any) -> Any:
        dtype = str(match["root"].ty.dtype)
        return True if dtype == wanted else byoc.Reject(f"dtype {dtype}")

    fusing("add_relu", ADD_RELU, check=check)
    assert bool(regions(fused(add_relu))) is taken


def test_a_check_sees_the_annotated_parts(fusing: Any) -> None:
    seen = []
    total = is_op("relax.add")(wildcard(), wildcard())

    def check(match: Any) -> Any:
        seen.append((match["sum"].op.name, match["root"].op.name))
        return byoc.Reject("not today")

    fusing("exp_add", is_op("relax.exp")(total), annotations={"sum": total}, check=check)
    assert regions(fused(lambda emit, x: emit(exp(emit(add(x, x)))), 1)) == {}
    assert seen == [("relax.add", "relax.exp")]


def test_a_pattern_does_not_take_a_value_that_is_read_elsewhere(fusing: Any) -> None:
    fusing("exp_add", is_op("relax.exp")(is_op("relax.add")(wildcard(), wildcard())))

    def net(emit: Any, x: Any) -> Any:
        a = emit(add(x, x))
        return emit(exp(emit(add(emit(exp(a)), a))))

    assert host(fused(net, 1)) == ["relax.add", "relax.exp", "vp_0"]


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


def test_numbers_as_arguments_stay_inside(fusing: Any) -> None:
    fusing("clip", is_op("relax.clip")(wildcard(), wildcard(), wildcard()))
    mod = fused(lambda emit, x: (emit(op.clip(x, 0, 4)), emit(op.clip(x, 1, 3))), 1)
    assert regions(mod) and all(len(mod[name].params) == 1 for name in regions(mod))


@pytest.mark.usefixtures("single_calls")
def test_a_users_own_annotation_in_place_of_ours() -> None:
    own = relax.transform.FuseOpsByPattern([("v1.mine", ADD_RELU)], bind_constants=True)
    plain = program(lambda emit, x: emit(relu(add_relu(emit, x, x))))
    mod = tvm.transform.Sequential([own, byoc.PartitionGraph()])(plain)
    assert regions(mod) == {"v1_0": ["mine"]}
    assert host(mod) == ["v1_0", "relax.nn.relu"]


@pytest.mark.usefixtures("single_calls")
def test_a_match_that_would_read_what_is_overwritten_meanwhile_is_not_taken() -> None:
    byoc.register_pattern("v1", "relu_matmul", is_op("relax.matmul")(is_op("relax.nn.relu")(wildcard()), wildcard()))

    def net(emit: Any, x: Any) -> Any:
        a = emit(exp(x))
        b = emit(relu(a))
        return emit(op.matmul(b, emit(op.multiply(a, a))))

    plain = program(net)
    assert regions(partitioned(plain)) == {"v1_0": ["relu_matmul"]}
    mod = partitioned(relax.transform.DataflowUseInplaceCalls()(plain))
    assert regions(mod) == {"v1_0": ["relu"]}
    assert host(mod) == ["relax.exp", "v1_0", "relax.call_tir_inplace", "relax.matmul"]


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
def test_a_pattern_is_tried_where_its_operators_occur(pattern: Any, ops: set[str]) -> None:
    assert ops_of_pattern(pattern) == ops


@pytest.mark.usefixtures("single_calls")
def test_all_single_calls_are_one_candidate() -> None:
    byoc.register_pattern("v1", "add_relu", ADD_RELU)
    try:
        byoc.register_annotate_compiler("v2", ["relax.add", "relax.exp"])
        patterns = sum(len(namespace(name).patterns) for name in ("v1", "v2"))
        assert len(Matcher(["v1", "v2"], {"relax.nn.relu", "relax.add", "relax.tan"}).candidates) == patterns + 2
    finally:
        byoc.unregister_compiler("v2")
