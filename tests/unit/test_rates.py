"""The description of a machine in a file: which one is read, what it changes, and how a wrong one is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tvm_byoc_dnnl.core import _native

pytestmark = pytest.mark.native

_ASK = """
import json
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.core.errors import InputError
shapes = [1, 64, 56, 56], [64, 64, 3, 3], [1, 64, 56, 56]
layer = {"format": "tvm_byoc_dnnl.graph", "version": 2, "name": "g", "outputs": [2],
  "constants": [{"tensor": 1, "name": "w"}],
  "tensors": [{"name": "t", "dtype": "float32", "shape": shape} for shape in shapes],
  "inputs": [{"tensor": 0}], "nodes": [{"kind": "convolution", "inputs": [0, 1], "outputs": [2], "attrs":
  {"strides": [1, 1], "dilations": [1, 1], "pad_begin": [1, 1], "pad_end": [1, 1], "alg": "float32"}}]}
try:
    machine = _native.engine_info("dnnl")["machine"]
    from tvm_byoc_dnnl.api.cache import _namespace_facts  # imports TVM
    from tvm_byoc_dnnl.patterns.dnnl import library
    facts = _namespace_facts("dnnl")["engine"]
    impl = json.loads(library.call("Probe", [json.dumps(layer)])[0])["nodes"][0]["impl"]
    print(json.dumps({"machine": machine, "impl": impl, "facts": facts["machine"]}))
except InputError as error:
    print(json.dumps({"error": str(error)}))
"""


def _ask(**variables: str) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if k not in ("TVM_BYOC_RATES", "XDG_CACHE_HOME")}
    done = subprocess.run([sys.executable, "-c", _ASK], env=env | variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _document(**changes: Any) -> dict[str, Any]:
    speeds = dict.fromkeys(("float32_gflops", "bfloat16_gflops", "int8_gflops"), 100)
    speeds |= dict.fromkeys(("weights_gbytes", "memory_gbytes", "moved_gbytes"), 10)
    return {
        "machine": _native.engine_info("dnnl")["machine"]["name"],
        "base": "avx2",
        "lanes": 8,
        "cache_mb": 16,
        "threads": {"1": {**speeds, "wake_us": 1, "families": {}}},
        **changes,
    }


def _with_families(**families: Any) -> dict[str, Any]:
    threads = _document()["threads"]["1"]
    return _document(threads={"1": {**threads, "families": families}})


@pytest.fixture(scope="module")
def compiled_in(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _ask(XDG_CACHE_HOME=str(tmp_path_factory.mktemp("empty")))


@pytest.mark.parametrize("slow", ["winograd", "convolution"])
def test_a_file_decides_what_is_chosen(tmp_path: Path, compiled_in: dict[str, Any], slow: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(_with_families(**{slow: ["float32", 1000]})))
    found = _ask(TVM_BYOC_RATES=str(path))
    assert found["machine"]["rates"] == str(path)
    assert found["machine"]["hash"] != compiled_in["machine"]["hash"]
    assert found["facts"] != compiled_in["facts"]  # so nothing that was compiled without it is found in a cache
    if "avx" in found["machine"]["name"]:
        assert found["impl"].startswith("winograd") == (slow == "convolution")


def test_the_file_in_the_users_cache_is_read(tmp_path: Path, compiled_in: dict[str, Any]) -> None:
    path = tmp_path / "tvm_byoc_dnnl" / "rates" / Path(compiled_in["machine"]["file"]).name
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(_document()))
    assert _ask(XDG_CACHE_HOME=str(tmp_path))["machine"]["rates"] == str(path)


def test_the_file_of_another_machine_is_not_used(tmp_path: Path, compiled_in: dict[str, Any]) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(_document(machine="another")))
    found = _ask(TVM_BYOC_RATES=str(path), XDG_CACHE_HOME=str(tmp_path))
    assert found["machine"]["rates"] == compiled_in["machine"]["rates"].replace(str(path), "")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "expected"),
        ([], "an array"),
        ({}, 'the field "machine" is missing'),
        (lambda: _document(base="z80"), "z80"),
        (lambda: _document(threads={}), "numbers of threads"),
        (lambda: _document(threads={"all": {}}), "threads: all"),
        (lambda: _document(cores=2), "cores"),
        (lambda: _document(limits={"thin": 8}), "thin"),
        (lambda: _document(limits={"repacked": "often"}), "repacked"),
        (lambda: _with_families(winograd=["float32", 1, 2, 3, 4, 5, 6, 7]), "got 8 values"),
        (lambda: _with_families(winograd=["float64", 1]), "float64"),
        (lambda: _with_families(winograd=["float32", "fast"]), "winograd"),
        (lambda: _with_families(winograd=["float32", -1]), "winograd"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "rates.json"
    document = document() if callable(document) else document
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    error = _ask(TVM_BYOC_RATES=str(path))["error"]
    assert str(path) in error
    assert message in error
    assert "tvm-byoc tune --machine" in error


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in _ask(TVM_BYOC_RATES=str(tmp_path / "none.json"))["error"]
