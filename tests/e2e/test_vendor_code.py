"""Every function that a vendor can register: what it raises or returns never ends a build, and is said by name."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, topi
from tvm.relax.dpl import is_op, wildcard

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.te import unregister_te_compute

pytestmark = pytest.mark.native

V = "acme"
X = np.array([[1.0, -2.0, 3.0], [-0.0, 5.0, 6.0]], "float32")
WANT = np.abs(np.exp(-X))
NEGATIVE, EXP = "relax.negative", "relax.exp"


def model() -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            negative = builder.emit(relax.op.negative(x))
            y = builder.emit_output(relax.op.abs(builder.emit(relax.op.exp(negative))))
        builder.emit_func_output(y)
    return builder.get()


# ------------------------------------------------------------ a vendor that works, but for one function
def blob(region: relax.Function) -> tvm.runtime.Module:
    """The names of its operators are the blob."""
    names: list[str] = []
    relax.analysis.post_order_visit(
        region, lambda e: names.append(e.op.name) if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op) else None
    )
    return byoc.blob_module(V, str(region.attrs["global_symbol"]), " ".join(names).encode(), "1")


def load(data: bytes) -> Callable[..., None]:
    def run(x, y):
        value = np.from_dlpack(x)
        for name in data.decode().split():
            value = getattr(np, name.removeprefix("relax."))(value)
        np.copyto(np.from_dlpack(y), value)

    return run


def codegen(functions, options, constants):
    return [blob(f) for f in functions]


def lowering(g, call):
    return g.eltwise(g.value(call.args[0]), "linear", -1.0, 0.0)


def vendor(
    takes: Mapping[str, Any] | None = None,
    lowers: Mapping[str, Any] | None = None,
    hooks: Mapping[str, Any] | None = None,
    codegen: Any = codegen,
    isolate: bool = False,
    **parts: Any,
) -> None:
    """A backend for ``negative`` and ``exp``, of which one part is another."""
    for op, predicate in ({NEGATIVE: None, EXP: None} if takes is None else takes).items():
        byoc.register_annotate_compiler(V, op if predicate else [op], predicate)
    for op, lower in (lowers or {}).items():
        byoc.register_lowering(V, op, lower)
    if hooks is not None:
        byoc.register_target_hooks(V, **hooks)
    else:
        byoc.register_codegen(V, codegen)
        byoc.register_blob_runner(V, lambda words: True, load)
    byoc.register_namespace(V, isolate=isolate, **parts)


def named(function: Callable[..., Any], name: str) -> tvm.transform.Pass:
    return tvm.transform.module_pass(lambda mod, context: function(mod, context), opt_level=0, name=name)


class Policy(byoc.RegionPolicy):
    """A policy whose answer is another function's."""

    def __init__(self, answer):
        super().__init__()
        object.__setattr__(self, "answer", answer)

    def why_not(self, work):
        return self.answer(work)


def with_pattern(check):
    vendor({NEGATIVE: None})
    byoc.register_pattern(V, "both", is_op(EXP)(is_op(NEGATIVE)(wildcard())), check=check)


def with_fused_op(**parts):
    byoc.register_fused_op(V, "both", is_op(EXP)(is_op(NEGATIVE)(wildcard())), **parts)


def with_compute(function, supports=None):
    vendor(hooks={"target": "c"})
    byoc.register_te_compute(NEGATIVE, function, name="acme_te", supports=supports)


