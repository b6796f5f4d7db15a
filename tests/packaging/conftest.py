"""A clean copy of the source, its sdist and wheel, and virtual environments to install them in: once per run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

#: the source of a package that is installed before its tests run
collect_ignore = ["contract_1"]

ROOT = Path(__file__).resolve().parents[2]
# Halves the time to compile; nothing here depends on the speed of what was compiled.
UNOPTIMISED = ("--config-settings", "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0")
# Files that git ignores, and those of git itself.
_NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "lib", "*.egg-info", "*.so", "__pycache__", ".*_cache", ".hypothesis"
)


def clean_environment() -> dict[str, str]:
    """Environment variables without those that lead to the source tree."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Standard output of a command that must succeed; neither the source tree nor PYTHONPATH help it."""
    env = clean_environment() | env
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, text=True, capture_output=True)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees what this one has installed, except the package itself."""

    path: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder into which it installs."""
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.path), "platbase": str(self.path)}))

    def pip(self, *arguments: str | Path) -> str:
        """Run this environment's pip on that one."""
        return run(sys.executable, "-m", "pip", "--python", self.python, *arguments, cwd=self.path)

    def run(self, code: str, *arguments: str | Path, **env: str) -> str:
        """Output of a Python program; TVM's warning that a backend does not load is an error."""
        return run(self.python, "-W", "error:Failed to autoload", "-c", code, *arguments, cwd=self.path, **env)


@pytest.fixture(scope="session")
def copy_source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a copy of the source as a clean clone has it."""

    def copy() -> Path:
        target = tmp_path_factory.mktemp("source") / "tree"
        shutil.copytree(ROOT, target, symlinks=True, ignore=_NOT_SOURCE)
        return target

    return copy


@pytest.fixture(scope="session")
def sdist(copy_source: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of a clean copy."""
    out = tmp_path_factory.mktemp("sdist")
    build = "import sys; from scikit_build_core.setuptools import build_meta as b; print(b.build_sdist(sys.argv[1]))"
    name = run(sys.executable, "-c", build, out, cwd=copy_source()).splitlines()[-1]
    return out / name


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel made from the sdist in an environment of the build's own, as `pip install` makes it."""
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", *UNOPTIMISED, "--wheel-dir", out, sdist, cwd=out)
    (built,) = out.iterdir()
    return built


def _lend(environment: Environment, without: tuple[str, ...]) -> None:
    """Link what is installed here into ``environment``: installing it again would take minutes."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(without):
            (environment.site_packages / entry.name).symlink_to(entry)
    for wheel in "onednn-cpu-gomp", "onednn-devel-cpu-gomp":  # their files lie outside of site-packages
        if wheel.replace("-", "_").startswith(without):
            continue
        for file in distribution(wheel).files or ():
            target = Path(os.path.normpath(environment.site_packages / file))
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(file.locate())).resolve())


@pytest.fixture(scope="session")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    """Makes environments; ``without`` leaves out packages whose files start so."""

    def create(*without: str) -> Environment:
        environment = Environment(tmp_path_factory.mktemp("environment") / "venv")
        venv.create(environment.path, with_pip=False)
        _lend(environment, ("tvm_byoc_dnnl", "__editable__", *without))
        return environment

    return create


@pytest.fixture(scope="session")
def installed(wheel: Path, new_environment: Callable[..., Environment]) -> Environment:
    """An environment with the wheel installed."""
    environment = new_environment()
    environment.pip("install", "--no-deps", wheel)
    return environment
