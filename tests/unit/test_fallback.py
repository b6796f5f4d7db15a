"""Fall-back while regions form: failures at every stage, of single calls and of combinations, with any codegen."""

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
from tvm_byoc_dnnl.ir.relax_utils import codegen_of

T = R.Tensor((4, 4), "float32")


@I.ir_module
class Chain:
    @R.function
    def main(x: T) -> T:
        with R.dataflow():
            a = R.add(x, x)
            b = R.nn.relu(a)
            c = R.exp(b)
            d = R.multiply(c, a)
            e = R.add(d, x)
            f = R.nn.relu(e)
            R.output(f)
        return f


X = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
EXPECTED = (lambda a: np.maximum(np.exp(np.maximum(a, 0)) * a + X, 0))(X + X)
WHOLE = dict.fromkeys(["add", "relu", "exp", "multiply", "add#2", "relu#2"], "va_0")


def check(mod):
    """The module is well formed and computes what it should."""
    assert relax.analysis.well_formed(mod) is not False  # 0.27 raises instead
    assert_right(run(mod, X), EXPECTED)


@pytest.mark.parametrize("portable", [True, False], ids=["portable", "own codegen"])
def test_a_model_without_failures_pays_one_attempt_per_region(portable):
    with vendors("va", portable=portable) as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.attempts.clear()
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod) == WHOLE
        assert len(va.attempts) == 1
        assert reasons(mod) == []
        check(mod)


# where a test injects the failure -> the stage in the log, per kind of codegen
STAGES = {
    "portable": {"lower": "lower", "optimize": "lower", "plan": "plan"},
    "own codegen": {"lower": "codegen", "optimize": "codegen", "codegen": "codegen", "source": "codegen"},
}
CASES = [(kind, stage) for kind, stages in STAGES.items() for stage in stages]


@pytest.mark.parametrize(("kind", "stage"), CASES, ids=lambda v: v)
def test_one_call_that_fails_goes_back_to_tvm(kind, stage):
    with vendors("va", portable=kind == "portable") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.fail(stage, "relax.exp", error=MemoryError("no room for exp") if stage == "plan" else None)
        if stage == "source":
            va.faults["source"] = lambda ops: "int main( { broken" if "relax.exp" in ops else None
        mod = byoc.PartitionGraph()(annotated)
        va.faults.clear()
        assert owners(mod) == {**WHOLE, "exp": "", "multiply": "va_1", "add#2": "va_1", "relu#2": "va_1"}
        (reason,) = reasons(mod)
        assert reason.startswith(f"c relax.exp va {STAGES[kind][stage]}: ")
        wanted = {"source": "error: ", "plan": "MemoryError: no room"}.get(stage, f"RuntimeError: {stage} cannot do")
        assert wanted in reason
        check(mod)


@pytest.mark.parametrize("portable", [True, False], ids=["portable", "own codegen"])
def test_a_refusal_by_the_lowering_is_a_reason_as_it_stands(portable):
    with vendors("va", portable=portable) as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.faults["lower"] = lambda ops: byoc.Reject("exp beyond 88") if ops == ["relax.exp"] else None
        (reason,) = reasons(byoc.PartitionGraph()(annotated))
        assert reason.endswith(": exp beyond 88")


def test_predicates_that_refuse_leave_no_entry_and_those_that_crash_do():
    with vendors("va"):
        byoc.register_annotate_compiler("va", "relax.exp", lambda attrs, args: byoc.Reject("not today"), override=True)
        byoc.register_annotate_compiler("va", "relax.multiply", lambda attrs, args: 1 / 0, override=True)
        mod = byoc.partition(Chain, "va")
        assert owners(mod) == {**WHOLE, "exp": "", "multiply": "", "add#2": "va_1", "relu#2": "va_1"}
        assert reasons(mod) == [
            "d relax.multiply va annotate: the predicate of 'va' for relax.multiply failed: "
            "ZeroDivisionError: division by zero"
        ]
        check(mod)


def test_a_crashing_lowering_is_noted_when_it_is_tried_on_the_call():
    with vendors("va") as va:
        va.fail("lower", "relax.exp")
        mod = byoc.partition(Chain, "va")
        assert owners(mod)["exp"] == ""
        assert [e.stage for e in read_log(mod)] == ["annotate"]


