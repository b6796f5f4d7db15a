"""The generated pages are current."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_op_support_page_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
