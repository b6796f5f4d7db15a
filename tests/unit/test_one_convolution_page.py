"""The page that walks through one convolution and one refusal names what is there, and few files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc

ROOT = Path(__file__).resolve().parents[2]
TAKEN, REFUSED = (ROOT / "docs" / "one_convolution.md").read_text().split("\n## ")[1:]
#: a step: its number, file, and name in it
STEP = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \|", re.M)


@pytest.mark.parametrize(("walk", "most"), [(TAKEN, 15), (REFUSED, 3)], ids=["taken", "refused"])
def test_a_walk_is_short_and_names_what_is_there(walk: str, most: int) -> None:
    steps = STEP.findall(walk)
    assert [int(number) for number, _, _ in steps] == list(range(1, len(steps) + 1))
    assert 1 < len({file for _, file, _ in steps}) <= most
    for _, file, name in steps:
        name = re.escape(name)
        defines = rf"^(def|class|#define) {name}\b|^\S.* {name}\(" if ":" not in name else rf"^\S*\s*\S* ?{name}\("
        assert re.search(defines, (ROOT / file).read_text(), re.M), f"{file} has no {name}"


def test_the_reason_is_the_one_that_the_page_shows() -> None:
    k = tvm.tirx.Var("k", "int64")
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (1, 3, 8, 8)), ("w", (k, 3, 3, 3))))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            result = bb.emit_output(relax.op.nn.conv2d(x, w))
        bb.emit_func_output(result)
    (call,) = byoc.explain(bb.get(), "dnnl").calls
    assert call.reasons[0] in REFUSED
