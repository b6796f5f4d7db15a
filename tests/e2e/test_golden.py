"""Libraries that earlier builds of this package wrote: those of this format work, others are refused by name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import tvm_byoc_dnnl as byoc
from tests.golden.make import BIAS, WEIGHT, format_version, model, path_of
from tvm_byoc_dnnl.pipeline import metadata

GOLDEN = sorted(path_of(0).parent.glob("format*.library"))


def version_of(path: Path) -> int:
    return int(re.fullmatch(r"format(\d+)", path.stem).group(1))


def test_the_current_format_has_a_golden_library():
    path = path_of(format_version())
    assert path in GOLDEN, f"the format changed: write {path.name} with `make golden`, and keep those that are there"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda p: p.stem)
def test_golden_library(golden, tmp_path):
    library = shutil.copy(golden, tmp_path / "m.so")
    if version_of(golden) != format_version():
        with pytest.raises(byoc.ArtifactError, match=rf"format version {version_of(golden)}.*build it again"):
            byoc.load(library)
        return
    run = byoc.load(library)
    assert run.input_names == ["x"]
    for n in (1, 5, 18):
        x = np.random.default_rng(n).standard_normal((n, 6)).astype("float32")
        np.testing.assert_allclose(run(x), np.maximum(x @ WEIGHT + BIAS, 0), rtol=1e-5, atol=1e-6)


def test_a_library_of_a_newer_format_is_refused_by_name(tmp_path):
    """The golden one with another version, in each of its saved modules."""
    data = path_of(format_version()).read_bytes()
    head = b"TVMBYOCD" + format_version().to_bytes(4, "little")
    assert data.count(head) == 2  # the region and the weights
    (tmp_path / "m.so").write_bytes(data.replace(head, b"TVMBYOCD" + (99).to_bytes(4, "little")))
    with pytest.raises(byoc.ArtifactError, match=r"format version 99 \(written by tvm-byoc-dnnl .*build it again"):
        byoc.load(tmp_path / "m.so")


def test_a_description_of_another_version_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(metadata, "METADATA_VERSION", 8)
    ex = byoc.compile(model())
    monkeypatch.undo()
    with pytest.raises(
        byoc.ArtifactError, match=r"description has version 8 \(written by tvm-byoc-dnnl .*build it again"
    ):
        byoc.Runner(ex)
