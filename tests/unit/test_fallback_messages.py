"""Messages about failures: strict builds, the log, warnings, and the exception of the vendor."""

import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.unit.failing_vendor import owners, vendors
from tests.unit.test_fallback import CASES, Chain
from tvm_byoc_dnnl.core.compilation import read_log
from tvm_byoc_dnnl.core.errors import NativeLibraryError, UnsupportedError
from tvm_byoc_dnnl.core.verdict import describe


# ---------------------------------------------------------------- strict
@pytest.mark.parametrize(("kind", "stage"), CASES, ids=lambda v: v)
def test_strict_raises_the_same_reasons(kind, stage):
    with vendors("va", portable=kind == "portable") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.fail(stage, "relax.exp")
        (entry,) = read_log(byoc.PartitionGraph()(annotated))
        with pytest.raises(UnsupportedError, match=r"1 call\(s\) .*strict=True") as caught:
            byoc.PartitionGraph(strict=True)(annotated)
        assert str(entry) in str(caught.value)


def test_strict_raises_for_what_crashed_in_annotation_and_not_for_refusals():
    with vendors("va"):
        byoc.register_annotate_compiler("va", "relax.exp", lambda attrs, args: byoc.Reject("not today"), override=True)
        assert owners(byoc.partition(Chain, "va", strict=True))["exp"] == ""
        byoc.register_annotate_compiler("va", "relax.exp", lambda attrs, args: 1 / 0, override=True)
        with pytest.raises(UnsupportedError, match="ZeroDivisionError"):
            byoc.partition(Chain, "va", strict=True)


# ---------------------------------------------------------------- whose fault it is not
def test_a_missing_library_is_an_error_and_no_reason_to_fall_back():
    with vendors("va", portable=False) as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.fail("codegen", "relax.exp", error=NativeLibraryError("libva.so is not there"))
        with pytest.raises(NativeLibraryError, match=r"libva\.so"):
            byoc.PartitionGraph()(annotated)


def test_the_users_module_is_left_alone():
    with vendors("va") as va:
        before = Chain.script()
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        as_annotated = annotated.script()
        va.fail("plan", "relax.exp")
        byoc.PartitionGraph()(annotated)
        assert Chain.script() == before
        assert annotated.script() == as_annotated


# ---------------------------------------------------------------- the log
def test_the_log_survives_other_passes_and_grows():
    with vendors("va", "vb") as (va, vb):
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.fail("plan", "relax.exp")
        mod = byoc.PartitionGraph()(annotated)
        passes = [relax.transform.CanonicalizeBindings(), relax.transform.LegalizeOps(), relax.transform.FuseOps()]
        assert read_log(tvm.transform.Sequential(passes)(mod)) == read_log(mod) != []
        annotated = byoc.AnnotateExternalCompiler("vb")(mod)
        vb.fail("plan", "relax.exp")
        mod = byoc.PartitionGraph()(annotated)
        assert [(e.compiler, e.op) for e in read_log(mod)] == [("va", "relax.exp"), ("vb", "relax.exp")]
        assert read_log(byoc.PartitionGraph()(mod)) == read_log(mod)


def test_failures_are_warned_about(caplog):
    with vendors("va") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.fail("plan", "relax.exp")
        with caplog.at_level("WARNING", logger="tvm_byoc_dnnl"):
            byoc.PartitionGraph()(annotated)
        assert "relax.exp (c in main): va: plan: VendorError: the probe of 'va' raised RuntimeError" in caplog.text


# ---------------------------------------------------------------- what a vendor's exception says
def chain_of(error):
    """An exception and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


@pytest.mark.parametrize("stage", ["lower", "plan"])
def test_the_pass_alone_raises_from_the_vendors_own_exception_too(stage):
    own = ZeroDivisionError("of the vendor")
    with vendors("va") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.fail(stage, "relax.exp", error=own)
        with pytest.raises(UnsupportedError) as raised:
            byoc.PartitionGraph(strict=True)(annotated)
    assert own in chain_of(raised.value)


@pytest.mark.parametrize("form", ["one by one", "in a sequence"])
def test_the_passes_raise_from_what_crashed_in_annotation(form):
    own = ZeroDivisionError("of the vendor")

    def crashing(attrs, args):
        raise own

    with vendors("va"):
        byoc.register_annotate_compiler("va", "relax.exp", crashing)
        annotate, partition = byoc.AnnotateExternalCompiler("va"), byoc.PartitionGraph(strict=True)
        sequence = tvm.transform.Sequential([annotate, partition])
        build = sequence if form == "in a sequence" else lambda mod: partition(annotate(mod))
        with pytest.raises(UnsupportedError) as raised:
            build(Chain)
    assert any(error is own for error in chain_of(raised.value))


@pytest.mark.parametrize("stage", ["predicate", "lower", "plan", "codegen"])
def test_strict_raises_from_the_vendors_own_exception(stage):
    own = ZeroDivisionError("of the vendor")
    with vendors("va") as va:
        if stage == "predicate":

            def crashing(attrs, args):
                raise own

            byoc.register_annotate_compiler("va", "relax.exp", crashing)
        else:
            va.fail(stage, "relax.exp", error=own)
        with pytest.raises(UnsupportedError) as raised:
            byoc.compile(Chain, "va", strict=True)
    assert any(error is own for error in chain_of(raised.value))


def test_the_traceback_is_logged_for_debugging(caplog):
    with vendors("va") as va:
        va.fail("plan", "relax.exp")
        with caplog.at_level("DEBUG", logger="tvm_byoc_dnnl"):
            byoc.partition(Chain, "va")
    assert "Traceback" in caplog.text
    assert "failing_vendor.py" in caplog.text


def test_a_crashing_predicate_is_warned_about_once(caplog):
    def crashing(attrs, args):
        raise ZeroDivisionError("of the vendor")

    byoc.register_annotate_compiler("vx", "relax.add", crashing)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(5):
                value = builder.emit(relax.op.add(value, x))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    try:
        with caplog.at_level("WARNING", logger="tvm_byoc_dnnl"):
            byoc.partition(builder.get(), "vx")
    finally:
        byoc.unregister_compiler("vx")
    (record,) = caplog.records
    assert "relax.add (5 calls: lv, lv1, lv2, … in main): vx: annotate: " in record.getMessage()
    assert "ZeroDivisionError: of the vendor" in record.getMessage()


def test_a_long_message_shows_its_beginning_and_its_end():
    text = describe(RuntimeError("head " + "x" * 5000 + " tail"))
    assert text.startswith("RuntimeError: head ") and text.endswith(" tail")
    assert len(describe(RuntimeError("x" * 5000))) < 1000
