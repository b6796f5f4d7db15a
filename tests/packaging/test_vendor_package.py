"""A vendor's first package, as `tvm-byoc new-backend` writes it: built, installed beside ours, and tested there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.packaging.conftest import Environment, run

pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def vendor(installed: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's source, written, built and installed."""
    source = tmp_path_factory.mktemp("vendor") / "package"
    run(installed.python, "-m", "tvm_byoc_dnnl", "new-backend", "my_npu", "-o", source, cwd=source.parent)
    installed.pip("install", "--no-deps", "--no-build-isolation", source)
    return source


def test_a_package_of_the_first_contract_works(installed: Environment, tmp_path: Path) -> None:
    """Its source stays as it was written for ``api=1``."""
    source = tmp_path / "package"
    shutil.copytree(Path(__file__).with_name("contract_1"), source)
    installed.pip("install", "--no-deps", "--no-build-isolation", source)
    run(installed.python, "-W", "error", "-c", "import tvm_byoc_dnnl as b; b.compilers()", cwd=tmp_path)
    run(installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=source)


def test_its_entry_point_is_enough(vendor: Path, installed: Environment) -> None:
    code = "import sys, tvm_byoc_dnnl as b; print('my_npu' in sys.modules, 'my_npu' in b.compilers())"
    assert installed.run(code).split() == ["False", "True"]


def test_its_own_tests_pass(vendor: Path, installed: Environment) -> None:
    run(installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=vendor)


def test_the_kit_runs_on_the_command_line(vendor: Path, installed: Environment) -> None:
    kit = installed.python, "-m", "tvm_byoc_dnnl.testing", "my_npu"
    shown = run(*kit, "--only", "abs", "--only", "my_npu.*", cwd=vendor)
    assert "my_npu conforms" in shown
    assert "my_npu.multiply_add" in shown