def pattern_exp_relu():
    return is_op("relax.exp")(is_op("relax.nn.relu")(wildcard()))


def test_a_crashing_check_costs_the_pattern_and_not_its_calls():
    def check_that_breaks(match):
        raise KeyError("axis")

    with vendors("va"):
        byoc.register_pattern("va", "exp_relu", pattern_exp_relu(), check=check_that_breaks)
        mod = byoc.partition(Chain, "va")
        assert owners(mod) == WHOLE
        assert reasons(mod) == [
            "c relax.exp va pattern: the check of pattern va.exp_relu failed: KeyError: 'axis'",
        ]


def test_a_pattern_that_cannot_be_lowered_falls_apart_into_its_calls():
    working = [True]

    def lower(g, match):
        if not working[0]:
            raise RuntimeError("lost the axis")
        return g.emit("eltwise", [g.value(match["root"].args[0])], g.shape_of(match["root"].ty))

    with vendors("va"):
        byoc.register_pattern("va", "exp_relu", pattern_exp_relu(), lower=lower)
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        assert len(annotated.functions) == 1 + 5  # exp and relu are one
        working[0] = False
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod) == WHOLE
        assert reasons(mod) == [
            "b relax.nn.relu va lower: RuntimeError: lost the axis",
            "c relax.exp va lower: RuntimeError: lost the axis",
        ]
        check(mod)


def test_the_next_compiler_gets_what_the_first_fails_on():
    with vendors("va", ("vb", ["relax.exp", "relax.add"])) as (va, _):
        annotated = byoc.AnnotateExternalCompiler(["va", "vb"])(Chain)
        va.fail("plan", "relax.exp")
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod) == {**WHOLE, "exp": "vb_0", "multiply": "va_1", "add#2": "va_1", "relu#2": "va_1"}
        assert reasons(mod) == [
            "c relax.exp va plan: VendorError: the probe of 'va' raised RuntimeError: plan cannot do relax.exp"
        ]
        va.faults.clear()
        check(mod)


def test_each_compiler_may_fail_in_turn():
    with vendors("va", "vb") as (va, vb):
        annotated = byoc.AnnotateExternalCompiler(["va", "vb"])(Chain)
        va.fail("plan", "relax.exp")
        vb.fail("lower", "relax.exp")
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod)["exp"] == ""
        # vb's own trial of the call fails already
        assert [e.split(": ")[0] for e in reasons(mod)] == ["c relax.exp va plan", "c relax.exp vb annotate"]
        vb.faults.clear()
        vb.fail("plan", "relax.exp", "relax.multiply")
        va.fail("plan", "relax.exp")
        va.faults["plan"] = _fails_on("relax.exp", "relax.multiply")
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod) == {**WHOLE, "exp": "vb_0", "multiply": "vb_1", "add#2": "va_1", "relu#2": "va_1"}
        va.faults.clear()
        vb.faults.clear()
        check(mod)


def _fails_on(*ops):
    def fault(met):
        for op in ops:
            if op in met:
                raise RuntimeError(f"no {op}")

    return fault


@pytest.mark.parametrize("portable", [True, False], ids=["portable", "own codegen"])
def test_a_combination_that_only_works_apart_is_cut(portable):
    with vendors("va", portable=portable) as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.fail("plan" if portable else "codegen", "relax.exp", "relax.multiply")
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod) == {**WHOLE, "multiply": "va_1", "add#2": "va_1", "relu#2": "va_1"}
        (reason,) = reasons(mod)
        assert "works, but not in one region with a, b, c: " in reason and "RuntimeError" in reason
        assert reason.startswith("d relax.multiply va ")
        strictly = byoc.PartitionGraph(strict=True)(annotated)  # all calls are offloaded
        assert owners(strictly) == owners(mod)
        va.faults.clear()
        check(mod)


def test_a_limit_on_the_size_of_regions_is_respected():
    with vendors("va") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)

        def too_large(ops):
            if len(ops) > 2:
                raise MemoryError(f"{len(ops)} calls")

        va.faults["plan"] = too_large
        mod = byoc.PartitionGraph()(annotated)
        assert list(owners(mod).values()) == ["va_0", "va_0", "va_1", "va_1", "va_2", "va_2"]
        check(mod)


