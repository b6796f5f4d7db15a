"""A vendor in under 40 lines: predicate, pattern, codegen; beside dnnl in one module."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_byoc_dnnl as byoc
from tests.c_kernel import c_kernel, c_module
from tests.harness import Case, assert_right, const, data
from tvm_byoc_dnnl.ir.relax_utils import codegen_of
from tvm_byoc_dnnl.patterns.dnnl import library
from tvm_byoc_dnnl.vendors.namespaces import namespace
from tvm_byoc_dnnl.vendors.portable import portable_codegen


# ---- the vendor -------------------------------------------------------------------------------------------
@byoc.register_annotate_compiler("toy", "relax.sign")
def sign(attrs, args):
    return args[0].ty.dtype == "float32" or byoc.Reject(f"dtype {args[0].ty.dtype}; toy has float32 only")


byoc.register_pattern(
    "toy", "scaled_sum", is_op("relax.multiply")(is_op("relax.add")(wildcard(), wildcard()), wildcard())
)

_EXPRESSIONS = {"toy.relax.sign": "({0} > 0) - ({0} < 0)", "toy.scaled_sum": "({0} + {1}) * {2}"}


def _c_source(f):
    value, composites, body = {p: f"a[{k}][i]" for k, p in enumerate(f.params)}, {}, ""
    for b in f.body.blocks[0].bindings:
        if isinstance(b.value, relax.Function):
            composites[b.var] = str(b.value.attrs["Composite"])
        else:
            expression = _EXPRESSIONS[composites[b.value.op]].format(*(value[a] for a in b.value.args))
            value[b.var] = f"v{len(value)}"
            body += f"float {value[b.var]} = {expression}; "
    return c_kernel(f.attrs["global_symbol"], f"{body} a[{len(f.params)}][i] = {value[f.body.body]};")


@byoc.register_codegen("toy")
def toy_codegen(functions, options, constant_names):
    return [c_module(f.attrs["global_symbol"], _c_source(f)) for f in functions]


# ---- its user ---------------------------------------------------------------------------------------------
@I.ir_module
class Mixed:
    @R.function
    def main(x: R.Tensor((2, 3, 5), "float32"), y: R.Tensor((2, 3, 5), "float32")):
        with R.dataflow():
            a = R.nn.softmax(x, axis=-1)
            b = R.sign(y)
            c = R.add(a, b)
            d = R.multiply(c, y)
            e = R.nn.softmax(d, axis=1)
            R.output(e)
        return e


@pytest.fixture(scope="module")
def expected():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((2, 3, 5)).astype("float32") for _ in range(2))
    stock = relax.VirtualMachine(tvm.compile(Mixed, "llvm"), tvm.cpu())["main"]
    return (x, y), stock(*map(tvm.runtime.tensor, (x, y))).numpy()


def _compilers(mod):
    return {gv.name_hint: f.attrs["Codegen"] for gv, f in mod.functions.items() if f.attrs and "Codegen" in f.attrs}


def test_toy_beside_dnnl(expected, tmp_path):
    (x, y), want = expected
    mod = byoc.partition(Mixed, ["toy", "dnnl"])
    assert _compilers(mod) == {"dnnl_0": "dnnl", "toy_0": "toy", "dnnl_1": "dnnl"}
    ex = tvm.compile(mod, "llvm", relax_pipeline="byoc")
    ex.export_library(str(tmp_path / "m.so"))
    assert_right(byoc.load(tmp_path / "m.so")(x, y), want, 1e-5, least=0.1, elementwise=True)


def test_priority_decides_who_takes_what_both_can(expected):
    (x, y), want = expected
    mod = byoc.partition(Mixed, ["dnnl", "toy"])
    assert _compilers(mod) == {"dnnl_0": "dnnl", "toy_0": "toy"}  # add and multiply are dnnl's now
    assert_right(byoc.Runner(byoc.compile(Mixed, ["dnnl", "toy"]))(x, y), want, 1e-5, least=0.1, elementwise=True)


def test_a_predicate_keeps_what_it_rejects():
    x = relax.Var("x", relax.TensorType((4,), "float64"))
    assert byoc.get_annotate_compiler("toy", "relax.sign")(None, [x]).reason == "dtype float64; toy has float32 only"


@pytest.mark.native
def test_two_namespaces_with_constants_of_their_own(tmp_path):
    """Each is built by itself, and neither loses what the other has."""
    byoc.register_namespace("second", codegen=portable_codegen("second", library.create_module), probe=library.probe)
    byoc.register_lowering("second", "relax.add", namespace("dnnl").lowerings["relax.add"])
    case = Case(
        lambda x, w, c: relax.op.matmul(relax.op.tan(relax.op.add(relax.op.matmul(x, w), c)), w),
        (data(16, 8), const(8, 8), const(16, 8)),
        compiler=["second", "dnnl"],
    )
    try:
        assert {codegen_of(f) for f in case.regions} == {"second", "dnnl"}
        ex = byoc.compile(case.module, case.compiler)
        ex.export_library(tmp_path / "both.so")
        x, w, c = case.arrays
        for run in (byoc.Runner(ex), byoc.load(tmp_path / "both.so")):
            assert_right(run(x), np.tan(x @ w + c) @ w, 1e-3, least=1.0, elementwise=True)
    finally:
        byoc.unregister_compiler("second")
