"""Policies: regions are worth a call by operations, by traffic, by neighbours, or because the user says so."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.failing_vendor import owners, reasons, run, vendors
from tvm_byoc_dnnl.core.compilation import read_log
from tvm_byoc_dnnl.graph.cost import RegionPolicy, Work, is_cheap

T = R.Tensor((4, 4), "float32")
X = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")


@I.ir_module
class PingPong:
    """`sin` and `cos` are nobody's but TVM's."""

    @R.function
    def main(x: T) -> T:
        with R.dataflow():
            a = R.sin(x)
            b = R.add(a, x)
            c = R.cos(b)
            d = R.nn.relu(c)
            e = R.exp(d)
            f = R.sin(e)
            g = R.multiply(f, f)
            R.output(g)
        return g


def split(mod):
    """Operators with an owner, and those without."""
    found = owners(mod)
    return [op for op, owner in found.items() if owner], [op for op, owner in found.items() if not owner]


EVERYTHING = ["add", "relu", "exp", "multiply"]
POLICIES = {
    "none": (None, EVERYTHING),
    "the plain one": (RegionPolicy(), EVERYTHING),
    "no cheap ones beside TVM": (RegionPolicy(cheap_beside_host=False), ["relu", "exp"]),
    "enough operations": (RegionPolicy(min_flops=32), ["relu", "exp"]),
    "more than there are": (RegionPolicy(min_flops=33), []),
    # add reads two tensors and multiply reads one twice; relu and exp are two operations on one tensor in, one out
    "enough operations per byte": (RegionPolicy(min_intensity=0.2), ["relu", "exp"]),
    "exclude an operator": (RegionPolicy(exclude=["relax.nn.relu"]), ["add", "exp", "multiply"]),
    "exclude a kind of operators": (RegionPolicy(exclude=["relax.nn.*"]), ["add", "exp", "multiply"]),
    "exclude a call": (RegionPolicy(exclude=["e"]), ["add", "relu", "multiply"]),
    "exclude all but one": (RegionPolicy(exclude=["relax.[!a]*"]), ["add"]),
    "exclude everything": (RegionPolicy(exclude=["*"]), []),
    "force an operator": (RegionPolicy(min_flops=32, force=["relax.add"]), ["add", "relu", "exp"]),
    "force a call": (RegionPolicy(cheap_beside_host=False, force=["g"]), ["relu", "exp", "multiply"]),
    "one region": (RegionPolicy(max_regions=1), ["relu", "exp"]),
    "no region": (RegionPolicy(max_regions=0), []),
    "as many as there are": (RegionPolicy(max_regions=3), EVERYTHING),
    "exclude wins": (RegionPolicy(exclude=["relax.add"], force=["relax.add"]), ["relu", "exp", "multiply"]),
}


@pytest.fixture(scope="module")
def wanted():
    return run(PingPong, X, pipeline="default")


@pytest.mark.parametrize(("policy", "offloaded"), POLICIES.values(), ids=POLICIES)
def test_what_is_offloaded(policy, offloaded, wanted):
    with vendors("va"):
        mod = byoc.partition(PingPong, "va", policy=policy)
        assert split(mod)[0] == offloaded
        assert relax.analysis.well_formed(mod) is not False
        assert_right(run(mod, X), wanted)


REASONS = {
    "cheap": (
        RegionPolicy(cheap_beside_host=False),
        "b relax.add va policy: not worth a region: relax.add: nothing but cheap calls beside calls that stay with "
        "TVM, which fuses them",
    ),
    "small": (
        RegionPolicy(min_flops=17),
        "b relax.add va policy: not worth a region: relax.add: 16 operations, fewer than min_flops=17",
    ),
    "thin": (
        RegionPolicy(min_intensity=0.2),
        "b relax.add va policy: not worth a region: relax.add: 16 operations on 192 bytes that cross the region's "
        "border, fewer than min_intensity=0.2 per byte",
    ),
    "excluded": (RegionPolicy(exclude=["relax.a*"]), "b relax.add va policy: excluded by 'relax.a*'"),
    "too many": (
        RegionPolicy(max_regions=1),
        "b relax.add va policy: the module may have 1 region(s), and others have more operations",
    ),
}


@pytest.mark.parametrize(("policy", "reason"), REASONS.values(), ids=REASONS)
def test_the_reason_is_kept_and_is_no_failure(policy, reason):
    with vendors("va"):
        mod = byoc.partition(PingPong, "va", policy=policy, strict=True)
        assert reasons(mod)[0] == reason


class Broken(RegionPolicy):
    def why_not(self, work: Work) -> str:
        raise AttributeError("no attribute 'shape'")


def test_a_policy_that_crashes_costs_its_regions_and_not_the_build():
    with vendors("va"):
        mod = byoc.partition(PingPong, "va", policy=Broken())
        assert split(mod)[0] == []
        assert all("policy crash: Broken.why_not: AttributeError: no attribute 'shape'" in r for r in reasons(mod))
        with pytest.raises(byoc.ByocError, match=r"Broken\.why_not"):
            byoc.partition(PingPong, "va", policy=Broken(), strict=True)


def test_the_namespaces_own_policy_is_the_default():
    with vendors("va"):
        byoc.register_namespace("va", policy=RegionPolicy(cheap_beside_host=False))
        assert split(byoc.partition(PingPong, "va"))[0] == ["relu", "exp"]
        assert split(byoc.partition(PingPong, "va", policy=RegionPolicy()))[0] == EVERYTHING


def test_a_policy_on_top_leaves_the_namespaces_own_in_force():
    with vendors("va"):
        byoc.register_namespace("va", policy=RegionPolicy(cheap_beside_host=False))
        on_top = RegionPolicy(exclude=["relax.nn.relu"], on_top=True)
        assert split(byoc.partition(PingPong, "va", policy=on_top))[0] == ["exp"]
        assert split(byoc.partition(PingPong, "va", policy=replace(on_top, on_top=False)))[0] == [
            "add",
            "exp",
            "multiply",
        ]


def test_a_namespaces_own_limit_holds():
    with vendors("va"):
        byoc.register_namespace("va", policy=RegionPolicy(max_regions=1))
        mod = byoc.partition(PingPong, "va")
        assert split(mod)[0] == ["relu", "exp"]
        assert reasons(mod)[0] == "b relax.add va policy: va may have 1 region(s), and others have more operations"


def test_cheap_calls_with_no_neighbour_in_tvm_are_offloaded():
    """There is nothing that TVM could fuse them with."""

    @I.ir_module
    class M:
        @R.function
        def main(x: T, y: T) -> T:
            with R.dataflow():
                a = R.add(x, y)
                R.output(a)
            return a

    with vendors("va"):
        assert split(byoc.partition(M, "va", policy=RegionPolicy(cheap_beside_host=False))) == (["add"], [])


def test_what_a_policy_leaves_is_judged_with_its_new_neighbours():
    """Without exp the relu in front of it stands between two calls of TVM."""
    with vendors("va"):
        policy = RegionPolicy(cheap_beside_host=False, exclude=["relax.exp"])
        assert split(byoc.partition(PingPong, "va", policy=policy))[0] == []


class Apart(RegionPolicy):
    def why_not(self, work: Work) -> str:
        return "beside a region of vb" if "vb" in work.neighbours else ""


def test_a_policy_sees_the_compilers_beside_a_region():
    """A vendor with the first say on every relu leaves those to its neighbour that would cut its regions."""

    @I.ir_module
    class M:
        @R.function
        def main(x: T) -> T:
            with R.dataflow():
                a = R.exp(x)
                b = R.nn.relu(a)
                c = R.exp(b)
                d = R.sin(c)
                e = R.nn.relu(d)
                R.output(e)
            return e

    with vendors(("va", ["relax.nn.relu"]), "vb"):
        assert [o.partition("_")[0] for o in owners(byoc.partition(M, ["va", "vb"])).values()] == [
            *("vb", "va", "vb", "", "va")
        ]
        byoc.register_namespace("va", policy=Apart())
        mod = byoc.partition(M, ["va", "vb"])
        assert [o.partition("_")[0] for o in owners(mod).values()] == ["vb", "vb", "vb", "", "va"]
        assert reasons(mod) == ["b relax.nn.relu va policy: not worth a region: beside a region of vb"]
        assert_right(run(mod, X), run(M, X, pipeline="default"))


def test_an_excluded_pattern_falls_apart_into_its_calls():
    with vendors("va"):
        byoc.register_pattern("va", "exp_relu", is_op("relax.exp")(is_op("relax.nn.relu")(wildcard())))
        composites = byoc.AnnotateExternalCompiler("va")(PingPong)
        assert any("exp_relu" in str(f.attrs) for f in composites.functions.values())
        mod = byoc.partition(PingPong, "va", policy=RegionPolicy(exclude=["va.exp_relu"]))
        assert [e.stage for e in read_log(mod)] == ["policy", "policy"]
        assert split(mod)[0] == EVERYTHING


def test_an_excluded_call_inside_a_pattern_leaves_the_others():
    with vendors("va"):
        byoc.register_pattern("va", "exp_relu", is_op("relax.exp")(is_op("relax.nn.relu")(wildcard())))
        mod = byoc.partition(PingPong, "va", policy=RegionPolicy(exclude=["relax.exp"]))
        assert split(mod)[0] == ["add", "relu", "multiply"]


def test_exclusion_holds_for_every_compiler():
    with vendors("va", "vb"):
        mod = byoc.partition(PingPong, ["va", "vb"], policy=RegionPolicy(exclude=["relax.exp"]))
        assert owners(mod)["exp"] == ""
        assert [r.split(":")[0] for r in reasons(mod)] == ["e relax.exp va policy", "e relax.exp vb policy"]


def test_a_region_that_is_not_tried_costs_no_attempt():
    with vendors("va") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(PingPong)
        va.attempts.clear()
        byoc.PartitionGraph(policy=RegionPolicy(cheap_beside_host=False))(annotated)
        assert va.attempts == [["relax.nn.relu", "relax.exp"]]


@pytest.mark.parametrize("name", ["exclude", "force"])
def test_a_name_alone_is_refused(name):
    with pytest.raises(TypeError, match=rf"{name} is 'relax\.add'; expected a sequence"):
        RegionPolicy(**{name: "relax.add"})


def test_a_negative_limit_is_refused():
    with pytest.raises(ValueError, match="max_regions is -1"):
        RegionPolicy(max_regions=-1)


def test_a_region_without_border_is_worth_it():
    assert RegionPolicy(min_intensity=1.0).why_not(Work()) == ""


CHEAP = {"add": relax.op.add, "relu": relax.op.nn.relu, "exp": relax.op.exp, "permute": relax.op.permute_dims}


@pytest.mark.parametrize(("op", "cheap"), [("add", True), ("relu", True), ("exp", False), ("permute", False)])
def test_what_is_cheap(op, cheap):
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    assert is_cheap(CHEAP[op](x, x) if op == "add" else CHEAP[op](x)) is cheap


# ---------------------------------------------------------------- the default of the backend in the package's name
def test_dnnl_takes_no_lone_addition_between_calls_of_tvm():
    @I.ir_module
    class M:
        @R.function
        def main(x: R.Tensor((1, 8, 16, 16), "float32"), w: R.Tensor((8, 8, 3, 3), "float32")):
            with R.dataflow():
                a = R.sin(R.nn.conv2d(x, w, padding=1))
                b = R.add(a, x)
                c = R.sin(b)
                d = R.nn.relu(R.nn.conv2d(c, w, padding=1))
                e = R.nn.softmax(R.cos(d))
                f = R.sin(R.reshape(R.sin(e), (1, 8, 256)))
                R.output(f)
            return f

    assert split(byoc.partition(M)) == (
        ["conv2d", "conv2d#2", "relu", "softmax"],
        ["sin", "add", "sin#2", "cos", "sin#3", "reshape", "sin#4"],
    )


# ---------------------------------------------------------------- names as arguments
@pytest.mark.parametrize(
    ("arguments", "as_policy"),
    [
        ({"exclude": ["relax.nn.relu"]}, RegionPolicy(exclude=["relax.nn.relu"], on_top=True)),
        ({"force": ["g"]}, RegionPolicy(force=["g"], on_top=True)),
        (
            {"policy": RegionPolicy(min_flops=33, exclude=["e"]), "exclude": ["b"], "force": ["relax.*"]},
            RegionPolicy(min_flops=33, exclude=["e", "b"], force=["relax.*"]),
        ),
    ],
)
def test_calls_are_excluded_and_forced_by_name(arguments, as_policy):
    with vendors("a"):
        wanted = byoc.explain(PingPong, "a", policy=as_policy).to_dict()
        assert byoc.explain(PingPong, "a", **arguments).to_dict() == wanted
        assert owners(byoc.partition(PingPong, "a", **arguments)) == owners(
            byoc.partition(PingPong, "a", policy=as_policy)
        )


def test_the_former_name_of_place_warns():
    placed = {"relax.add": "b", "relax.exp": "b"}
    with vendors("a", "b"), pytest.warns(DeprecationWarning, match="placement= is called place= now"):
        made = owners(byoc.partition(PingPong, ["a", "b"], placement=placed))
    with pytest.warns(DeprecationWarning, match="place"), pytest.raises(byoc.InputError, match="give place alone"):
        byoc.partition(PingPong, "a", place=placed, placement=placed)
    assert [made[op][:1] for op in ("add", "relu", "exp")] == ["b", "a", "b"]


@pytest.mark.parametrize("function", [byoc.partition, byoc.compile, byoc.explain, byoc.verify])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exclude": ["relax.nn.rlu"]}, "'relax.nn.rlu' in exclude: .*did you mean 'relax.nn.relu'"),
        ({"force": ["relax.ad"]}, "'relax.ad' in force: .*did you mean 'relax.add'"),
        ({"exclude": "relax.add"}, "exclude is 'relax.add'; expected a sequence of names"),
        ({"place": {"relax.ad": "tvm"}}, "did you mean 'relax.add'"),
        ({"place": {"relax.add": "dnn"}}, "did you mean 'dnnl'"),
        ({"place": "relax.add"}, "place is 'relax.add'; expected a mapping"),
        ({"options": {"dnnl": {"int8": "exat"}}}, "option 'int8' of 'dnnl' is 'exat'; .*did you mean 'exact'"),
        ({"options": {"dnnl": {"precison": "auto"}}}, "has no option 'precison'; .*did you mean 'precision'"),
        ({"options": {"dnnl": {"winograd_tile": 3}}}, "'winograd_tile' of 'dnnl' is 3; expected one of 4, 2"),
    ],
)
def test_a_name_that_is_none_is_an_error(function, arguments, message):
    with pytest.raises(byoc.InputError, match=message):
        function(PingPong, compiler="dnnl", **arguments)