def test_the_search_is_a_bisection():
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x
            for i in range(64):
                y = bb.emit(relax.op.exp(y) if i == 40 else relax.op.add(y, y))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    with vendors("va") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(bb.get())
        va.attempts.clear()
        va.fail("plan", "relax.exp")
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod)["exp"] == ""
        assert len({o for o in owners(mod).values() if o}) == 2
        assert len(va.attempts) <= 1 + 6 + 1 + 2  # the whole, its halves, the call alone, both parts


def test_many_calls_of_a_kind_cost_one_bisection():
    with vendors("va") as va:
        bb = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 4), "float32"))
        with bb.function("main", [x]):
            with bb.dataflow():
                y = x
                for i in range(32):
                    y = bb.emit(relax.op.nn.relu(y) if i % 2 else relax.op.add(y, y))
                out = bb.emit_output(y)
            bb.emit_func_output(out)
        annotated = byoc.AnnotateExternalCompiler("va")(bb.get())
        va.attempts.clear()
        va.fail("plan", "relax.nn.relu")
        mod = byoc.PartitionGraph()(annotated)
        assert [o for k, o in owners(mod).items() if k.startswith("relu")] == [""] * 16
        assert len(va.attempts) <= 1 + 5 + 16 + 16


def test_nothing_works():
    def fault(ops):
        raise RuntimeError("out of order")

    with vendors("va", portable=False) as va:
        annotated = byoc.AnnotateExternalCompiler("va")(Chain)
        va.faults["codegen"] = fault
        mod = byoc.PartitionGraph()(annotated)
        assert set(owners(mod).values()) == {""}
        assert sorted(e.name for e in read_log(mod)) == list("abcdef")
        check(mod)


def test_every_function_and_every_use_of_a_region():
    @I.ir_module
    class M:
        @R.function
        def helper(x: T) -> T:
            with R.dataflow():
                a = R.exp(x)
                b = R.add(a, x)
                R.output(b)
            return b

        @R.function
        def main(x: T, flag: R.Tensor((), "bool")) -> T:
            cls = M
            a = R.exp(x)
            b = R.add(a, x)
            c: T = cls.helper(b)
            if flag:
                r = R.exp(R.add(c, c))
            else:
                r = R.add(c, b)
            return r

    def shape(mod):
        return sorted((gv.name_hint, codegen_of(f)) for gv, f in mod.functions.items())

    with vendors("va") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(M)
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod, "helper") == {"exp": "va_0", "add": "va_0"}
        assert owners(mod) == {"exp": "va_0", "add": "va_0"}  # the same function, used twice
        va.fail("plan", "relax.exp")
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod, "helper") == owners(mod) == {"exp": "", "add": "va_0"}
        assert {(e.function, e.op) for e in read_log(mod)} == {("main", "relax.exp"), ("helper", "relax.exp")}
        assert len(read_log(mod)) == 3  # one of them in the branch
        assert shape(mod) == [("helper", ""), ("main", ""), ("va_0", "va"), ("va_1", "va")]
        assert relax.analysis.well_formed(mod) is not False


def test_dynamic_shapes():
    @I.ir_module
    class M:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
            with R.dataflow():
                a = R.add(x, x)
                b = R.exp(a)
                c = R.nn.relu(b)
                R.output(c)
            return c

    with vendors("va") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(M)
        va.fail("plan", "relax.exp")
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod) == {"add": "va_0", "exp": "", "relu": "va_1"}
        assert relax.analysis.well_formed(mod) is not False
        assert_right(run(mod, X[:3]), np.exp(2 * X[:3]))


def test_equal_composites_with_different_symbols():
    @I.ir_module
    class M:
        @R.function
        def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("m", 4), "float32")):
            with R.dataflow():
                a = R.exp(x)
                b = R.exp(y)
                c = R.concat((a, b), axis=0)
                R.output(c)
            return c

    with vendors("va") as va:
        annotated = byoc.AnnotateExternalCompiler("va")(M)
        va.fail("plan", "relax.exp")
        mod = byoc.PartitionGraph()(annotated)
        assert owners(mod) == {"exp": "", "exp#2": "", "concat": ""}
        assert relax.analysis.well_formed(mod) is not False
        assert_right(run(mod, X[:1], X[:3]), np.exp(np.concatenate([X[:1], X[:3]])))
