"""The page shows an operator as it is, and its rows for the tests work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tvm import relax

from tests.harness import accept, data, refuse

ROOT = Path(__file__).resolve().parents[2]
LOWERING, ROWS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "add_an_op.md").read_text(), re.S)


def test_the_lowering_is_the_one_in_the_source() -> None:
    assert LOWERING in (ROOT / "patterns" / "dnnl" / "elementwise.py").read_text()


@pytest.mark.native
@pytest.mark.parametrize("row", ROWS.strip().splitlines())
def test_the_rows_hold(row: str) -> None:
    case, *reason = eval(row, {"accept": accept, "refuse": refuse, "data": data, "relax": relax, "op": relax.op}).values
    if reason:
        case.is_refused(*reason)
    else:
        case.offloads().matches()
