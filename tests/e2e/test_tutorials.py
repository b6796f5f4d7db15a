"""The code of the tutorials runs as it stands, block after block."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
#: further pages run with `make docs-site`
_FIRST = ("detector", "serve")


@pytest.mark.native
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.stem, marks=[] if p.stem in _FIRST else [pytest.mark.sweep]) for p in PAGES],
)
def test_tutorial(page: Path, tmp_path: Path) -> None:
    """In a process of its own: one of the pages forks, and they register operators."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_there_are_tutorials() -> None:
    assert [page.stem for page in PAGES] == ["detector", "fused_operator", "quantise", "serve"]
