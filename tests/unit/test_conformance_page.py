"""docs/conformance.md is current, and so are the records that it is written from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import onnx_suite

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    onnx_suite.versions() != onnx_suite.read_record("ours")[0], reason="the record is for other versions of onnx or TVM"
)
def test_the_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "conformance.py"), "--check"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("line", "message"),
    [("test_a | odd | reason", "unknown status"), ("test_b | wrong | a\ntest_b | wrong | b", "second line")],
)
def test_a_damaged_record_is_an_error(line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "record").write_text(f"# onnx 1, TVM 1: cases\n{line}\n")
    monkeypatch.setattr(onnx_suite, "record", lambda _engine: tmp_path / "record")
    with pytest.raises(ValueError, match=message):
        onnx_suite.read_record("ours")


def test_the_record_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_suite, "record", lambda _engine: tmp_path / "record")
    bad = onnx_suite.Outcome("test_b_cpu", "wrong", "1 | 2", 0)
    onnx_suite.write_record("ours", [bad, onnx_suite.Outcome("test_a_cpu", "passed")])
    assert onnx_suite.read_record("ours") == (onnx_suite.versions(), {"test_b_cpu": bad})


def test_what_a_case_ends_as() -> None:
    def end(error: Exception | None) -> str:
        def run() -> None:
            if error is not None:
                raise error

        return onnx_suite.run_case("test_x", run).status

    from tvm_byoc_dnnl.core.errors import UnsupportedError

    assert [end(e) for e in (None, AssertionError("a"), UnsupportedError("b"), ValueError(""))] == [
        "passed",
        "wrong",
        "unsupported",
        "failed",
    ]


def test_about_an_eighth_is_sampled() -> None:
    names = [f"test_{i}_cpu" for i in range(2000)]
    assert 200 < sum(map(onnx_suite.sampled, names)) < 300
