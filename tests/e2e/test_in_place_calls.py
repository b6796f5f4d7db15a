"""Modules with calls that overwrite an argument: nothing that reads the old values may run behind them."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.failing_vendor import run
from tvm_byoc_dnnl.ir.relax_utils import codegen_of

T = R.Tensor((8, 8), "float32")


@I.ir_module
class BesideTheWriter:
    """The region of the two products forms behind the doubling of ``a``, which the first of them reads."""

    @R.function
    def main(x: T, w: T):
        with R.dataflow():
            a = R.tan(x)
            b = R.matmul(a, w)
            c = R.add(a, a)
            d = R.matmul(b, c)
            R.output(d)
        return d


@I.ir_module
class ThroughAReshape:
    """The same, and what is overwritten is read under another name."""

    @R.function
    def main(x: T, w: T):
        with R.dataflow():
            a = R.tan(x)
            view = R.reshape(a, (4, 16))
            back = R.reshape(view, (8, 8))
            b = R.matmul(back, w)
            c = R.add(a, a)
            d = R.matmul(b, c)
            R.output(d)
        return d


@I.ir_module
class ThroughATuple:
    """The same, and a tuple holds what is read."""

    @R.function
    def main(x: T, w: T):
        with R.dataflow():
            a = R.tan(x)
            pair = (a, w)
            first = pair[0]
            b = R.matmul(first, w)
            c = R.add(a, a)
            e = R.multiply(c, c)
            d = R.matmul(b, e)
            R.output(d)
        return d


def overwriting(mod, var="c"):
    """``mod`` with the addition of a tensor to itself done in place, as DataflowUseInplaceCalls writes it."""
    made = relax.transform.DataflowUseInplaceCalls()(mod)
    if "call_tir_inplace" not in str(made):  # it is careful about aliases; a user who knows better is not
        made = _rewritten(mod, var)
    assert "call_tir_inplace" in str(made)
    return made


def _rewritten(mod, var):
    doubled = relax.transform.DataflowUseInplaceCalls()(BesideTheWriter)
    (kernel,) = [gv for gv in doubled.get_global_vars() if gv.name_hint.endswith("_inplace")]
    (call,) = [b.value for b in doubled["main"].body.blocks[0].bindings if b.var.name == var]

    @relax.expr_functor.mutator
    class Rewrite(relax.PyExprMutator):
        def visit_call_(self, expr):
            expr = super().visit_call_(expr)
            if expr.op.name != "relax.add":
                return expr
            return relax.Call(call.op, [gv, relax.Tuple(list(expr.args))], call.attrs, call.ty_args)

    mod = tvm.IRModule(dict(mod.functions.items()))
    gv = tvm.ir.GlobalVar(kernel.name_hint)
    relax.expr._update_type(gv, kernel.ty)
    mod[gv] = doubled[kernel]
    mod["main"] = Rewrite(mod).visit_expr(mod["main"])
    return mod


#: so that only the products are oneDNN's
PRODUCTS = byoc.RegionPolicy(exclude=["relax.add", "relax.multiply", "relax.reshape"], on_top=True)


@pytest.mark.parametrize("model", [BesideTheWriter, ThroughAReshape, ThroughATuple], ids=lambda m: m.__name__)
def test_readers_stay_in_front_of_the_call_that_overwrites(model):
    mod = overwriting(model)
    x, w = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8)).astype("float32")
    partitioned = byoc.partition(mod, policy=PRODUCTS)
    assert any(codegen_of(f) for f in partitioned.functions.values())
    assert_right(run(partitioned, x, w), run(model, x, w, pipeline="default"))
