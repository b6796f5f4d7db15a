"""What a prompt and a notebook show of results."""

from __future__ import annotations

import importlib
import os
import sys

import numpy as np
import onnx
import pytest

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y) { r = Softmax(x) y = Relu(r) }'
)


def test_one_line_each():
    run = byoc.Runner(byoc.compile(MODEL))
    x = np.ones((2, 3), "float32")
    report, times, check = byoc.explain(MODEL), byoc.profile(run, [x], repeat=1), byoc.verify(MODEL, [x])
    assert repr(run) == "<Runner: x float32[N, 3] -> y float32[N, 3]>"
    assert "<td>input</td><td>x</td><td>float32[N, 3]</td>" in run._repr_html_()
    assert repr(report) == "<Report: 2 of 2 calls in 1 region>"
    assert repr(check) == "<Verification: 1 region, all right>"
    assert "medians of 1>" in repr(times)
    run.close()
    assert repr(run) == "<Runner, closed>" and "&lt;Runner, closed" in run._repr_html_()
    assert str(check) == check.to_text() and str(times) == times.to_text() and str(report) == report.to_text()
    assert report._repr_html_().startswith("<iframe")
    assert times._repr_html_().startswith("<iframe")
    assert check._repr_html_().startswith("<pre>")


@pytest.mark.parametrize("is_prompt", [True, False])
def test_a_notebook_says_that_a_model_is_compiled(is_prompt, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    if not is_prompt:
        monkeypatch.delattr(sys, "ps1")
    said = []
    for _ in range(2):  # the second time from the cache
        byoc.compile(MODEL, cache_dir=tmp_path)
        said.append(capsys.readouterr().err)
    assert said == ["Compiling a model …\n" if is_prompt else "", ""]


@pytest.mark.parametrize(
    "name",
    ["", ".frontends.onnx.table", ".frontends.onnx.ops.products", ".patterns.dnnl.products", ".patterns.ccompiler",
     ".vendors.c_source", ".whole.table"],
)  # fmt: skip
def test_a_module_can_be_reloaded(name):
    """What autoreload does when a file changes; in a child, since the classes of a reloaded module are others."""
    run, x = byoc.Runner(byoc.compile(MODEL)), np.ones((2, 3), "float32")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            importlib.reload(sys.modules["tvm_byoc_dnnl" + name])
            again = byoc.Runner(byoc.compile(MODEL))
            code = int(not (np.array_equal(again(x), run(x)) and byoc.explain(MODEL).totals.offloaded_calls == 2))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
