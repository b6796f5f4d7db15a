"""The kit finds what it is there to find: one broken backend per kind of mistake."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tvm import relax, te
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.__main__ import main
from tvm_byoc_dnnl.testing.conformance import run_conformance
from tvm_byoc_dnnl.testing.conformance.calls import call_cases, example

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
    assert "tolerance 1e-05 (float32)" in detail


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


def test_accepting_what_cannot_be_compiled_is_a_failure():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)

    def refuse(region, _builder):
        raise byoc.Reject("no kernel for it")

    byoc.register_target_hooks(VENDOR, relax_to_tir=byoc.for_each_region(refuse))
    detail = failures()["relax.abs: the example"]
    assert "accepted, and still left with TVM" in detail
    assert "no kernel for it" in detail


def exp_example(op):
    x = relax.Var("x", relax.TensorType((3, 5), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op(relax.op.exp(x)))
        builder.emit_func_output(result)
    return builder.get()


def test_a_pattern_is_tested_by_its_example():
    byoc.register_target_hooks(VENDOR)
    pattern = is_op("relax.abs")(is_op("relax.exp")(wildcard()))
    byoc.register_pattern(VENDOR, "right", pattern, example=lambda: exp_example(relax.op.abs))
    byoc.register_pattern(VENDOR, "other", is_op("relax.sign")(wildcard()))
    report = run_conformance(VENDOR)
    assert report.ok, report.to_text()
    assert [(c.subject, c.status) for c in report.cases] == [("kit_vendor.right", "taken")]
    assert report.notes == ["kit_vendor.other was registered without an example, so it is not tested"]
    byoc.register_pattern(VENDOR, "right", pattern, example=lambda: exp_example(relax.op.sin), override=True)
    assert "does not match its own example" in failures()["kit_vendor.right: its example"]


def test_nothing_taken_is_no_conformance():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", lambda attrs, args: byoc.Reject("never"))
    report = run_conformance(VENDOR)
    assert not report.failures
    assert not report.ok


def test_command_line_gives_data_and_status():
    byoc.register_annotate_compiler(VENDOR, "relax.abs", float32_only)
    byoc.register_target_hooks(VENDOR)
    good = CliRunner().invoke(main, [VENDOR, "--json", "-"])
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout)["ok"]
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
