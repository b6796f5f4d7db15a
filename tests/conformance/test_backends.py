"""The backends of this repository pass the kit for vendors: a share of it in every run, all of it on request."""

from __future__ import annotations

import pytest

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.conformance import run_conformance
from tvm_byoc_dnnl.vendors.namespaces import namespace

BACKENDS = [pytest.param("dnnl", marks=pytest.mark.native), "ccompiler"]


@pytest.mark.kit
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_conforms(backend: str) -> None:
    report = run_conformance(backend)
    assert report.ok, report.to_text()
    assert not report.notes


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_share_of_the_cases_conforms(backend: str) -> None:
    report = run_conformance(backend, share=0.02)
    assert report.ok, report.to_text()
    taken = {case.subject for case in report.cases if case.status == "taken"}
    assert {f"{backend}.{name}" for name in namespace(backend).patterns} <= taken
    assert len(taken & set(byoc.supported_ops(backend))) > 50


@pytest.mark.parametrize("backend", ["dnnl", "ccompiler"])
def test_every_pattern_has_an_example(backend: str) -> None:
    without = [name for name, pattern in namespace(backend).patterns.items() if pattern.example is None]
    assert not without, f"register these with example=, see patterns/{backend}/: {without}"
