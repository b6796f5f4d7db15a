"""Libraries and graphs that earlier builds of this package wrote: they work, or are refused by name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tvm

import tvm_byoc_dnnl as byoc
from tests.golden.make import BIAS, WEIGHT, format_version, graph, graph_path, model, path_of
from tests.harness import assert_right
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.graph import VERSION
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
        assert_right(run(x), np.maximum(x @ WEIGHT + BIAS, 0), 1e-5, least=0.1, elementwise=True)


def test_a_library_of_a_newer_format_is_refused_by_name(tmp_path):
    """The golden one with another version, in each of its saved modules."""
    data = path_of(format_version()).read_bytes()
    head = b"TVMBYOCD" + format_version().to_bytes(4, "little")
    assert data.count(head) == 2  # the region and the weights
    (tmp_path / "m.so").write_bytes(data.replace(head, b"TVMBYOCD" + (99).to_bytes(4, "little")))
    with pytest.raises(byoc.ArtifactError, match=r"format version 99 \(written by tvm-byoc-dnnl .*build it again"):
        byoc.load(tmp_path / "m.so")


def test_python_writes_the_golden_graph():
    assert json.loads(graph().to_json()) == json.loads(graph_path(VERSION).read_text()), "the format changed"


def test_the_library_reads_the_golden_graph():
    document = graph_path(VERSION).read_text()
    names = [constant["name"] for constant in json.loads(document)["constants"]]
    module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", "dnnl_0", document, names)
    assert module.inspect_source() == document


def test_a_graph_of_version_1_still_runs():
    document = graph_path(1).read_text()
    assert json.loads(document)["version"] == 1
    names = [constant["name"] for constant in json.loads(document)["constants"]]
    module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", "dnnl_0", document, names)
    module["__init_dnnl_0"]([tvm.runtime.tensor(value) for value in (WEIGHT, BIAS)])
    x = np.random.default_rng(0).standard_normal((5, 6)).astype("float32")
    y = tvm.runtime.tensor(np.empty((5, 4), "float32"))
    module["dnnl_0"](tvm.runtime.tensor(x), y)
    assert_right(y.numpy(), np.maximum(x @ WEIGHT + BIAS, 0), 1e-5, least=0.1, elementwise=True)


def test_a_description_of_another_version_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(metadata, "METADATA_VERSION", 8)
    ex = byoc.compile(model())
    monkeypatch.undo()
    with pytest.raises(
        byoc.ArtifactError, match=r"description has version 8 \(written by tvm-byoc-dnnl .*build it again"
    ):
        byoc.Runner(ex)
