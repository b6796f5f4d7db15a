"""ONNX's own backend tests, through `tvm_byoc_dnnl.onnx_backend`.

Every case that does not pass has a line in onnx_known_failures.txt. It is an error if a case fails without a line,
passes in spite of one, or fails in another way than its line says: `make docs-conformance` writes the record again,
and somebody reviews the difference. An offloaded region that computes wrong numbers is an error under every version.
"""

from __future__ import annotations

import pytest

from tests.conformance import onnx_suite

RECORDED_FOR, KNOWN = onnx_suite.read_record("ours")
STOCK_FOR, STOCK = onnx_suite.read_record("stock")
CASES = onnx_suite.cases()

#: Under other versions nobody has recorded which cases pass; what an offloaded region computes is right under all.
IS_RECORDED = onnx_suite.versions() == RECORDED_FOR


def _parameters() -> list[object]:
    """All cases; those beyond the sample carry the marker that leaves them out of `make test`."""
    return [pytest.param(name, marks=() if onnx_suite.sampled(name) else pytest.mark.onnx) for name in CASES]


@pytest.mark.parametrize("name", _parameters())
def test_case(name: str) -> None:
    outcome = onnx_suite.run_case(name, CASES[name])
    if not IS_RECORDED:
        assert outcome.status != "wrong" or not outcome.regions, f"wrong, and offloaded: {outcome.reason}"
        if outcome.status != "passed":
            pytest.xfail(f"{outcome.status}, the record is for {RECORDED_FOR}: {outcome.reason}")
        return
    known = KNOWN.get(name, onnx_suite.Outcome(name, "passed"))
    assert not (outcome.status == "wrong" and outcome.regions), f"wrong, and offloaded: {outcome.reason}"
    assert outcome.status == known.status, (
        f"{name}: {outcome.status}; recorded is {known.status}; {outcome.reason or 'it passes now'}"
    )
    if known.status != "passed":
        pytest.xfail(f"{known.status}: {known.reason}")


@pytest.mark.skipif(not IS_RECORDED, reason=f"other versions of the suite have other cases than {RECORDED_FOR}")
def test_every_known_failure_is_a_case() -> None:
    assert set(KNOWN) <= set(CASES)
    assert set(STOCK) <= set(CASES)
    assert STOCK_FOR == RECORDED_FOR


def test_nothing_that_stock_tvm_passes_fails_here() -> None:
    assert not {name: KNOWN[name].reason for name in KNOWN if name not in STOCK}