#: function → how a vendor gets it, and how a message calls it
PARTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "predicate": (lambda f: vendor({NEGATIVE: f, EXP: None}), f"the predicate of '{V}' for {NEGATIVE}"),
    "check": (with_pattern, f"the check of pattern {V}.both"),
    "lowering": (lambda f: vendor({}, {NEGATIVE: f}), f"the lowering of {NEGATIVE} in '{V}'"),
    "probe": (lambda f: vendor({}, {NEGATIVE: lowering}, probe=f), f"the probe of '{V}'"),
    "optimize": (lambda f: vendor({}, {NEGATIVE: lowering}, optimize=f), f"optimize of '{V}'"),
    "codegen": (lambda f: vendor(codegen=f), f"{V}: codegen: "),
    "codegen-items": (lambda f: vendor(codegen=lambda fs, *_: [f(x) for x in fs]), f"{V}: codegen: "),
    "prepare": (lambda f: vendor(prepare=[f]), f"prepare= of '{V}'"),
    "prepare-pass": (
        lambda f: vendor(prepare=[lambda: named(f, "AcmeFuse")]),
        f"the pass 'AcmeFuse' .prepare= of '{V}'",
    ),
    "policy": (lambda f: vendor(policy=Policy(f)), f"{V}: policy crash: Policy.why_not"),
    "relax_to_tir": (lambda f: vendor(hooks={"relax_to_tir": named(f, "Acme")}), f"{V}: lower: .*relax_to_tir"),
    "for_each_region": (lambda f: vendor(hooks={"relax_to_tir": byoc.for_each_region(f)}), f"{V}: lower: "),
    "tir_passes": (lambda f: vendor(hooks={"tir_passes": [named(f, "Acme")], "target": "c"}), f"{V}: .*tir_passes"),
    "tir_to_runtime": (lambda f: vendor(hooks={"tir_to_runtime": f, "target": "c"}), f"{V}: codegen: "),
    "fused-compute": (lambda f: with_fused_op(compute=f), f"the compute of fused op {V}.both"),
    "fused-schedule": (lambda f: with_fused_op(schedule=f), f"the schedule of fused op {V}.both"),
    "te-compute": (with_compute, f"{V}: lower: .*its compute 'acme_te'"),
    "te-supports": (lambda f: with_compute(lambda attrs, x: topi.negative(x), f), f"{V}: lower: "),
}
#: where the answer is none or says no, and the calls are taken all the same
ACCEPTED = {
    ("probe", "None"),
    ("policy", "None"),
    ("fused-schedule", "None"),
    ("te-supports", "None"),
    ("te-supports", "3"),
}


def raises(error: BaseException, *args: Any, **kwargs: Any) -> Any:
    raise error


def answers(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value


BEHAVIOURS = {
    "None": (partial(answers, None), "None|NoneType"),
    "3": (partial(answers, 3), r"\b3\b|`int`|returned int"),
    "KeyError": (partial(raises, KeyError("stride")), "stride"),
    "exit": (lambda *a, **k: sys.exit(7), "SystemExit: 7"),
    "exotic": (partial(raises, GeneratorExit("left")), "left"),
}


@pytest.fixture(autouse=True)
def forgotten():
    yield
    if V in byoc.compilers():
        byoc.unregister_compiler(V)
    with suppress(byoc.InputError):
        unregister_te_compute(NEGATIVE, "acme_te")


def compiled(part: str, strict: bool = False):
    policy = None if part == "policy" else byoc.RegionPolicy()
    return byoc.compile(model(), [V, "dnnl"], policy=policy, strict=strict)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("part", PARTS)
def test_a_build_goes_on_and_strict_names_the_function(part, behaviour):
    register, who = PARTS[part]
    function, said = BEHAVIOURS[behaviour]
    register(function)
    np.testing.assert_allclose(byoc.Runner(compiled(part))(X), WANT, rtol=1e-5)
    if (part, behaviour) in ACCEPTED:
        compiled(part, strict=True)
        return
    with pytest.raises(byoc.UnsupportedError, match=rf"(?s){who}.*({said})") as error:
        compiled(part, strict=True)
    if behaviour == "KeyError" and "pass" not in part and part != "relax_to_tir":
        chain = [error.value]
        while chain[-1].__cause__ is not None:
            chain.append(chain[-1].__cause__)
        assert any(isinstance(e, KeyError) for e in chain), "it is raised from the vendor's own exception"


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
@pytest.mark.parametrize("part", ["probe_many", "probe_many-items", "describe", "cost"])
def test_what_a_build_can_do_without_is_a_warning(part, behaviour, caplog):
    function, said = BEHAVIOURS[behaviour]
    caplog.set_level(logging.WARNING, "tvm_byoc_dnnl")
    if part == "probe_many-items":
        vendor({}, {NEGATIVE: lowering}, probe_many=lambda graphs: [function(graph) for graph in graphs])
    elif part == "cost":
        vendor()
        byoc.register_cost(V, function)
    else:
        vendor({}, {NEGATIVE: lowering}, **{part: function})
    np.testing.assert_allclose(byoc.Runner(compiled(part, strict=True))(X), WANT, rtol=1e-5)
    if part == "describe":
        assert "acme" in str(byoc.explain(model(), [V, "dnnl"], policy=byoc.RegionPolicy()))
    if part == "cost":
        assert byoc.tune(model(), [V, "dnnl"], budget=1)
    silent = {("probe_many-items", "None"), ("describe", "None"), ("cost", "None"), ("cost", "3")}
    name = "the cost of 'acme'" if part == "cost" else f"{part.removesuffix('-items')} of 'acme'"
    assert ((part, behaviour) in silent) == (name not in caplog.text)
    if (part, behaviour) not in silent:
        assert said.split("|")[0].replace("\\b", "") in caplog.text


def test_probing_ahead_of_contract_1_is_announced_to_go():
    with pytest.warns(DeprecationWarning, match="give probe_many instead"):
        vendor({}, {NEGATIVE: lowering}, probing_ahead=lambda: None)
    np.testing.assert_allclose(byoc.Runner(compiled("probe", strict=True))(X), WANT, rtol=1e-5)


def test_ctrl_c_is_no_failure_of_a_vendor():
    vendor({NEGATIVE: partial(raises, KeyboardInterrupt())})
    with pytest.raises(KeyboardInterrupt):
        compiled("predicate")


def test_a_vendor_whose_entry_point_exits_is_left_out():
    from tvm_byoc_dnnl.vendors import namespaces as vendors

    class Entry:
        name, value = V, "acme:register"

        def load(self):
            return partial(raises, SystemExit("no licence"))

    @contextmanager
    def transaction(name):
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vendors, "_loaded", False)
        patch.setattr(vendors, "_transaction", transaction)
        patch.setattr(vendors.pkgutil, "iter_modules", lambda path: [])
        patch.setattr(vendors.importlib.metadata, "entry_points", lambda group: [Entry()])
        with pytest.warns(
            UserWarning, match="vendor 'acme' .*could not be loaded and is left out: .*SystemExit: no licence"
        ):
            vendors.load_vendors()


