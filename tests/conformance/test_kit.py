"""The kit finds mistakes: there is one broken backend for each kind of mistake."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import time
from xml.etree import ElementTree

import numpy as np
import pytest
import tvm
from click.testing import CliRunner
from tvm import relax, te
from tvm.relax import op
from tvm.relax.dpl import is_const, is_op, wildcard

import tvm_byoc_dnnl as byoc
from tests.c_kernel import c_kernel, c_module
from tvm_byoc_dnnl.runtime.comparison import TOLERANCES, differences, nudged, sensitivity
from tvm_byoc_dnnl.testing import conformance
from tvm_byoc_dnnl.testing.__main__ import main
from tvm_byoc_dnnl.testing.conformance import run_conformance
from tvm_byoc_dnnl.testing.conformance.calls import call_cases, example
from tvm_byoc_dnnl.testing.conformance.judge import Case, drawn, judge
from tvm_byoc_dnnl.testing.conformance.patterns import pattern_cases
from tvm_byoc_dnnl.vendors import Pattern
from tvm_byoc_dnnl.vendors.namespaces import find_namespace

VENDOR = "kit_vendor"


@pytest.fixture(autouse=True)
def vendor():
    yield
    byoc.unregister_compiler(VENDOR)


def float32_only(attrs, args):
    return str(args[0].ty.dtype) == "float32" or byoc.Reject(f"dtype {args[0].ty.dtype}")


def failures(**options):
    report = run_conformance(VENDOR, **options)
    assert not report.ok
    return {case.name: case.detail for case in report.failures}


def test_the_reason_why_a_pattern_refuses_its_example_is_said():
    def check(group):
        return byoc.Reject(f"a resize in {group.call.attrs.layout}")

    byoc.register_namespace(VENDOR, layout="NHWC")
    byoc.register_quantization(VENDOR, ["resize"], check=check)
    byoc.register_target_hooks(VENDOR)
    reason = "the pattern does not match its own example: a resize in NHWC"
    assert failures(share=0.01)[f"{VENDOR}.quantized_resize: its example"] == reason


def test_a_backend_is_asked_in_the_layout_that_it_wants():
    def predicate(attrs, args):
        return str(attrs.layout) == "NHWC" or byoc.Reject(f"layout {attrs.layout}")

    byoc.register_annotate_compiler(VENDOR, "relax.nn.max_pool2d", predicate)
    byoc.register_namespace(VENDOR, layout="NHWC")
    byoc.register_target_hooks(VENDOR)
    report = run_conformance(VENDOR, share=0.5)
    assert report.ok, report.to_text()
    assert "taken" in {case.status for case in report.cases}


def test_a_right_backend_conforms():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)
    byoc.register_target_hooks(VENDOR)
    report = run_conformance(VENDOR)
    assert report.ok, report.to_text()
    by_name = {case.name: case for case in report.cases}
    assert by_name["relax.abs: the example"].status == "taken"
    assert by_name["relax.abs: dtype float64"].status == "kept"
    assert by_name["relax.abs: dtype float64"].detail == "dtype float64"
    assert by_name["relax.abs: a chain whose middle leaks out"].status == "taken"
    assert any("shared by ccompiler and kit_vendor" in name for name in by_name)


def test_wrong_numbers_are_found_with_place_and_values():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)

    def negate(region, _builder):
        x = te.placeholder(region.params[0].ty.shape.values, "float32", "x")
        return te.create_prim_func([x, te.compute(x.shape, lambda *i: -x[i], "y")], "int64")

    byoc.register_target_hooks(VENDOR, relax_to_tir=byoc.for_each_region(negate))
    detail = failures()["relax.abs: the example"]
    assert "result 0 differs" in detail
    assert "tolerance 2e-05 (float32)" in detail


def test_a_plain_no_is_no_reason():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", lambda attrs, args: str(args[0].ty.dtype) == "float32")
    byoc.register_target_hooks(VENDOR)
    found = failures()
    assert "rejected without a reason" in found["relax.abs: dtype float16"]
    assert "relax.abs: the example" not in found


def test_a_predicate_that_crashes_is_a_failure():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", lambda attrs, args: attrs["none"] or True)
    byoc.register_target_hooks(VENDOR)
    assert "the predicate of 'kit_vendor' for relax.abs failed" in failures()["relax.abs: the example"]


def test_what_a_device_has_no_room_for_is_kept_and_an_error_is_a_failure():
    def fits(region):
        results = len(region.ret_ty.fields) if isinstance(region.ret_ty, relax.TupleType) else 1
        return results == 1 or byoc.Reject(f"{results} results; the device has one")

    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)
    byoc.register_target_hooks(VENDOR)
    byoc.register_namespace(VENDOR, fits=fits)
    report = run_conformance(VENDOR, only=["abs"], share=0.3)
    assert report.ok, report.to_text()
    details = {case.detail for case in report.cases if case.status == "kept"}
    assert "fits: 2 results; the device has one" in details
    byoc.register_namespace(VENDOR, fits=lambda region: region.nothing)
    assert all("fits of 'kit_vendor' failed: AttributeError" in detail for detail in failures(share=0.1).values())


def test_accepting_what_cannot_be_compiled_is_a_failure():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)

    def refuse(region, _builder):
        raise byoc.Reject("no kernel for it")

    byoc.register_target_hooks(VENDOR, relax_to_tir=byoc.for_each_region(refuse))
    detail = failures()["relax.abs: the example"]
    assert "accepted, and still left with TVM" in detail
    assert "no kernel for it" in detail


SHAPE = (3, 5)


def test_a_pattern_is_tested_by_its_example_and_what_can_be_made_of_it():
    byoc.register_target_hooks(VENDOR)
    abs_of_exp = is_op("relax.abs")(is_op("relax.exp")(wildcard()))
    right = byoc.pattern_example(lambda x: op.abs(op.exp(x)), SHAPE)
    byoc.register_pattern(VENDOR, "right", abs_of_exp, example=right)
    byoc.register_pattern(VENDOR, "other", is_op("relax.sign")(wildcard()))
    report = run_conformance(VENDOR)
    assert report.ok, report.to_text()
    found = {c.what: c for c in report.cases}
    assert {c.subject for c in report.cases} == {"kit_vendor.right"}
    taken = (
        "its example",
        "dtype float16",
        "a symbolic leading dimension",
        "a chain of three",
        "a fork: several results",
    )
    assert {found[what].status for what in taken} == {"taken"}
    leak = found["its intermediate result 0 leaks out"]
    assert (leak.status, leak.detail) == ("kept", "the pattern does not match this graph")
    assert report.notes == ["kit_vendor.other was registered without an example, so it is not tested"]
    other = byoc.pattern_example(lambda x: op.sin(op.exp(x)), SHAPE)
    byoc.register_pattern(VENDOR, "right", abs_of_exp, example=other, override=True)
    assert "does not match its own example" in failures()["kit_vendor.right: its example"]


def test_a_pattern_that_is_computed_wrong_is_found():
    def lower(region, _builder):
        x = te.placeholder(region.params[0].ty.shape.values, "float32", "x")
        return te.create_prim_func([x, te.compute(x.shape, lambda *i: te.exp(x[i]) * 1.01, "y")], "int64")

    byoc.register_target_hooks(VENDOR, relax_to_tir=byoc.for_each_region(lower))
    example = byoc.pattern_example(lambda x: op.abs(op.exp(x)), SHAPE)
    byoc.register_pattern(VENDOR, "wrong", is_op("relax.abs")(is_op("relax.exp")(wildcard())), example=example)
    assert "result 0 differs" in failures()["kit_vendor.wrong: its example"]


def test_a_matched_pattern_that_cannot_be_compiled_is_a_failure():
    def refuse(region, _builder):
        raise byoc.Reject("no kernel for it")

    byoc.register_target_hooks(VENDOR, relax_to_tir=byoc.for_each_region(refuse))
    example = byoc.pattern_example(lambda x: op.abs(op.exp(x)), SHAPE)
    byoc.register_pattern(VENDOR, "lost", is_op("relax.abs")(is_op("relax.exp")(wildcard())), example=example)
    detail = failures()["kit_vendor.lost: its example"]
    assert "accepted, and still left with TVM" in detail
    assert "no kernel for it" in detail


def test_constants_of_an_example_follow_the_dtype():
    example = byoc.pattern_example(lambda x: op.add(x, relax.const(0.5, "float32")), SHAPE)
    pattern = Pattern("shift", None, example=example)
    by_name = {case.what: case for case in pattern_cases(VENDOR, pattern)}
    assert 'dtype="float64"' in str(by_name["dtype float64"].main.ret_ty)
    assert by_name["dtype float64"].arrays[0].dtype == "float64"


@pytest.mark.native
@pytest.mark.parametrize(
    ("op", "what"),
    [("relax.nn.batch_norm", "dtype float16"), ("onnx.RotaryEmbedding", "a symbolic leading dimension")],
    ids=["a result that TVM gives in another dtype", "operands with the same leading dimension"],
)
def test_cases_ask_for_what_their_function_says(op, what):
    cases = [case for case in call_cases(op) if case.what == what]
    (result,) = judge(find_namespace("dnnl"), cases, ["dnnl"], TOLERANCES, lambda case: None)
    assert result.status != "failed", result.detail


def test_variations_of_a_pattern():
    def scaled(x, y):
        return op.add(op.multiply(x, relax.const(0.5, "float32")), y)

    pattern = Pattern("scaled", None, example=byoc.pattern_example(scaled, SHAPE, SHAPE))
    by_name = {case.what: case for case in pattern_cases(VENDOR, pattern)}
    assert abs(by_name["large values"].arrays[0]).max() > 1e3 > abs(by_name["its example"].arrays[0]).max()
    assert "R.const(1.0" in str(by_name["another constant 0"].main)  # 1.5 · 0.5 + 0.25
    shapes = [by_name[f"operand 1 of shape {shape}"].arrays[1].shape for shape in ((1, 5), (3, 1), (1, 1))]
    assert shapes == [(1, 5), (3, 1), (1, 1)]
    assert by_name["operand 0 of shape (3, 1)"].main.params[0].ty.shape.values[1] == 1


def test_a_pattern_that_does_not_check_its_constant_is_found():
    def lower(region, _builder):
        x = te.placeholder(region.params[0].ty.shape.values, "float32", "x")
        return te.create_prim_func([x, te.compute(x.shape, lambda *i: x[i] * te.const(0.5, "float32"), "y")], "int64")

    byoc.register_target_hooks(VENDOR, relax_to_tir=byoc.for_each_region(lower))
    example = byoc.pattern_example(lambda x: op.multiply(x, relax.const(0.5, "float32")), SHAPE)
    byoc.register_pattern(VENDOR, "half", is_op("relax.multiply")(wildcard(), is_const()), example=example)
    found = failures()
    assert "result 0 differs" in found["kit_vendor.half: another constant 0"]
    assert "kit_vendor.half: its example" not in found


def python_vendor(run):
    """A backend that takes `abs` of float32, and runs it by a Python function of the argument and the results."""

    def codegen(functions, options, names):
        return [byoc.blob_module(VENDOR, str(f.attrs["global_symbol"]), b"-", "") for f in functions]

    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)
    byoc.register_codegen(VENDOR, codegen)
    byoc.register_blob_runner(VENDOR, lambda compatibility: True, lambda data: run)


@pytest.fixture
def few_cases(monkeypatch):
    """Five cases of an operator instead of some twenty, and no structures around them."""
    wanted = {"the example", "shape (7,)", "shape (13, 17)", "shape (2, 3, 5, 7)", "shape (1, 2, 3, 1, 2, 3)"}
    monkeypatch.setattr(conformance, "call_cases", lambda op: [c for c in call_cases(op) if c.what in wanted])
    monkeypatch.setattr(conformance, "structural_cases", lambda ns, base: [])


@pytest.mark.native
def test_a_kernel_that_works_in_place_is_found_at_any_share():
    body = "for (int k = 1; k < n; ++k) a[k][i] = fabsf(a[0][i]); a[0][i] = fabsf(a[0][i]);"

    def codegen(functions, options, names):
        symbols = [str(f.attrs["global_symbol"]) for f in functions]
        return [c_module(symbol, c_kernel(symbol, body)) for symbol in symbols]

    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)
    byoc.register_codegen(VENDOR, codegen)
    assert "input 0 is overwritten" in failures(share=0.01)["relax.abs: the example"]


@pytest.mark.native
def test_a_crash_and_a_hang_cost_their_cases_and_no_others(few_cases):
    def run(x, *results):
        if tuple(x.shape) == (7,):
            os.kill(os.getpid(), signal.SIGSEGV)
        while tuple(x.shape) == (13, 17):
            time.sleep(1)
        for result in results:
            result.copyfrom(np.abs(x.numpy()))

    python_vendor(run)
    found = failures(time_limit=4)
    assert found.pop("relax.abs: shape (7,)") == "crashes: the process was ended by SIGSEGV"
    assert found.pop("relax.abs: shape (13, 17)").startswith("hangs: nothing came for 4")
    assert not found


@pytest.mark.parametrize("stage", ["predicate", "codegen", "example"])
def test_a_crash_while_building_names_its_case(stage, few_cases):
    def die():
        os.abort()

    def predicate(attrs, args):
        if len(args[0].ty.shape) == 6:
            return die() if stage == "predicate" else byoc.Reject("six dims")
        return float32_only(attrs, args)

    def lower(region, builder):
        if stage == "codegen" and len(region.params[0].ty.shape) == 4:
            die()
        graph = byoc.translate_to_te((builder.get(), region), "c")
        return graph.call(builder, region.params, byoc.schedule_te(graph, "c", lambda sch, graph: None))

    byoc.register_annotate_compiler(VENDOR, "relax.abs", predicate)
    byoc.register_target_hooks(VENDOR, relax_to_tir=byoc.for_each_region(lower))
    if stage == "example":
        byoc.register_pattern(VENDOR, "p", is_op("relax.exp")(wildcard()), example=die)
    report = run_conformance(VENDOR)
    name = {
        "predicate": "relax.abs: shape (1, 2, 3, 1, 2, 3)",
        "codegen": "relax.abs: shape (2, 3, 5, 7)",
        "example": f"{VENDOR}.p: its cases",
    }[stage]
    assert {c.name: c.detail for c in report.failures} == {name: "crashes: the process was ended by SIGABRT"}
    assert any(case.status == "taken" for case in report.cases)


def test_nothing_taken_is_no_conformance():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", lambda attrs, args: byoc.Reject("never"))
    report = run_conformance(VENDOR)
    assert not report.failures
    assert not report.ok


def test_command_line_gives_data_and_status(tmp_path):
    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)
    byoc.register_target_hooks(VENDOR)
    good = CliRunner().invoke(main, [VENDOR, "--json", "--share", "0.2", "--badge", str(tmp_path / "badge.svg")])
    assert good.exit_code == 0, good.output
    data = json.loads(good.stdout)
    assert data["ok"]
    assert (data["api"], data["share"], data["counts"]["failed"]) == (1, 0.2, 0)
    assert data["versions"] == {"tvm-byoc-dnnl": byoc.__version__, "apache-tvm": tvm.__version__}
    badge = ElementTree.parse(tmp_path / "badge.svg").getroot()
    assert badge.get("aria-label") == f"tvm-byoc conformance: {data['counts']['taken']} calls right of a share of 0.2"
    byoc.register_annotate_compiler(VENDOR, "relax.exp", lambda attrs, args: False)
    bad = CliRunner().invoke(main, [VENDOR, "--only", "exp"])
    assert bad.exit_code == 1
    assert "kit_vendor does NOT conform" in bad.stdout
    unknown = CliRunner().invoke(main, ["nobody"])
    assert unknown.exit_code == 2
    assert "registered: " in unknown.output


def test_cases_cover_what_backends_get_wrong():
    found = {case.what for case in call_cases("relax.add")}
    assert {"dtype float16", "dtype bool", "shapes (2, 1, 5) and (3, 1)", "a symbolic leading dimension"} <= found
    assert {"a leading dimension of 0", "one operand, twice"} <= found
    assert {"axis 0", "axis -1", "shape (1,)"} <= {case.what for case in call_cases("relax.nn.softmax")}


def test_every_operator_of_our_backends_has_an_example():
    ops = {op for name in ("ccompiler", "dnnl") for op in byoc.supported_ops(name)}
    assert {op for op in ops if example(op) is None} == set()


def test_a_share_keeps_the_first_case_of_each_operator():
    cases = [case for name in ("relax.abs", "relax.add") for case in call_cases(name)]
    some, again, other = (drawn(cases, 0.1, random.Random(seed)) for seed in (0, 0, 1))
    assert 4 <= len(some) < len(cases) / 5
    assert {"relax.abs: the example", "relax.add: the example"} <= {case.name for case in some}
    assert some == again != other
    assert some == sorted(some, key=cases.index)
    with pytest.raises(ValueError, match=r"share is 0; expected more than 0 and at most 1"):
        run_conformance("ccompiler", share=0)


def test_a_share_on_the_command_line():
    byoc.register_annotate_compiler(VENDOR, ["relax.abs"])
    byoc.register_target_hooks(VENDOR)
    result = CliRunner().invoke(main, [VENDOR, "--share", "0.05", "--json"])
    assert result.exit_code == 0, result.output
    assert 1 < len(json.loads(result.stdout)["cases"]) < 20
    assert CliRunner().invoke(main, [VENDOR, "--share", "0"]).exit_code == 2


# ---------------------------------------------------------------- when results are equal
ONE = np.ones(3, "float32")


@pytest.mark.parametrize(
    ("got", "want", "says"),
    [
        (ONE, ONE + np.float32(1e-6), ""),
        (ONE, ONE + np.float32(1e-4), "result 0 differs: 1.0 instead of 1.0001"),
        (np.array([1, np.nan, 3], "float32"), np.array([1, np.nan, 3], "float32"), ""),
        (np.array([1, np.nan, 3], "float32"), np.array([1, 2, 3], "float32"), "nan instead of 2.0 at (1,)"),
        (np.array([1, 2, 3], "float32"), np.array([1, np.inf, 3], "float32"), "2.0 instead of inf at (1,)"),
        (np.array([np.inf, -np.inf]), np.array([np.inf, -np.inf]), ""),
        (np.array([np.inf]), np.array([-np.inf]), "inf instead of -inf"),
        (np.array([3]), np.array([4]), "3 instead of 4"),
        (ONE, ONE.reshape(3, 1), "result 0 is float32[3] instead of float32[3, 1]"),
    ],
)
def test_what_is_equal(got, want, says):
    found = differences([got], [want])
    assert says in found
    assert bool(says) == bool(found)


def test_only_an_ill_conditioned_chain_may_be_further_off():
    def chain(x):
        return [np.tan(np.tan(np.tan(x)))]

    x = np.linspace(0.5, 1.5, 64, dtype="float32")
    want = chain(x)
    slack = sensitivity(want, [chain(*inputs) for inputs in nudged([x])])
    got = [np.tan(np.tan(np.tan(x.astype("float64")))).astype("float32")]
    assert differences(got, want) != ""
    assert differences(got, want, slack=slack) == ""
    got[0][3] += 1e-3 * np.abs(want[0]).max()  # far from the poles
    assert "at (3,)" in differences(got, want, slack=slack)


def test_whole_numbers_are_not_nudged():
    assert nudged([np.arange(3)]) == []
    up, down = nudged([ONE, np.arange(3)])
    assert (up[0] > 1).all()
    assert (down[0] < 1).all()
    np.testing.assert_array_equal(up[1], np.arange(3))


def test_a_call_that_relax_refuses_is_no_case_and_prints_nothing(capfd):
    case = Case("relax.add", "shapes that do not fit", lambda b, *o: b.emit(op.add(*o)), (ONE, np.ones(4, "float32")))
    assert case.main is None
    del case
    gc.collect()
    assert "Warning" not in capfd.readouterr().err
