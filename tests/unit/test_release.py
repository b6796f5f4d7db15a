"""The checks of a release find what is wrong; the image in the docs is the one that is tried."""

from __future__ import annotations

import importlib.util
import io
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TAG = "py3-none-manylinux_2_28_x86_64"
LICENCES = ["LICENSE", "THIRD-PARTY-NOTICES.txt", "GPL-3.0.txt", "GCC-exception-3.1.txt"]


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / "release" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check, docker = load("check"), load("docker")


PACKAGES = ["tvm_byoc_dnnl", "tvm_byoc_runtime"]


def make_wheel(
    folder: Path, package: str, tag: str = TAG, version: str = "1.0", licences=LICENCES, libraries=None
) -> Path:
    path = folder / f"{package}-1.0-{tag}.whl"
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.4\nName: {package}\nVersion: {version}\n")
        for name in licences:
            archive.writestr(f"{info}/licenses/licenses/{name}", "text")
        for name in check.OF_OTHERS[package] if libraries is None else libraries:
            archive.writestr(name if "/" in name else f"{package}/lib/{name}", "")
    return path


@pytest.mark.parametrize("package", PACKAGES)
def test_a_whole_wheel_is_right(tmp_path: Path, package: str) -> None:
    assert list(check.problems_of_wheel(make_wheel(tmp_path, package), "1.0")) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tag": "py3-none-linux_x86_64"}, "expected version 1.0 and the tag"),
        ({"version": "0.9"}, "the wheel says version 0.9"),
        ({"licences": LICENCES[:-1]}, "lacks the licence file GCC-exception-3.1.txt"),
        ({"libraries": ()}, "lacks libgomp.so.1"),
        ({"libraries": ("libgomp.so.1", "tvm_byoc_dnnl.libs/libz.so")}, "copied libraries .*libz.so"),
    ],
)
def test_a_wheel_with_a_fault_is_refused(tmp_path: Path, changes, message) -> None:
    (problem,) = check.problems_of_wheel(make_wheel(tmp_path, "tvm_byoc_dnnl", **changes), "1.0")
    assert re.search(message, problem)


def test_the_runtimes_wheel_has_the_licences_of_its_libraries(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tvm_byoc_runtime", libraries=("libgomp.so.1",))
    missing = [line.split()[3].rstrip(";") for line in check.problems_of_wheel(wheel, "1.0")]
    assert missing == ["libdnnl.so.3", "libdnnl-THIRD-PARTY-PROGRAMS.txt"]


def test_an_sdist_without_a_file_is_refused(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("git knows which files there are")
    path = tmp_path / "tvm_byoc_dnnl-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("tvm_byoc_dnnl-1.0/README.md"), io.BytesIO())
    found = list(check.problems_of_sdist(path, "1.0"))
    assert "the sdist lacks pyproject.toml" in found
    assert "the sdist lacks README.md" not in found


def test_a_release_needs_a_dated_section() -> None:
    assert list(check.problems_of_changelog("# Changelog\n\n## 1.0 (2026-01-31)\n", "1.0")) == []
    assert list(check.problems_of_changelog("# Changelog\n\n## 1.0 (unreleased)\n", "1.0"))


def test_the_image_in_the_docs_is_the_one_that_is_tried() -> None:
    shown = re.search(r"```dockerfile\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.S)
    tried = (ROOT / "release" / "Dockerfile").read_text()
    assert list(docker.lines_of(shown.group(1))) == list(docker.lines_of(tried))
    known = {name.removeprefix("_").upper() for name in vars(docker.Image)}
    assert {instruction for instruction, _ in docker.lines_of(tried)} <= known
