"""Operators that are kept whole: what sees them, when they are expanded, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.ir.relax_utils import composite_of, ops_of
from tvm_byoc_dnnl.vendors import namespaces
from tvm_byoc_dnnl.whole.table import expand, inputs_of, operator

R = relax.op
DOMAIN = "ai.acme"
_numbers = itertools.count()


def scaled(bb: relax.BlockBuilder, x: Any, w: Any = None, *, alpha: float = 1.0, mode: str = "relu") -> Any:
    """``mode(x) * alpha``, and a product with ``w`` where there is one; the second output is ``x``."""
    if mode not in ("relu", "exp"):
        raise byoc.UnsupportedError(f"the mode `{mode}`; expected relu or exp")
    y = R.multiply(R.nn.relu(x) if mode == "relu" else R.exp(x), relax.const(alpha, "float32"))
    return [y if w is None else R.matmul(y, w), x]


def expected(x: np.ndarray, w: np.ndarray | None = None, alpha: float = 1.0, mode: str = "relu") -> np.ndarray:
    y = (np.maximum(x, 0) if mode == "relu" else np.exp(x)) * np.float32(alpha)
    return y if w is None else y @ w


@pytest.fixture
def name() -> str:
    """A name that no other test registers: TVM cannot forget an operator."""
    return f"Scaled{next(_numbers)}"


@pytest.fixture
def acme() -> Iterator[str]:
    """A compiler that the test gives its predicates and patterns."""
    yield "acme"
    namespaces.unregister_compiler("acme")


X = np.random.default_rng(0).standard_normal((5, 8)).astype("float32")
W = np.random.default_rng(1).standard_normal((8, 7)).astype("float32")


def module(
    build: Callable[[relax.BlockBuilder, Any], Any],
    *,
    rows: int | str = "n",
    private: bool = False,
    branch: bool = False,
) -> tvm.IRModule:
    """A function of ``x (rows, 8)``, whose call is in ``main``, in a private function or in both branches of an If."""
    bb = relax.BlockBuilder()
    dim = tirx.Var(rows, "int64") if isinstance(rows, str) else rows
    x = relax.Var("x", relax.TensorType((dim, 8), "float32"))
    inner = None
    if private:
        own = tirx.Var(rows, "int64") if isinstance(rows, str) else rows
        y = relax.Var("y", relax.TensorType((own, 8), "float32"))
        with bb.function("inner", [y], private=True):
            with bb.dataflow():
                out = bb.emit_output(build(bb, y))
            inner = bb.emit_func_output(out)
    if branch:
        flag = relax.Var("flag", relax.TensorType((), "bool"))
        func = relax.Function(
            [x, flag],
            relax.SeqExpr([], relax.If(flag, *(_branch(build, x, i) for i in range(2)))),
            relax.TensorType((dim, 8), "float32"),
        )
        return relax.transform.Normalize()(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(R.exp(bb.emit(build(bb, x) if inner is None else relax.Call(inner, [x]))))
        bb.emit_func_output(out)
    return bb.get()


def _branch(build: Callable[[relax.BlockBuilder, Any], Any], x: Any, index: int) -> Any:
    bb = relax.BlockBuilder()
    value = bb.normalize(build(bb, x))
    first = relax.Var(f"y{index}", value.ty)
    return relax.SeqExpr([relax.BindingBlock([relax.VarBinding(first, value)])], first)


def call(name: str, *inputs: Any, wanted: tuple[bool, ...] = (True,), **attributes: Any) -> Any:
    entry = operator(DOMAIN, name)
    assert entry is not None
    return entry.call(inputs, attributes, wanted, "node_a")


def run(executable: Any, *arguments: Any) -> np.ndarray:
    given = [tvm.runtime.tensor(np.asarray(a)) for a in arguments]
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*given).numpy()


BUILDS: dict[str, Callable[[tvm.IRModule], Any]] = {
    "tvm": lambda mod: tvm.compile(mod, "llvm"),
    "tvm behind partition": lambda mod: tvm.compile(
        relax.transform.RunCodegen()(byoc.partition(mod, compiler=[])), "llvm"
    ),
    "byoc without a compiler": lambda mod: tvm.compile(mod, "llvm", relax_pipeline="byoc"),
    "byoc behind partition": lambda mod: tvm.compile(byoc.partition(mod, "ccompiler"), "llvm", relax_pipeline="byoc"),
    "byoc.compile": lambda mod: byoc.compile(mod, "ccompiler"),
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize("where", [{}, {"private": True}, {"branch": True}], ids=["main", "private", "branch"])
@pytest.mark.parametrize("with_types", [False, True], ids=["types inferred", "types given"])
def test_a_call_is_expanded_in_every_build(
    build: Callable[[tvm.IRModule], Any], where: dict[str, bool], with_types: bool, name: str
) -> None:
    types = (lambda x, w=None, **_: [x.ty, x.ty]) if with_types else None
    byoc.register_onnx_operator(DOMAIN, name, definition=scaled, types=types)
    mod = module(lambda bb, x: call(name, x, alpha=2.0), **where)
    relax.analysis.well_formed(mod)
    arguments = [X, np.array(True)] if where.get("branch") else [X]
    got = run(build(mod), *arguments)
    want = expected(X, alpha=2.0)
    np.testing.assert_allclose(got, want if where.get("branch") else np.exp(want), rtol=1e-5)


@pytest.mark.parametrize(
    ("wanted", "pick"), [((True,), None), ((False, True), None), ((True, True), 0), ((True, True), 1)]
)
def test_the_outputs_that_are_wanted(wanted: tuple[bool, ...], pick: int | None, name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=scaled)

    def build(bb: relax.BlockBuilder, x: Any) -> Any:
        result = bb.emit(call(name, x, wanted=wanted, alpha=3.0))
        return result if pick is None else relax.TupleGetItem(result, pick)

    second = wanted == (False, True) or pick == 1
    got = run(byoc.compile(module(build), "ccompiler"), X)
    np.testing.assert_allclose(got, np.exp(X if second else expected(X, alpha=3.0)), rtol=1e-5)


def test_inputs_that_are_left_out_and_defaults(name: str) -> None:
    byoc.register_onnx_operator(
        DOMAIN, name, definition=lambda bb, a=None, b=None, *, k=2, s="z": R.add(b, relax.const(k, "float32"))
    )
    made: list[Any] = []

    def build(bb: relax.BlockBuilder, x: Any) -> Any:
        made.append(bb.normalize(call(name, None, x)))
        return made[0]

    mod = module(build)
    assert [i is None for i in inputs_of(made[0])] == [True, False]
    assert (int(made[0].attrs["k"]), str(made[0].attrs["s"])) == (2, "z")
    np.testing.assert_allclose(run(byoc.compile(mod, "ccompiler"), X), np.exp(X + 2), rtol=1e-5)


def test_types_follow_open_dims(name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=lambda bb, x: R.concat([x, x], axis=0))
    mod = module(lambda bb, x: call(name, x))
    rows, columns = mod["main"].ret_ty.shape.values
    assert byoc.shape_dims(mod["main"].params[0].ty)[0] in tirx.analysis.undefined_vars(rows)
    assert "* 2" in str(rows) or "int64(2)" in str(rows)
    assert int(columns) == 8


# ---------------------------------------------------------------- compilers that know the operator
def taken(mod: tvm.IRModule) -> list[str]:
    return sorted(composite_of(f) for f in mod.functions.values() if composite_of(f))


def test_a_predicate_takes_some_calls_and_the_rest_is_offered_expanded(name: str, acme: str) -> None:
    op = byoc.register_onnx_operator(DOMAIN, name, definition=scaled)

    @byoc.register_annotate_compiler(acme, op)
    def _(attrs: Any, args: list[Any]) -> bool | byoc.Reject:
        return byoc.Reject("alpha is 3") if attrs["alpha"] == 3.0 else True

    byoc.register_annotate_compiler(acme, "relax.nn.relu")(lambda attrs, args: True)
    mod = module(lambda bb, x: call(name, bb.emit(call(name, x, alpha=2.0)), alpha=3.0))
    annotated = byoc.AnnotateExternalCompiler(acme)(mod)
    assert taken(annotated) == [f"acme.{op}", "acme.relax.nn.relu"]
    assert "relax.multiply" in ops_of(annotated["main"])
    report = str(byoc.explain(mod, compiler=acme))
    assert "alpha is 3" in report


def test_a_pattern_takes_it_with_its_neighbour(name: str, acme: str) -> None:
    from tvm.relax.dpl import is_op, wildcard

    op = byoc.register_onnx_operator(DOMAIN, name, definition=scaled)
    byoc.register_pattern(
        acme, "scaled_exp", is_op("relax.exp")(is_op(op)(wildcard()) | is_op("relax.nn.relu")(wildcard()))
    )
    mod = module(lambda bb, x: call(name, x))
    assert taken(byoc.AnnotateExternalCompiler(acme)(mod)) == ["acme.scaled_exp"]


def test_an_operator_that_nobody_knows_is_expanded_first(name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=scaled)
    mod = module(lambda bb, x: call(name, x, alpha=2.0))
    assert taken(byoc.AnnotateExternalCompiler("ccompiler")(mod))
    report = str(byoc.explain(mod, compiler="ccompiler"))
    assert name not in report
    assert "multiply" in report


def test_new_variables_are_named_after_the_call(name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=scaled)
    mod = expand(module(lambda bb, x: call(name, x, relax.const(W), alpha=2.0)))
    names = [v.name for v, _ in byoc.bindings_of(mod["main"])]
    assert [name.rpartition("_part")[0] or name for name in names] == ["lv", "lv", "lv", "gv"]
    np.testing.assert_allclose(run(byoc.compile(mod, "ccompiler"), X), np.exp(expected(X, W, alpha=2.0)), rtol=1e-4)


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"beta": 1.0}, byoc.InputError, r"\(node `node_a`\) has the attribute `beta`; .*: alpha, mode"),
        ({"mode": "tanh"}, byoc.UnsupportedError, r"has the mode `tanh`; expected relu or exp"),
    ],
)
def test_attributes_that_it_cannot_have(attributes: dict[str, Any], error: type, message: str, name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=scaled)
    with pytest.raises(error, match=message):
        byoc.compile(module(lambda bb, x: call(name, x, **attributes)), "ccompiler")


def test_an_attribute_that_it_needs(name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=lambda bb, x, *, k: x)
    with pytest.raises(byoc.InputError, match=r"\(node `node_a`\) has no attribute `k`, which it needs"):
        call(name, relax.const(X))


def test_an_operator_without_a_definition_needs_a_compiler(name: str, acme: str) -> None:
    op = byoc.register_onnx_operator(DOMAIN, name, types=lambda x: x.ty)
    mod = module(lambda bb, x: call(name, x))
    with pytest.raises(byoc.UnsupportedError, match=rf"{name} .*has no definition, and no compiler takes it"):
        byoc.compile(mod, "ccompiler")
    byoc.register_annotate_compiler(acme, op)(lambda attrs, args: True)
    assert taken(byoc.AnnotateExternalCompiler(acme)(mod)) == [f"acme.{op}"]


def test_an_output_that_the_definition_does_not_compute(name: str) -> None:
    byoc.register_onnx_operator(DOMAIN, name, definition=lambda bb, x: [x, None])
    with pytest.raises(byoc.UnsupportedError, match="gives its output 1, which its definition does not compute"):
        module(lambda bb, x: call(name, x, wanted=(False, True)))


@pytest.mark.parametrize(
    ("arguments", "kwargs", "error", "message"),
    [
        (("ai acme", "X"), {"definition": scaled}, ValueError, "the domain is 'ai acme'"),
        (("ai.acme", ""), {"definition": scaled}, ValueError, "the name is ''"),
        (("ai.onnx", "X"), {"definition": scaled}, ValueError, "belongs to the standard"),
        (("ai.acme", "X"), {}, TypeError, "give a definition, or the types"),
        (
            ("ai.acme", "X"),
            {"definition": 3},
            TypeError,
            "definition is 3; expected a function, or an onnx.FunctionProto",
        ),
        (("ai.acme", "X"), {"types": 3}, TypeError, "types is 3; expected a function"),
    ],
)
def test_wrong_registrations(arguments: tuple[str, str], kwargs: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        byoc.register_onnx_operator(*arguments, **kwargs)


def test_a_second_registration(name: str) -> None:
    first = byoc.register_onnx_operator(DOMAIN, name, definition=scaled)
    assert byoc.register_onnx_operator(DOMAIN, name, definition=scaled) == first
    with pytest.raises(ValueError, match="is registered already; pass override=True"):
        byoc.register_onnx_operator(DOMAIN, name, definition=lambda bb, x: x)
    byoc.register_onnx_operator(DOMAIN, name, definition=lambda bb, x: R.add(x, x), override=True)
    got = run(byoc.compile(module(lambda bb, x: call(name, x)), "ccompiler"), X)
    np.testing.assert_allclose(got, np.exp(2 * X), rtol=1e-5)
