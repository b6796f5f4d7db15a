"""The backends for libraries of others: built, installed beside ours in a clean environment, and tested there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, Environment, run

#: backend → the package of its library, the most lines of its code without tests, and the backends that it uses
BACKENDS = {
    "openvino": ("openvino", 450, ()),
    "litert": ("ai_edge_litert", 500, ()),
    "ethosu": ("ethosu.vela", 200, ("litert",)),
}


@pytest.mark.parametrize("name", BACKENDS)
def test_it_is_short_and_uses_public_functions_only(name: str) -> None:
    files = sorted((ROOT / "examples" / f"{name}_backend" / "src").rglob("*.py"))
    text = "".join(path.read_text() for path in files)
    assert len(text.splitlines()) <= BACKENDS[name][1]
    assert "tvm_byoc_dnnl." not in text
    assert "byoc._" not in text


@pytest.mark.packaging
@pytest.mark.parametrize("name", BACKENDS)
def test_its_own_tests_pass(name: str, installed: Environment, tmp_path: Path) -> None:
    library, _, uses = BACKENDS[name]
    pytest.importorskip(library)
    for used in (*uses, name):
        source = tmp_path / f"{used}_backend"
        shutil.copytree(ROOT / "examples" / source.name, source, ignore=shutil.ignore_patterns("*.egg-info"))
        installed.pip("install", "--no-deps", "--no-build-isolation", source)
    run(installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=source)
