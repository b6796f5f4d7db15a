"""The backends of this repository pass the kit that we hand to vendors."""

from __future__ import annotations

import pytest

from tvm_byoc_dnnl.testing.conformance import run_conformance


@pytest.mark.kit
@pytest.mark.slow
@pytest.mark.native
def test_dnnl_conforms() -> None:
    report = run_conformance("dnnl")
    assert report.ok, report.to_text()


@pytest.mark.kit
@pytest.mark.slow
def test_ccompiler_conforms() -> None:
    report = run_conformance("ccompiler")
    assert report.ok, report.to_text()
