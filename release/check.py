"""Checks the files of a release: names, versions, licences, and that the sdist is complete.

auditwheel has checked before which libraries and symbols the wheel needs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TAG = "py3-none-manylinux_2_28_x86_64"
LICENCES = {"LICENSE", "THIRD-PARTY-NOTICES.txt", "GPL-3.0.txt", "GCC-exception-3.1.txt"}
#: package → the files of others that its folder of libraries must have
OF_OTHERS = {
    "tvm_byoc_dnnl": ("libgomp.so.1",),
    "tvm_byoc_runtime": ("libgomp.so.1", "libdnnl.so.3", "libdnnl-THIRD-PARTY-PROGRAMS.txt"),
}


def problems_of_wheel(wheel: Path, version: str) -> Iterable[str]:
    """What is wrong with a wheel: its name, metadata, licences and libraries."""
    package = wheel.name.partition("-")[0]
    if package not in OF_OTHERS or wheel.name != f"{package}-{version}-{TAG}.whl":
        yield f"the wheel is called {wheel.name}; expected version {version} and the tag {TAG}"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(n.partition("/")[0] for n in names if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    if metadata["Version"] != version:
        yield f"the wheel says version {metadata['Version']}; pyproject.toml says {version}"
    found = {Path(n).name for n in names if n.startswith(f"{info}/licenses/")}
    yield from (f"the wheel lacks the licence file {name}" for name in sorted(LICENCES - found))
    for name in OF_OTHERS.get(package, ()):
        if f"{package}/lib/{name}" not in names:
            yield f"the wheel lacks {name}; `make wheel` adds it"
    copies = [n for n in names if ".libs/" in n]
    if copies:
        yield f"auditwheel has copied libraries that no licence file names: {', '.join(copies)}"


def problems_of_sdist(sdist: Path, version: str) -> Iterable[str]:
    """What is wrong with an sdist: its version, and files of the repository that it lacks."""
    if sdist.name != f"tvm_byoc_dnnl-{version}.tar.gz":
        yield f"the sdist is called {sdist.name}; expected version {version}"
    with tarfile.open(sdist) as archive:
        found = {n.partition("/")[2] for n in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, text=True, capture_output=True).stdout
    # Of folders that the package shows a second time through symlinks, tar has the files.
    files = {n for n in tracked.splitlines() if (ROOT / n).exists() and not (ROOT / n).is_symlink()}
    yield from (f"the sdist lacks {n}" for n in sorted(files - found - {".gitignore"}))


def problems_of_changelog(text: str, version: str) -> Iterable[str]:
    """The top section of the changelog must be this version, and have a date."""
    top = re.search(r"^## (.*)$", text, re.M)
    if top is None or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", top.group(1)):
        yield f"CHANGELOG.md begins with {top.group(1) if top else None!r}; a release needs '{version} (YYYY-MM-DD)'"


def main(folder: Path) -> int:
    """Check the wheels and the sdist in a folder; what is wrong is printed."""
    match = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert match is not None
    version = match.group(1)
    wheels, (sdist,) = sorted(folder.glob("*.whl")), folder.glob("*.tar.gz")
    wrong = [p for wheel in wheels for p in problems_of_wheel(wheel, version)]
    found = {wheel.name.partition("-")[0] for wheel in wheels}
    wrong += [f"there is no wheel of {package}" for package in sorted(OF_OTHERS.keys() - found)]
    wrong += problems_of_sdist(sdist, version)
    for line in wrong:
        print(f"wrong: {line}")
    for line in problems_of_changelog((ROOT / "CHANGELOG.md").read_text(), version):
        print(f"to do before you publish: {line}")
    if not wrong:
        print(f"{', '.join(path.name for path in (*wheels, sdist))} are complete")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
