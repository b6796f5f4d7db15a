"""Decoders that choose in a call whether they have a past, against ONNX Runtime: a first call, and steps behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tests.unit.merged_decoders import DEPTH, HEADS, KINDS, VOCABULARY, WIDTH, merged_decoder, outputs
from tvm_byoc_dnnl import Runner, compile, load, partition
from tvm_byoc_dnnl.core.tvm_fast import is_a
from tvm_byoc_dnnl.frontends import to_relax
from tvm_byoc_dnnl.ir.relax_utils import bindings_in
from tvm_byoc_dnnl.runtime.comparison import differences
from tvm_byoc_dnnl.testing.models import ort_run

pytestmark = pytest.mark.native


def _decode(model: Any, runner: Runner, batch: int, frames: int, first: int) -> None:
    random = np.random.default_rng(batch)
    feeds = {
        "input_ids": random.integers(0, VOCABULARY, (batch, first)),
        "encoder_hidden_states": random.standard_normal((batch, frames, WIDTH)).astype("float32"),
    }
    names = [name.replace("present", "past_key_values") for name in outputs()[1:]]
    feeds |= {name: np.zeros((batch, HEADS, 1, DEPTH), "float32") for name in names}
    feeds["use_cache_branch"] = np.array([False])
    for step in range(4):
        got = list(runner(*feeds.values()))
        wrong = differences(got, ort_run(model, feeds), 1e-4, least=1.0)
        assert not wrong, (step, wrong)
        feeds["input_ids"] = random.integers(0, VOCABULARY, (batch, 1))
        presents = dict(zip(names, got[1:], strict=True))
        feeds |= {name: np.asarray(value) for name, value in presents.items() if "decoder" in name or step == 0}
        feeds["use_cache_branch"] = np.array([True])


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_call_and_steps_behind_it(kind: str, tmp_path: Path) -> None:
    model = merged_decoder(kind)
    compiled = compile(model)
    for sizes in ((1, 5, 4), (3, 7, 1)):
        _decode(model, Runner(compiled), *sizes)
    if kind == "whisper":
        compiled.export_library(tmp_path / "decoder.so")
        _decode(model, load(tmp_path / "decoder.so"), 2, 3, 6)


def test_both_branches_have_regions() -> None:
    placed = partition(to_relax(merged_decoder("bart")))
    for name in ("then_branch", "else_branch"):
        called = {getattr(b.value.op, "name_hint", "") for b in bindings_in(placed[name]) if is_a(b.value, relax.Call)}
        assert any(name.startswith("dnnl_") for name in called)
