"""The README's code runs as it is written."""

import re
from pathlib import Path

import onnx
import pytest

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.testing.models import light_model

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(light_model("squeezenet"), "model.onnx")
    yield tmp_path
    byoc.unregister_compiler("my_npu")


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.strip().splitlines()[-1][:30])
def test_code_block(code, folder):
    exec(compile(code, "README.md", "exec"), {})


def test_there_are_blocks():
    assert len(BLOCKS) == 4