# ------------------------------------------------------------ a codegen in a process of its own
def overflows(*args):
    return overflows(*args)


ENDS = {
    "crash": (lambda *args: os.kill(os.getpid(), signal.SIGSEGV), "crashes: the process was ended by SIGSEGV"),
    "abort": (lambda *args: os.abort(), "crashes: the process was ended by SIGABRT"),
    "_exit": (lambda *args: os._exit(3), "crashes: the process ended with status 3"),
    "exit": (lambda *args: sys.exit(7), "raised SystemExit: 7"),
    "KeyError": (partial(raises, KeyError("stride")), "KeyError: 'stride'"),
    "Reject": (partial(raises, byoc.Reject("5 MB of 4 MB on the chip")), "5 MB of 4 MB on the chip"),
    "recursion": (overflows, "RecursionError: maximum recursion depth exceeded"),
    "None": (partial(answers, None), "returned None; expected 1 runtime module"),
    "unpicklable": (lambda *args: [lambda: None], "[Pp]ickle"),
}


@pytest.mark.parametrize(("function", "said"), ENDS.values(), ids=ENDS)
def test_an_isolated_codegen_ends_nothing_but_itself(function, said):
    vendor(codegen=function, isolate=True)
    np.testing.assert_allclose(byoc.Runner(compiled("codegen"))(X), WANT, rtol=1e-5)
    with pytest.raises(byoc.UnsupportedError, match=rf"{V}: codegen: .*{said}"):
        compiled("codegen", strict=True)


def test_an_isolated_codegen_makes_the_same_model(tmp_path):
    here = os.getpid()
    seen = []

    def other_process(functions, options, constants):
        seen.append(here)
        assert os.getpid() != here
        return codegen(functions, options, constants)

    vendor(codegen=other_process, isolate=True)
    executable = compiled("codegen", strict=True)
    executable.export_library(tmp_path / "m.so")
    for run in (byoc.Runner(executable), byoc.load(tmp_path / "m.so")):
        np.testing.assert_allclose(run(X), WANT, rtol=1e-5)
    assert not seen, "its memory is another process's"


