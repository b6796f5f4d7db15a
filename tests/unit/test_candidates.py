"""Candidates first, choice later: every compiler that would take a call is known before one of them gets it."""

from __future__ import annotations

import json

import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.failing_vendor import owners, run, vendors
from tests.unit.test_fallback_codegen import EXPECTED, Chain, X
from tvm_byoc_dnnl.core.compilation import ALONE, read_facts
from tvm_byoc_dnnl.ir.relax_utils import codegen_of


def recorded(mod: tvm.IRModule) -> list[tuple[str, str]]:
    """Operators and who would take them beside the compilers that have got them."""
    return [(fact.op, fact.compiler) for fact in read_facts(mod) if fact.stage == ALONE and not fact.reason]


def regions_of(mod: tvm.IRModule) -> list[str]:
    return sorted(codegen_of(f) for f in mod.functions.values() if codegen_of(f))


def explained(*args, **kwargs) -> dict[str, dict[str, str]]:
    """Operator → compiler → why it does not take the call, out of the JSON."""
    calls = json.loads(byoc.explain(*args, **kwargs).to_json())["calls"]
    return {c["op"]: {each["compiler"]: each["reason"] for each in c["candidates"]} for c in calls}


def test_every_compiler_that_would_take_a_call_is_recorded():
    with vendors("va", ("vb", ["relax.exp", "relax.multiply"])):
        mod = byoc.AnnotateExternalCompiler(["va", "vb"])(Chain)
        assert recorded(mod) == [("relax.exp", "vb"), ("relax.multiply", "vb")]
        assert regions_of(byoc.PartitionGraph()(mod)) == ["va"]


def test_the_choice_decides():
    with vendors("va", ("vb", ["relax.exp"]), "vc"):
        asked = []

        def last(match):
            ops = [c.op.name for c in match.calls.values()]
            asked.append((ops, list(match.candidates)))
            return match.candidates[-1] if ops[0] == "relax.exp" else match.candidates[0]

        mod = byoc.PartitionGraph()(byoc.AnnotateExternalCompiler(["va", "vb", "vc"], choice=last)(Chain))
        assert (["relax.exp"], ["va", "vb", "vc"]) in asked
        assert regions_of(mod) == ["va", "va", "vc"]
        assert_right(run(mod, X), EXPECTED)


def test_one_compiler_asks_nobody_else():
    with vendors("va", "vb") as (va, vb):
        byoc.partition(Chain, "va")
        assert va.attempts and not vb.attempts


DECLINES = {"too little work": byoc.RegionPolicy(min_flops=10**9), "too many": byoc.RegionPolicy(max_regions=0)}


@pytest.mark.parametrize("policy", DECLINES.values(), ids=DECLINES)
def test_what_a_policy_declines_goes_to_the_next_compiler(policy):
    with vendors("va", "vb"):
        byoc.register_namespace("va", policy=policy)
        mod = byoc.partition(Chain, ["va", "vb"])
        assert regions_of(mod) == ["vb"]
        assert_right(run(mod, X), EXPECTED)
        for verdicts in explained(mod, ["va", "vb"]).values():
            assert verdicts["va"].startswith("policy: ") and verdicts["vb"] == ""


def test_a_policy_of_the_user_holds_for_all_compilers():
    with vendors("va", "vb"):
        for policy in DECLINES.values():
            assert regions_of(byoc.partition(Chain, ["va", "vb"], policy=policy)) == []


