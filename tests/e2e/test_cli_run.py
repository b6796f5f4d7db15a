"""The command line with the library: compile, run, and measure a real network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tvm_byoc_dnnl.testing.models import light_model, ort_run, random_inputs

ROOT = Path(__file__).resolve().parents[2]


def tvm_byoc(*arguments, status=0):
    command = [sys.executable, "-m", "tvm_byoc_dnnl", *map(str, arguments)]
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory):
    """A folder with the model, its inputs, the expected outputs, and the library that `compile` made."""
    folder = tmp_path_factory.mktemp("cli")
    model = light_model("squeezenet")
    inputs = random_inputs(model)
    onnx.save(model, folder / "net.onnx")
    np.savez(folder / "in.npz", **inputs)
    np.savez(folder / "unnamed.npz", *inputs.values())
    np.save(folder / "expected.npy", ort_run(model, inputs)[0])
    out, err = tvm_byoc("compile", folder / "net.onnx", "-o", folder / "net.so")
    assert out == f"{folder / 'net.so'}\n" and "MB" in err
    return folder


@pytest.mark.parametrize("inputs", ["in.npz", "unnamed.npz"])
def test_run_gives_the_models_numbers(squeezenet, tmp_path, inputs):
    out, _ = tvm_byoc("run", squeezenet / "net.so", "--inputs", squeezenet / inputs, "-o", tmp_path / "out.npz")
    assert out == f"{tmp_path / 'out.npz'}\n"
    result = np.load(tmp_path / "out.npz")
    assert result.files == ["output_0"]
    np.testing.assert_allclose(result["output_0"], np.load(squeezenet / "expected.npy"), rtol=1e-3, atol=1e-5)


def test_run_without_output_says_what_came_out(squeezenet):
    out, err = tvm_byoc("run", squeezenet / "net.so", "--inputs", squeezenet / "in.npz")
    assert out.startswith("output_0  float32[1, 1000, 1, 1]  min ")
    assert "ms" in err


def test_run_with_wrong_inputs(squeezenet, tmp_path):
    np.savez(tmp_path / "wrong.npz", picture=np.zeros((1, 3, 224, 224), "float32"))
    _, err = tvm_byoc("run", squeezenet / "net.so", "--inputs", tmp_path / "wrong.npz", status=2)
    assert err.startswith("tvm-byoc: ") and "picture" in err and "data_0" in err and err.count("\n") == 1


def test_doctor_is_content():
    out, _ = tvm_byoc("doctor", "--json")
    findings = {f["name"]: f for f in json.loads(out)}
    assert findings["matmul + relu"]["status"] == "ok"
    assert findings["native library"]["status"] == findings["oneDNN"]["status"] == "ok"


@pytest.mark.slow
def test_bench_measures(squeezenet, tmp_path):
    out, _ = tvm_byoc("bench", squeezenet / "net.onnx", "--rounds", 2, "--json", tmp_path / "bench.json")
    assert "tvm-byoc-dnnl" in out and "ONNX Runtime" in out
    (model,) = json.loads((tmp_path / "bench.json").read_text())["models"]
    assert [e["failure"] for e in model["engines"]] == [None, None]


def test_source_and_a_program_from_the_command_line(squeezenet, tmp_path):
    out, _ = tvm_byoc("compile", squeezenet / "net.onnx", "--format", "source", "-o", tmp_path / "net.so")
    assert out == f"{tmp_path / 'net.so'}\n"
    for library in (tmp_path, squeezenet):
        tvm_byoc("run", library / "net.so", "--inputs", squeezenet / "in.npz", "-o", tmp_path / f"{library.name}.npz")
    source, module = (np.load(tmp_path / f"{folder.name}.npz")["output_0"] for folder in (tmp_path, squeezenet))
    np.testing.assert_array_equal(source, module)

    out, err = tvm_byoc("emit", squeezenet / "net.onnx", "-o", tmp_path / "program")
    assert out == f"{tmp_path / 'program'}\n" and "dnnl_0.c" in err
    assert {"dnnl_0.c", "main.c", "CMakeLists.txt", "weights.bin"} <= {f.name for f in (tmp_path / "program").iterdir()}
