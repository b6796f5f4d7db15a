"""The backend for OpenVINO: built, installed beside ours in a clean environment, and tested there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, Environment, run

PACKAGE = ROOT / "examples" / "openvino_backend"
LINES = 400  # of its code, without tests


def test_it_is_short_and_uses_public_functions_only() -> None:
    files = sorted((PACKAGE / "src").rglob("*.py"))
    text = "".join(path.read_text() for path in files)
    assert len(text.splitlines()) <= LINES
    assert "tvm_byoc_dnnl." not in text and "byoc._" not in text


@pytest.mark.packaging
def test_its_own_tests_pass(installed: Environment, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    source = tmp_path / "openvino_backend"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("*.egg-info"))
    installed.pip("install", "--no-deps", "--no-build-isolation", source)
    run(installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=source)
