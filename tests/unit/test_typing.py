"""The types that users get: mypy checks a script as strictly as it can, and README, as pyright does."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from subprocess import run

import pytest

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl import _public

_NO_TYPES = "no-untyped-def,import-untyped"
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import numpy as np
import tvm_byoc_dnnl as byoc

ex = byoc.compile("m.onnx", threads=2, cache_dir="cache")
run = byoc.load("m.so", threads=1, workers=2)
x = np.ones(3)
reveal_type(ex)                                 # ByocExecutable
reveal_type(run(x))                             # ndarray | Any
reveal_type(run.named(x=x))                     # dict[str, ndarray]
reveal_type(run.submit(x))                      # Future[ndarray | list[ndarray]]
reveal_type(run.inputs)                         # tuple[TensorInfo, ...]
reveal_type(run.inputs[0].shape)                # tuple[int | str, ...] | None
reveal_type(byoc.profile(ex).steps[0].seconds)  # float
reveal_type(byoc.explain("m.onnx"))             # Report
reveal_type(byoc.verify("m.onnx"))              # Verification
byoc.nonsense                                   # Module has no attribute "nonsense"
byoc.compile("m.onnx", threds=3)                # Unexpected keyword argument "threds"
"""


def test_every_public_name_is_exported_to_type_checkers() -> None:
    imported = re.findall(r"\b(\w+) as (\w+)\b", Path(_public.__file__).read_text())
    assert sorted({*byoc.__all__} - {"__version__"}) == sorted(name for name, again in imported if name == again)
    assert (ROOT / "tvm_byoc_dnnl" / "py.typed").is_file()


def _blocks_of_readme(folder: Path) -> list[str]:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert blocks
    for number, block in enumerate(blocks):  # its functions say no types, and TVM has none
        (folder / f"readme_{number}.py").write_text(f'# mypy: disable-error-code="{_NO_TYPES}"\n{block}')
    return [f"readme_{number}.py" for number in range(len(blocks))]


def test_readme_is_typed_for_pyright(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    variables = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    settings = {"extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    files = _blocks_of_readme(tmp_path)
    checked = run([*command, *files], cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True)
    found = json.loads(checked.stdout)
    assert found["summary"]["filesAnalyzed"] == len(files) and not found["generalDiagnostics"], checked.stdout


@pytest.mark.slow
def test_a_users_script_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(SCRIPT)
    files = ["user.py", *_blocks_of_readme(tmp_path)]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", *files]
    checked = run(command, cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True)
    assert not re.findall(r"^readme_\d+\.py:.*error:.*$", checked.stdout, re.M), checked.stdout
    said = dict(re.findall(r"^user\.py:(\d+): (?:note: Revealed type is|error:) (.*)$", checked.stdout, re.M))
    for number, line in enumerate(SCRIPT.splitlines(), 1):
        code, _, wanted = line.partition("  # ")
        if wanted:
            found = re.sub(r"\w+\.(?=\w)", "", said[str(number)]).replace("[tuple[Any, ...], dtype[Any]]", "")
            assert wanted.strip() in found, f"{code.strip()}: {found}"
