"""Registration: three forms, duplicates refused, unknown names explained."""

import pytest
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl import registry


@pytest.fixture
def vendor():
    name = "registry_test_vendor"
    yield name
    byoc.unregister_compiler(name)


def _args(*shapes, dtype="float32"):
    return [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]


def test_decorator_and_lookup(vendor):
    @byoc.register_annotate_compiler(vendor, "relax.nn.relu")
    def relu(attrs, args):
        return args[0].ty.ndim == 4 or byoc.Reject(f"rank {args[0].ty.ndim}")

    predicate = byoc.get_annotate_compiler(vendor, "relax.nn.relu")
    assert predicate is relu
    assert predicate(None, _args((1, 2, 3, 4))) is True
    assert predicate(None, _args((2, 3))).reason == "rank 2"


def test_plain_call_and_whitelist(vendor):
    byoc.register_annotate_compiler(vendor, "relax.add", lambda attrs, args: False)
    byoc.register_annotate_compiler(vendor, ["relax.multiply", "relax.subtract"])
    assert byoc.supported_ops(vendor) == ["relax.add", "relax.multiply", "relax.subtract"]
    assert byoc.get_annotate_compiler(vendor, "relax.multiply")(None, []) is True
    assert vendor in byoc.compilers()


def test_whitelist_as_a_generator_is_read_once(vendor):
    byoc.register_annotate_compiler(vendor, (f"relax.{n}" for n in ("add", "divide")))
    assert byoc.supported_ops(vendor) == ["relax.add", "relax.divide"]


def test_unknown_compiler_or_op_rejects_with_a_reason(vendor):
    byoc.register_annotate_compiler(vendor, ["relax.add"])
    assert "no compiler 'nobody' is registered" in byoc.get_annotate_compiler("nobody", "relax.add")(None, []).reason
    assert "no predicate for relax.tan" in byoc.get_annotate_compiler(vendor, "relax.tan")(None, []).reason


def test_duplicates_are_refused_and_both_claimants_named(vendor):
    def first(attrs, args):
        return True

    def second(attrs, args):
        return True

    byoc.register_annotate_compiler(vendor, "relax.add", first)
    byoc.register_annotate_compiler(vendor, "relax.add", first)  # the same again is harmless
    with pytest.raises(ValueError, match=r"relax\.add.*first.*second"):
        byoc.register_annotate_compiler(vendor, "relax.add", second)
    byoc.register_annotate_compiler(vendor, "relax.add", second, override=True)
    assert byoc.get_annotate_compiler(vendor, "relax.add") is second
    pattern = is_op("relax.nn.relu")(wildcard())
    byoc.register_pattern(vendor, "p", pattern)
    with pytest.raises(ValueError, match="the pattern of 'registry_test_vendor' 'p' is registered already"):
        byoc.register_pattern(vendor, "p", pattern)


def test_an_op_that_does_not_exist_is_refused_with_a_hint(vendor):
    with pytest.raises(ValueError, match=r"relax\.conv2d.*did you mean relax\.nn\.conv2d"):
        byoc.register_annotate_compiler(vendor, "relax.conv2d", lambda attrs, args: True)
    with pytest.raises(ValueError, match="not a name"):
        byoc.register_annotate_compiler("my npu", ["relax.add"])


def test_an_unknown_compiler_fails_where_it_is_written():
    with pytest.raises(ValueError, match=r"unknown compiler 'nobody'; registered: .*dnnl"):
        byoc.AnnotateExternalCompiler("nobody")
    with pytest.raises(ValueError, match="unknown compiler"):
        byoc.supported_ops("nobody")


def test_default_predicate_is_the_lowering(vendor):
    @byoc.register_lowering(vendor, "relax.nn.relu")
    def relu(g, call):
        src = g.value(call.args[0])
        if src.dtype != "float32":
            raise byoc.Reject(f"dtype {src.dtype}")
        return g.eltwise(src, "relu")

    predicate = byoc.get_annotate_compiler(vendor, "relax.nn.relu")
    assert predicate(None, _args((2, 3))) is True
    assert predicate(None, _args((2, 3), dtype="float16")).reason == "dtype float16"


def test_a_lowering_that_fails_is_a_reason_not_a_crash(vendor):
    @byoc.register_lowering(vendor, "relax.nn.relu")
    def relu(g, call):
        return 1 / 0

    reason = byoc.get_annotate_compiler(vendor, "relax.nn.relu")(None, _args((2,))).reason
    assert "the lowering of relax.nn.relu" in reason
    assert "ZeroDivisionError" in reason


def test_why_an_operator_is_never_taken(vendor):
    byoc.register_annotate_compiler(vendor, ["relax.add"])
    registry.register_unsupported(vendor, {"relax.erf": "no such unit"})
    assert "relax.erf" not in byoc.supported_ops(vendor)
    assert byoc.get_annotate_compiler(vendor, "relax.erf")(None, []).reason.endswith("relax.erf: no such unit")
    assert byoc.get_annotate_compiler(vendor, "relax.tan")(None, []).reason.endswith("for relax.tan")
    with pytest.raises(ValueError, match="registered already"):
        registry.register_unsupported(vendor, {"relax.erf": "another reason"})
