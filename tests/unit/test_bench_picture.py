"""`bench --picture`: the times as bars."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.testing.bench import check_picture, to_picture
from tvm_byoc_dnnl.testing.bench.measure import Comparison, Measurement, Settings, Spread


def measurement(engine: str, *blocks: float, failure: str = "") -> Measurement:
    return Measurement(engine, engine.title(), "1.0", blocks=[[b] for b in blocks], failure=failure)


def test_every_engine_with_a_time_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    engines = [measurement("byoc", 1.0, 2.0, 3.0), measurement("other", 4.0, 5.0), measurement("broken", failure="no")]
    drawn = to_picture([Comparison("net", engines, Spread(1.0, 1.0, 1.0))], Settings(), "svg").decode()
    for words in ("net", "Byoc", "Other", "2 ms", "4.5 ms", "engines that failed are left out"):
        assert f"<!-- {words} -->" in drawn or words in drawn
    assert "<!-- Broken -->" not in drawn


def test_a_file_that_is_no_picture_is_refused_before_measuring() -> None:
    with pytest.raises(InputError, match=r"\.svg, \.png, \.pdf; got result.json"):
        check_picture(Path("result.json"))
