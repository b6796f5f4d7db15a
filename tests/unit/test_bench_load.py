"""`bench.load`: each engine in a process of its own, the same numbers from all, and the table."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from bench import load


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(load.MODELS, "tiny", lambda: load._dense(width=64, layers=2))
    return "tiny"


@pytest.mark.native
def test_records_and_table(tiny, tmp_path):
    records = load.measure(tiny, ["byoc", "onnxruntime"], threads=1, rounds=1, folder=tmp_path)
    assert [r["engine"] for r in records] == ["byoc", "onnxruntime"]
    for record in records:
        assert record["weights_bytes"] == 4 * 2 * (64 * 64 + 64)
        assert record["load_s"] > 0 and record["first_run_s"] > 0
        assert record["imports_bytes"] <= record["after_load_bytes"] <= record["peak_bytes"]
    assert records[0]["build_s"] > 0 and "build_s" not in records[1]
    table = load.to_table(records)
    assert table.row_count == 2


def test_bert_base_has_its_size():
    proto = load.MODELS["bert_base"]()
    weights = sum(len(w.raw_data) for w in proto.graph.initializer)
    assert 430e6 < weights < 440e6
    ids, mask = load.random_inputs(proto).values()
    assert ids.shape == mask.shape == (1, 128) and ids.dtype == np.int64


def test_unknown_engines_are_named():
    ran = CliRunner().invoke(load.main, ["--engines", "byoc,abacus"])
    assert ran.exit_code == 2
    assert "unknown engines abacus; expected some of byoc, onnxruntime, openvino" in ran.output


def test_medians_of_times_and_largest_memory():
    assert load._merged("load_s", [3.0, 1.0, 2.0]) == 2.0
    assert load._merged("peak_bytes", [3, 1, 2]) == 3
    assert load._merged("version", ["1", "1"]) == "1"
