"""The table of ops in the documentation is the one of the code."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from tvm_byoc_dnnl.te.computes import REFUSED
from tvm_byoc_dnnl.te.legalize import MENDED
from tvm_byoc_dnnl.te.translate import STRUCTURAL

DOCS = run_path(str(Path(__file__).parents[2] / "docs" / "te_support.py"))
PAGE, replace_table, te_support = (DOCS[name] for name in ("PAGE", "replace_table", "te_support"))


def test_the_page_is_current():
    text = PAGE.read_text()
    assert replace_table(text) == text, "run: make docs"


def test_every_entry_is_an_op_and_has_one_answer():
    ops = set(te_support())
    assert not set(REFUSED) & (set(STRUCTURAL) | set(MENDED))
    assert set(STRUCTURAL) | set(MENDED) | set(REFUSED) <= ops


def test_no_op_is_without_an_answer():
    unnamed = [name for name, (taken, how) in te_support().items() if not taken and name not in REFUSED]
    assert unnamed == [], "say in te/computes.py why these are refused"
