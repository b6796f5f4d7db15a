"""Registration: three forms, duplicates refused, unknown names explained."""

import importlib.metadata
import re
import textwrap
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.vendors import namespaces, registry
from tvm_byoc_dnnl.vendors import namespaces as vendors
from tvm_byoc_dnnl.vendors.portable import install_codegen


@pytest.fixture
def vendor():
    name = "registry_test_vendor"
    yield name
    byoc.unregister_compiler(name)


def _args(*shapes, dtype="float32"):
    return [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("ops", ["relax.nn.relu", ["relax.abs", "relax.nn.relu"]])
def test_decorator_and_lookup(vendor, ops):
    @byoc.register_annotate_compiler(vendor, ops)
    def relu(attrs, args):
        return args[0].ty.ndim == 4 or byoc.Reject(f"rank {args[0].ty.ndim}")

    predicate = byoc.get_annotate_compiler(vendor, "relax.nn.relu")
    assert predicate is relu
    assert predicate(None, _args((1, 2, 3, 4))) is True
    assert predicate(None, _args((2, 3))).reason == "rank 2"


def test_plain_call_and_whitelist(vendor):
    byoc.register_annotate_compiler(vendor, "relax.add", lambda attrs, args: False)
    byoc.register_annotate_compiler(vendor, ["relax.multiply", "relax.subtract"])
    byoc.register_annotate_compiler(vendor, "relax.exp")
    assert byoc.supported_ops(vendor) == ["relax.add", "relax.exp", "relax.multiply", "relax.subtract"]
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
    with pytest.raises(ValueError, match=r"did you mean onnx\.com\.microsoft\.MatMulNBits"):
        byoc.register_annotate_compiler(vendor, "onnx.MatMulNbits")
    with pytest.raises(ValueError, match="register_onnx_operator makes"):
        byoc.register_annotate_compiler(vendor, "onnx.ai.acme.Unheard")
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


# ---------------------------------------------------------------- owners, and all or nothing
def package(name, source):
    """A package of that name, imported."""
    module = types.ModuleType(name)
    exec(textwrap.dedent(source), vars(module))
    return module


WHEEL = """
    import tvm_byoc_dnnl as byoc

    def register():
        byoc.register_annotate_compiler("registry_test_vendor", ["relax.{op}"])
        byoc.register_codegen("registry_test_vendor", codegen)

    def codegen(functions, options, constants):
        return []
"""


def test_a_namespace_has_one_owner(vendor):
    package("first_wheel.backend", WHEEL.format(op="exp")).register()
    with pytest.raises(ValueError, match=f"{vendor!r} belongs to first_wheel, .* now second_wheel .* extend=True"):
        package("second_wheel", WHEEL.format(op="sin")).register()
    assert byoc.supported_ops(vendor) == ["relax.exp"]
    package("first_wheel.more", WHEEL.format(op="cos").partition("byoc.register_codegen")[0]).register()
    assert byoc.supported_ops(vendor) == ["relax.cos", "relax.exp"]


@pytest.mark.parametrize(
    "register",
    [
        lambda n, **o: byoc.register_annotate_compiler(n, ["relax.add"], **o),
        lambda n, **o: byoc.register_annotate_compiler(n, "relax.add", **o)(lambda attrs, args: True),
        lambda n, **o: byoc.register_lowering(n, "relax.add", lambda g, call: None, **o),
        lambda n, **o: byoc.register_pattern(n, "p", is_op("relax.add")(wildcard(), wildcard()), **o),
        lambda n, **o: registry.register_unsupported(n, {"relax.add": "no adder"}, **o),
        lambda n, **o: byoc.register_namespace(n, optimize=lambda graph: graph, **o),
        lambda n, **o: byoc.register_fused_op(n, "f", is_op("relax.add")(wildcard(), wildcard()), **o),
    ],
)
def test_others_extend_a_namespace_only_by_saying_so(vendor, register):
    package("first_wheel", WHEEL.format(op="exp")).register()
    with pytest.raises(ValueError, match="belongs to first_wheel"):
        register(vendor)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        register(vendor, extend=True)
    adds = [str(w.message) for w in found]
    ns = namespaces.namespace(vendor)
    assert set(ns.added) == ns.predicates.keys() - {"relax.exp"} | ns.lowerings.keys() | {
        f"{vendor}.{name}" for name in ns.patterns
    }
    assert len(adds) == bool(ns.added)  # an operator more is a warning; an option of the whole namespace is none
    assert all(re.match(f"tests adds .* to namespace '{vendor}', which belongs to first_wheel", text) for text in adds)


def test_a_namespace_says_which_contract_it_follows(vendor):
    assert byoc.register_namespace(vendor).api == byoc.register_namespace(vendor, api=1).api == 1
    byoc.unregister_compiler(vendor)
    for api in (0, 2, "1", None):
        with pytest.raises(byoc.InputError, match=rf"api is {api!r}; tvm-byoc-dnnl .* has version 1 of the contract"):
            byoc.register_namespace(vendor, api=api)
    assert vendor not in byoc.compilers()


@pytest.mark.parametrize(
    "register",
    [
        lambda n: byoc.register_annotate_compiler(n, ["relax.add", "relax.exp", "relax.nope"]),
        lambda n: byoc.register_lowering(n, ["relax.add", "relax.nope"], lambda g, call: None),
        lambda n: byoc.register_pattern(n, "p", "no pattern"),
        lambda n: byoc.register_target_hooks(n, target="no such target"),
    ],
)
def test_a_registration_that_fails_leaves_nothing(vendor, register):
    with pytest.raises((ValueError, TypeError)):
        register(vendor)
    assert vendor not in byoc.compilers()


class Entry:
    """An entry point of an installed wheel."""

    def __init__(self, name, target):
        self.name, self.value, self._target = name, f"{name}:register", target

    def load(self):
        if isinstance(self._target, Exception):
            raise self._target
        return self._target


def load(monkeypatch, *entries):
    """Find the vendors again, with these entry points installed; the warnings."""
    monkeypatch.setattr(namespaces, "_FAILED", {})
    monkeypatch.setattr(vendors, "_loaded", False)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(entries))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        byoc.compilers()
    return [str(w.message) for w in found]