@pytest.mark.parametrize("hook", ["relax_to_tir", "tir_passes", "tir_to_runtime"])
@pytest.mark.parametrize(("function", "said"), list(ENDS.values())[:4], ids=list(ENDS)[:4])
def test_isolated_hooks_end_nothing_but_themselves(hook, function, said):
    made = function if hook == "tir_to_runtime" else [named(function, "Acme")]
    vendor(hooks={hook: made, "target": "c"}, isolate=True)
    np.testing.assert_allclose(byoc.Runner(compiled("hooks"))(X), WANT, rtol=1e-5)
    with pytest.raises(byoc.UnsupportedError, match=rf"{V}: (lower|codegen): .*{said}"):
        compiled("hooks", strict=True)


def test_isolated_hooks_make_the_same_model(tmp_path):
    vendor(hooks={"target": "c"}, isolate=True)
    executable = compiled("hooks", strict=True)
    executable.export_library(tmp_path / "m.so")
    for run in (byoc.Runner(executable), byoc.load(tmp_path / "m.so")):
        np.testing.assert_allclose(run(X), WANT, rtol=1e-5)


def test_a_codegen_can_be_isolated_by_itself():
    vendor(codegen=ENDS["crash"][0])
    byoc.register_codegen(V, ENDS["crash"][0], isolate=True, override=True)
    np.testing.assert_allclose(byoc.Runner(compiled("codegen"))(X), WANT, rtol=1e-5)


def test_isolation_is_for_functions():
    with pytest.raises(TypeError, match="is for a codegen that is a function"):
        byoc.register_codegen(V, byoc.portable_codegen(V, blob), isolate=True)


def with_free_variable(main):
    free = relax.Var("free", main.params[0].ty)
    return relax.Function(main.params, relax.SeqExpr([], free), main.ret_ty, main.is_pure, main.attrs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda mod: tvm.IRModule(), "left out 'main'"),
        (
            lambda mod: tvm.IRModule({"main": relax.Function([], relax.const(1.0), relax.TensorType((), "float32"))}),
            "param",
        ),
        (lambda mod: tvm.IRModule({"main": with_free_variable(mod["main"])}), "reads 'free' in 'main'"),
    ],
)
def test_a_preparing_pass_that_leaves_another_function_is_left_out(change, said):
    vendor(prepare=[lambda: named(lambda mod, _: change(mod), "AcmeFuse")])
    np.testing.assert_allclose(byoc.Runner(compiled("prepare"))(X), WANT, rtol=1e-5)
    with pytest.raises(byoc.UnsupportedError, match=rf"prepare= of '{V}' .*{said}"):
        compiled("prepare", strict=True)


def test_a_function_that_is_nowhere_is_an_error_and_not_the_end_of_the_process():
    head = '\n#ifdef __cplusplus\nextern "C"\n#endif\n'
    source = (
        head
        + "int nowhere(void);"
        + head
        + "int __tvm_ffi_{}(void* s, void* a, int n, void* r) {{ return nowhere(); }}"
    )

    def codegen(functions, *_):
        symbols = [str(f.attrs["global_symbol"]) for f in functions]
        return [byoc.c_source_module(source.format(symbol), [symbol]) for symbol in symbols]

    vendor(codegen=codegen)
    with pytest.raises(byoc.ExportError, match=r"undefined symbol: nowhere.*A library or object file is missing"):
        byoc.Runner(compiled("codegen"))


# ------------------------------------------------------------ what is given to a vendor is its own
def test_changed_arguments_are_the_vendor_s_own():
    def predicate(attrs, args):
        args.clear()
        return True

    def prepare():
        def change(mod, _context):
            for gv in mod.get_global_vars():
                del mod[gv]
            raise KeyError("stride")

        return named(change, "AcmeFuse")

    def check(match):
        match.clear()
        return True

    vendor({NEGATIVE: predicate, EXP: None}, prepare=[prepare])
    byoc.register_pattern(V, "both", is_op(EXP)(is_op(NEGATIVE)(wildcard())), check=check)
    np.testing.assert_allclose(byoc.Runner(compiled("predicate"))(X), WANT, rtol=1e-5)
