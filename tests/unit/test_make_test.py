"""`make test` runs both halves of the tests, whichever fails, and reports both."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {"cmake": "0", "ctest": "$CPP_STATUS", "python": "$PY_STATUS"}


@pytest.fixture
def variables(tmp_path: Path) -> list[str]:
    """Of a make in which everything is built, and whose tools only say their names."""
    tools = tmp_path / "venv" / "bin"
    tools.mkdir(parents=True)
    for name, status in TOOLS.items():
        (tools / name).write_text(f"#!/bin/sh\necho ran {name}\nexit {status}\n")
        (tools / name).chmod(0o755)
    stamps = tmp_path / "venv" / ".deps", tmp_path / "build" / ".installed"
    for stamp in stamps:
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
    return [f"VENV={tmp_path / 'venv'}", f"BUILD={tmp_path / 'build'}"]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(("cpp", "py"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_both_halves_run_and_are_reported(variables: list[str], cpp: int, py: int) -> None:
    statuses = {"CPP_STATUS": str(cpp), "PY_STATUS": str(py)}
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | statuses
    done = subprocess.run(["make", "test", *variables], cwd=ROOT, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("ran")] == ["ran cmake", "ran ctest", "ran python"]
    halves = {"test-cpp": cpp, "test-py": py}
    passed, failed = ([name for name, status in halves.items() if bool(status) == wrong] for wrong in (False, True))
    assert lines[-1] == f"== passed: {' '.join(passed) or 'none'}; failed: {' '.join(failed) or 'none'}"
    assert bool(done.returncode) == bool(failed)
