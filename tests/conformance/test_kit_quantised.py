"""The kit asks backends for quantised graphs: those of operators, and those that look like their patterns."""

from __future__ import annotations

import pytest
from tvm import relax, te
from tvm.relax import op
from tvm.relax.dpl import is_const, is_op, wildcard

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.conformance import run_conformance
from tvm_byoc_dnnl.testing.conformance.patterns import is_quantised, pattern_cases, quantised_cases
from tvm_byoc_dnnl.vendors.namespaces import namespace

VENDOR = "int8_vendor"


@pytest.fixture(autouse=True)
def vendor():
    yield
    byoc.unregister_compiler(VENDOR)


def _dequantised(data, scale, point, dtype):
    return op.dequantize(data, relax.const(scale, "float32"), relax.const(point, dtype), out_dtype="float32")


def _product(x, w):
    result = op.matmul(_dequantised(x, 0.25, 3, "uint8"), _dequantised(w, 0.5, 0, "int8"))
    return op.quantize(result, relax.const(64.0, "float32"), relax.const(5, "uint8"), out_dtype="uint8")


EXAMPLE = byoc.pattern_example(_product, (3, 20), (20, 12), dtype=["uint8", "int8"])


def _real():
    return is_op("relax.dequantize")(wildcard(), is_const(), is_const())


PATTERN = is_op("relax.quantize")(is_op("relax.matmul")(_real(), _real()), is_const(), is_const())


def test_a_quantised_pattern_is_tried_with_other_scales_and_zero_points():
    byoc.register_target_hooks(VENDOR)
    byoc.register_pattern(VENDOR, "product", PATTERN, example=EXAMPLE)
    (pattern,) = namespace(VENDOR).patterns.values()
    assert is_quantised(namespace(VENDOR), pattern_cases(VENDOR, pattern))
    report = run_conformance(VENDOR, isolated=False)
    assert report.ok, report.to_text()
    found = {case.what: case.status for case in report.cases}
    numbers = range(3)
    for what in (
        *(f"another zero point {i}" for i in numbers),
        *(f"a scale for each channel {i}" for i in numbers),
        *("operand 0 of int8", "operand 1 of uint8", "a fork: several results"),
    ):
        assert found.get(what, "taken") == "taken", what
    assert {"another zero point 2", "a scale for each channel 1", "operand 0 of int8"} <= set(found)


def test_a_pattern_that_does_not_read_scales_and_zero_points_is_found():
    def lower(region, _builder):
        x, w = (te.placeholder(p.ty.shape.values, str(p.ty.dtype), name) for p, name in zip(region.params, "xw"))
        k = te.reduce_axis((0, x.shape[1]), "k")
        whole = te.compute(
            (x.shape[0], w.shape[1]),
            lambda i, j: te.sum((x[i, k].astype("int32") - 3) * w[k, j].astype("int32"), axis=k),
        )
        real = te.compute(whole.shape, lambda i, j: te.round(whole[i, j].astype("float32") / 512) + 5)
        stored = te.compute(whole.shape, lambda i, j: te.max(te.min(real[i, j], 255), 0).astype("uint8"))
        return te.create_prim_func([x, w, stored], "int64")

    byoc.register_target_hooks(VENDOR, relax_to_tir=byoc.for_each_region(lower))
    byoc.register_pattern(VENDOR, "product", PATTERN, example=EXAMPLE)
    failures = {case.what: case.detail for case in run_conformance(VENDOR, isolated=False).failures}
    for what in ("another zero point 0", "another zero point 2", "a scale for each channel 1"):
        assert "result 0 differs" in failures[what]
    assert "its example" not in failures


def test_a_check_sees_scales_and_zero_points():
    def check(match):
        point = byoc.constant_numpy(match["source"].args[2]).item()
        return point == 0 or byoc.Reject(f"a zero point of {point}")

    byoc.register_target_hooks(VENDOR)
    real = {name: _real() for name in ("source", "weights")}
    product = is_op("relax.matmul")(*real.values())
    byoc.register_pattern(VENDOR, "product", product, annotations=real, check=check)
    assert "a zero point of 3" in byoc.explain(EXAMPLE(), VENDOR).to_text()


@pytest.mark.native
def test_quantised_operators_are_asked_of_a_backend_that_has_conversions():
    assert is_quantised(namespace("dnnl"), []) and is_quantised(namespace("ccompiler"), [])
    assert not quantised_cases("relax.sort")
    report = run_conformance("dnnl", only=["matmul", "permute_dims"], share=0.1, isolated=False)
    assert report.ok, report.to_text()
    asked = [case for case in report.cases if case.what.startswith("quantised")]
    assert {case.subject for case in asked} == {"relax.matmul", "relax.permute_dims"}
    assert all(case.status == "taken" for case in asked)