@I.ir_module
class TwoAndOne:
    """`sin` is nobody's; between its calls stand three of `relu`, and an `exp` before two of `multiply`."""

    @R.function
    def main(x: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        with R.dataflow():
            a = R.nn.relu(R.nn.relu(R.nn.relu(x)))
            b = R.exp(R.sin(a))
            c = R.multiply(R.multiply(b, b), b)
            R.output(c)
        return c


def test_what_a_limit_of_the_user_declines_goes_to_the_next_compiler():
    """The call joins a region of that compiler: the limit holds, and the call stays offloaded."""
    with vendors(("va", ["relax.nn.relu", "relax.exp"]), ("vb", ["relax.exp", "relax.multiply"])):
        assert regions_of(byoc.partition(TwoAndOne, ["va", "vb"])) == ["va", "va", "vb"]
        mod = byoc.partition(TwoAndOne, ["va", "vb"], policy=byoc.RegionPolicy(max_regions=2))
        assert regions_of(mod) == ["va", "vb"]
        assert {op: owner for op, owner in owners(mod).items() if "#" not in op} == {
            "relu": "va_0",
            "sin": "",
            "exp": "vb_0",
            "multiply": "vb_0",
        }
        assert_right(run(mod, X), run(TwoAndOne, X, pipeline="default"))


def test_explain_shows_the_candidates():
    with vendors("va", ("vb", ["relax.exp"])) as (_, vb):
        refusal = "'vb' has no predicate for relax.add"
        assert explained(Chain, ["va", "vb"])["relax.add"] == {"va": "", "vb": refusal}
        assert explained(Chain, ["va", "vb"])["relax.exp"] == {"va": "", "vb": ""}
        assert explained(Chain, ["vb", "va"])["relax.add"] == {"vb": refusal, "va": ""}
        vb.faults["lower"] = lambda ops: byoc.Reject("not today")
        assert explained(Chain, ["va", "vb"])["relax.exp"] == {"va": "", "vb": "not today"}


def test_the_text_and_the_page_show_the_candidates():
    with vendors("va", "vb"):
        report = byoc.explain(Chain, ["va", "vb"])
        assert "or vb" in report.to_text(every_call=True)
        page = report.to_html().replace(" ", "")
        both = ",".join(f'{{"compiler":"{name}","reason":"","seconds":null,"calls":null}}' for name in ("va", "vb"))
        assert f'"candidates":[{both}]' in page


# ---------------------------------------------------------------- a placement by hand
PLACEMENTS = {
    "a variable": ({"b": "vb"}, ["va", "vb", "va"]),
    "an operator": ({"relax.exp": "tvm"}, ["va", "", "va"]),
    "operators of a kind": ({"relax.*": "vb"}, ["vb", "vb", "vb"]),
    "a pattern": ({"va.relax.exp": "vb"}, ["va", "vb", "va"]),
    "an operator of a compiler": ({"va.exp": "vb"}, ["va", "vb", "va"]),
    "an operator of a compiler that does not come first": ({"vb.relax.exp": "tvm"}, ["va", "va", "va"]),
    "a compiler that cannot": ({"a": "vc"}, ["", "va", "va"]),
    "the first entry decides": ({"b": "va", "relax.*": "vb"}, ["vb", "va", "vb"]),
}


@pytest.mark.parametrize(("placement", "expected"), PLACEMENTS.values(), ids=PLACEMENTS)
def test_a_placement_by_hand(placement, expected):
    with vendors("va", "vb", ("vc", ["relax.nn.relu"])):
        mod = byoc.partition(Chain, ["va", "vb", "vc"], place=placement)
        assert [owner.partition("_")[0] for owner in owners(mod).values()] == expected
        assert_right(run(mod, X), EXPECTED)


def test_a_placement_overrules_the_policy_of_its_compiler():
    with vendors("va", "vb"):
        byoc.register_namespace("vb", policy=byoc.RegionPolicy(min_flops=10**9))
        assert regions_of(byoc.partition(Chain, ["va", "vb"], place={"b": "vb"})) == ["va", "va", "vb"]


def test_explain_says_who_was_named_instead():
    with vendors("va", "vb"):
        verdicts = explained(Chain, ["va", "vb"], place={"b": "tvm"})["relax.exp"]
        assert verdicts == dict.fromkeys(["va", "vb"], "placement: placed with 'tvm'")
        byoc.partition(Chain, ["va", "vb"], place={"b": "tvm"}, strict=True)  # a decision is no failure


def test_a_placement_with_an_unknown_compiler_is_refused():
    with vendors("va"), pytest.raises(byoc.InputError, match=r"place\['b'\] is 'nobody'; expected 'tvm' or"):
        byoc.partition(Chain, "va", place={"b": "nobody"})


@pytest.mark.parametrize("name", ["nosuch", "va.nosuch", "relax.nosuch", "B"])
def test_a_placement_of_what_does_not_exist_is_refused(name):
    with (
        vendors("va"),
        pytest.raises(byoc.InputError, match=rf"place\['{name}'\]: the model has no such call; expected"),
    ):
        byoc.partition(Chain, "va", place={name: "tvm"})
    with vendors("va"):  # what another model may have, and what stands for any number of calls
        byoc.partition(Chain, "va", place={"relax.nn.relu": "tvm", "vb*": "tvm", "dnnl.conv2d": "tvm"})