def test_a_vendor_that_fails_half_way_leaves_nothing(vendor, monkeypatch):
    byoc.register_annotate_compiler(vendor, ["relax.exp"])

    def register():
        byoc.register_annotate_compiler(vendor, ["relax.add"])
        byoc.register_annotate_compiler("half_way", ["relax.add"])
        raise RuntimeError("no licence")

    (warning,) = load(monkeypatch, Entry("half_way_wheel", register))
    assert "half_way_wheel" in warning and "no licence" in warning
    assert byoc.supported_ops(vendor) == ["relax.exp"]
    assert "half_way" not in byoc.compilers()
    for name in ("half_way", "half_way_wheel"):
        with pytest.raises(ValueError, match=f"vendor of compiler '{name}' could not be .*no licence") as error:
            byoc.supported_ops(name)
        assert isinstance(error.value.__cause__, RuntimeError)


def test_a_vendor_that_cannot_be_imported_is_named_when_it_is_asked_for(monkeypatch):
    (warning,) = load(monkeypatch, Entry("broken_npu", ImportError("libnpu.so is missing")))
    assert "libnpu.so is missing" in warning
    with pytest.raises(ValueError, match=r"'broken_npu' could not be loaded: ImportError: libnpu.so"):
        byoc.partition(relax.BlockBuilder().get(), "broken_npu")


def test_of_two_wheels_of_one_name_the_second_is_left_out(vendor, monkeypatch):
    wheels = [package(name, WHEEL.format(op=op)) for name, op in (("wheel_b", "sin"), ("wheel_a", "exp"))]
    (warning,) = load(monkeypatch, *(Entry(m.__name__, m.register) for m in wheels))
    assert "wheel_b" in warning and "belongs to wheel_a" in warning
    assert byoc.supported_ops(vendor) == ["relax.exp"]
    assert namespaces.namespace(vendor).codegen.function.__module__ == "wheel_a"


# ---------------------------------------------------------------- what is wrong is refused where it is written
def test_what_is_no_pattern_is_refused(vendor):
    add = is_op("relax.add")(wildcard(), wildcard())
    with pytest.raises(TypeError, match=r"the pattern is 'relax.add'; expected a pattern"):
        byoc.register_pattern(vendor, "p", "relax.add")
    with pytest.raises(TypeError, match=r"'lhs' is 3; expected a pattern"):
        byoc.register_pattern(vendor, "p", add, annotations={"lhs": 3})
    with pytest.raises(ValueError, match=r"outputs has 'sum', which is no annotation; the annotations are 'lhs'"):
        byoc.register_pattern(vendor, "p", add, annotations={"lhs": add.args[0]}, outputs=["sum"])


@pytest.mark.parametrize(
    "register",
    [
        lambda n: byoc.register_annotate_compiler(n, "relax.add", 3),
        lambda n: byoc.register_lowering(n, "relax.add", 3),
        lambda n: byoc.register_pattern(n, "p", is_op("relax.exp")(wildcard()), check=3),
        lambda n: byoc.register_fused_op(n, "p", is_op("relax.exp")(wildcard()), compute=3),
        lambda n: byoc.register_codegen(n, 3),
        lambda n: byoc.register_namespace(n, probe=3),
        lambda n: byoc.register_cost(n, 3),
        lambda n: byoc.register_blob_runner(n, 3, 3),
    ],
)
def test_what_is_no_function_is_refused(vendor, register):
    with pytest.raises(TypeError, match="is 3; expected a function"):
        register(vendor)
    assert vendor not in byoc.compilers()


def test_an_unknown_operator_is_refused_by_the_decorators(vendor):
    for register in (byoc.register_annotate_compiler, byoc.register_lowering):
        with pytest.raises(ValueError, match=r"'relax.nope' is not an operator"):
            register(vendor, "relax.nope")


def test_an_unknown_target_is_refused(vendor):
    with pytest.raises(ValueError, match="TVM knows no target 'abacus'"):
        byoc.register_target_hooks(vendor, target="abacus")
    with pytest.raises(byoc.InputError, match="compile: TVM knows no target 'abacus'"):
        byoc.compile(relax.BlockBuilder().get(), target="abacus")


def test_a_forgotten_namespace_leaves_no_codegen_to_the_next_of_its_name() -> None:
    byoc.register_codegen("forgotten")(lambda functions, options, constants: [])
    install_codegen(namespaces.namespace("forgotten"))
    assert tvm.get_global_func("relax.ext.forgotten", allow_missing=True) is not None
    byoc.unregister_compiler("forgotten")
    assert tvm.get_global_func("relax.ext.forgotten", allow_missing=True) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: byoc.shape_dims(relax.Var("x", relax.TensorType((2,), "int8"))),
            "shape_dims: ty is ",
        ),
        (lambda: byoc.constant_numpy(3), "constant_numpy: expr is 3"),
        (lambda: byoc.steps_of({}), r"steps_of: what is \{\}"),
        (lambda: byoc.translate_to_te([]), "got list, expected a relax.Function"),
        (lambda: byoc.register_lowering("dnnl", [None], len), r"op is \[None\]; expected a sequence of names"),
    ],
)
def test_functions_for_vendors_say_what_they_expect(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(byoc.InputError, match=message):
        call()
