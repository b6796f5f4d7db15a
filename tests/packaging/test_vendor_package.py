"""The example of a vendor's package: built, installed beside ours in a clean environment, and tested there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, Environment, run

pytestmark = pytest.mark.slow

PACKAGE = ROOT / "examples" / "vendor_package"


@pytest.fixture(scope="module")
def vendor(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's source, built and installed."""
    source = tmp_path_factory.mktemp("vendor") / "vendor_package"
    shutil.copytree(PACKAGE, source)
    installed.pip("install", "--no-deps", "--no-build-isolation", source)
    return source


def test_its_entry_point_is_enough(vendor: Path, installed: Environment) -> None:
    code = "import sys, tvm_byoc_dnnl as b; print('toy_npu' in sys.modules, 'toy_npu' in b.compilers())"
    assert installed.run(code).split() == ["False", "True"]


def test_its_own_tests_pass(vendor: Path, installed: Environment) -> None:
    run(installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=vendor)


def test_the_kit_runs_on_the_command_line(vendor: Path, installed: Environment) -> None:
    kit = installed.python, "-m", "tvm_byoc_dnnl.testing", "toy_npu"
    shown = run(*kit, "--only", "abs", "--only", "toy_npu.*", cwd=vendor)
    assert "toy_npu conforms" in shown
    assert "toy_npu.multiply_add" in shown
