"""Devices that round in their own way conform with a tolerance in steps; a fault of a neighbour is its own."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from tvm import relax, te
from tvm.relax import op as R

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.cli import cli
from tvm_byoc_dnnl.testing import conformance
from tvm_byoc_dnnl.testing.__main__ import main
from tvm_byoc_dnnl.testing.conformance import run_conformance

pytestmark = pytest.mark.native
VENDOR, NEIGHBOUR = "steps_npu", "wrong_npu"
SHAPE = (2, 6)


def conversion(function, x, value, out):
    return function(x, relax.const(np.float32(value)), byoc.make_constant(np.int8(3)), axis=0, out_dtype=out)


def total(x, y):
    real = R.add(conversion(R.dequantize, x, 0.25, "float32"), conversion(R.dequantize, y, 0.5, "float32"))
    return conversion(R.quantize, real, 0.5, "int8")


@pytest.fixture
def vendor():
    """A backend for sums of int8 whose results are ``off`` steps too large in every second place."""

    def register(off):
        def codegen(functions, _options, _names):
            return [module(f) for f in functions]

        def module(region):
            groups = [byoc.quantized(v) for _, v in byoc.bindings_of(region) if isinstance(v, relax.Call)]
            if len(groups) != 1 or len(region.params) != 2:
                raise byoc.Reject("one sum of two tensors in a region")
            numbers = [(float(t.scales), int(t.zero_points)) for t in (*groups[0].inputs, groups[0].output)]
            return byoc.blob_module(VENDOR, str(region.attrs["global_symbol"]), json.dumps(numbers).encode(), "")

        def load(data):
            first, second, last = json.loads(data)

            def run(*tensors):
                x, y, *results = map(np.from_dlpack, tensors)
                real = (x.astype("float64") - first[1]) * first[0] + (y.astype("float64") - second[1]) * second[0]
                exact = np.rint(real / last[0]) + last[1]
                exact.reshape(-1)[::2] += off
                for result in results:
                    np.copyto(result, np.clip(exact, -128, 127).astype("int8"))

            return run

        byoc.register_quantization(VENDOR, ["add"], override=True)
        byoc.register_codegen(VENDOR, codegen, override=True)
        byoc.register_blob_runner(VENDOR, lambda words: True, load)

    yield register
    byoc.unregister_compiler(VENDOR)


@pytest.mark.parametrize(("off", "tolerances", "ok"), [(0, {}, True), (1, {}, False), (1, {"int8": "1 step"}, True)])
def test_a_backend_conforms_within_the_steps_that_are_allowed(vendor, off, tolerances, ok):
    vendor(off)
    report = run_conformance(VENDOR, share=0.2, tolerances=tolerances, isolated=False)
    assert report.ok == ok, report.to_text()


def test_more_steps_than_allowed_are_wrong(vendor):
    vendor(3)
    report = run_conformance(VENDOR, share=0.2, tolerances={"int8": 2}, isolated=False)
    assert any("tolerance 2 (int8)" in case.detail for case in report.failures)


def test_the_command_line_takes_steps(vendor):
    vendor(1)
    given = [VENDOR, "--share", "0.05", "--in-process", "--tolerance"]
    assert CliRunner().invoke(main, [*given, "int8=1 step"]).exit_code == 0
    refused = CliRunner().invoke(main, [*given, "int8=half"])
    assert refused.exit_code == 2 and "tolerance int8=half; expected" in refused.output


@pytest.mark.parametrize(("tolerance", "ok"), [(None, False), ({"int8": "1 step"}, True), ({"int8": 0}, False)])
def test_verify_takes_steps(vendor, tolerance, ok):
    vendor(1)
    model = byoc.pattern_example(total, SHAPE, SHAPE, dtype="int8")()
    inputs = list(np.random.default_rng(0).integers(-50, 50, (2, *SHAPE)).astype("int8"))
    report = byoc.verify(model, inputs, compiler=VENDOR, tolerance=tolerance, policy=byoc.RegionPolicy())
    assert report.ok == ok, report.to_text()
    assert report.regions[0].gap == 1


@pytest.mark.parametrize("given", ["int8=1 step,float32", "x", "int8=-1"])
def test_verify_refuses_what_is_no_tolerance(given, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    result = CliRunner().invoke(cli, ["verify", str(tmp_path / "m.onnx"), "--tolerance", given])
    assert "expected a share of the largest value" in str(result.exception)


def test_a_neighbour_that_fails_alone_is_not_the_backends_fault(monkeypatch):
    """The neighbour takes everything that the tested backend leaves, and computes it wrong."""

    def negated(region, _builder):
        x = te.placeholder(region.params[0].ty.shape.values, "float32", "x")
        return te.create_prim_func([x, te.compute(x.shape, lambda *i: -x[i], "y")], "int64")

    monkeypatch.setattr(conformance, "_PARTNERS", (NEIGHBOUR,))
    byoc.register_annotate_compiler(VENDOR, "relax.abs", lambda attrs, args: byoc.dtype_of(args[0].ty) == "float32")
    byoc.register_target_hooks(VENDOR)
    ops = ["relax.abs", "relax.sin", "relax.tan", "relax.erf"]
    byoc.register_annotate_compiler(NEIGHBOUR, ops, lambda attrs, args: byoc.dtype_of(args[0].ty) == "float32")
    byoc.register_target_hooks(NEIGHBOUR, relax_to_tir=byoc.for_each_region(negated))
    try:
        report = run_conformance(VENDOR, isolated=False)
    finally:
        for name in (VENDOR, NEIGHBOUR):
            byoc.unregister_compiler(name)
    shared = [case for case in report.cases if "shared by" in case.what]
    skipped = [case for case in shared if case.status == "skipped" and case.detail.startswith(f"{NEIGHBOUR} alone: ")]
    assert skipped and not [case for case in shared if case.status == "failed"]
