"""The command line with the library: compile, run, and measure a real network."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.harness import assert_right
from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl import cli
from tvm_byoc_dnnl.testing.models import light_model, ort_run, random_inputs

ROOT = Path(__file__).resolve().parents[2]


def tvm_byoc(*arguments, status=0):
    """Standard output and standard error of a command, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        cli.main([str(a) for a in arguments])
    assert stop.value.code == status, err.getvalue()
    return out.getvalue(), err.getvalue()


def test_it_is_a_module_to_run(squeezenet):
    command = [sys.executable, "-m", "tvm_byoc_dnnl", "run", squeezenet / "net.so", "--inputs", squeezenet / "in.npz"]
    done = subprocess.run(list(map(str, command)), text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == tvm_byoc("run", squeezenet / "net.so", "--inputs", squeezenet / "in.npz")[0]


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
    assert result.files == ["softmaxout_1"]
    assert_right(result["softmaxout_1"], np.load(squeezenet / "expected.npy"), 1e-3, least=0.01, elementwise=True)


def test_run_without_output_says_what_came_out(squeezenet):
    out, err = tvm_byoc("run", squeezenet / "net.so", "--inputs", squeezenet / "in.npz")
    assert out.startswith("softmaxout_1  float32[1, 1000, 1, 1]  min ")
    assert "ms" in err


def test_run_with_wrong_inputs(squeezenet, tmp_path):
    np.savez(tmp_path / "wrong.npz", picture=np.zeros((1, 3, 224, 224), "float32"))
    _, err = tvm_byoc("run", squeezenet / "net.so", "--inputs", tmp_path / "wrong.npz", status=2)
    assert err.startswith("tvm-byoc: ") and "picture" in err and "data_0" in err and err.count("\n") == 1


def test_run_with_random_inputs_repeats(squeezenet):
    out, err = tvm_byoc("run", squeezenet / "net.so", "--repeat", 3, "--warmup", 1, "--seed", 7)
    assert out.startswith("softmaxout_1  float32[1, 1000, 1, 1]") and "median of 3" in err
    assert tvm_byoc("run", squeezenet / "net.so", "--seed", 7)[0] == out
    assert tvm_byoc("run", squeezenet / "net.so", "--seed", 8)[0] != out


def test_run_with_odd_names_and_open_dims(tmp_path):
    nodes = [onnx.helper.make_node("Add", ["input.1", "0"], ["file"])]
    infos = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 3]) for n in ("input.1", "0", "file")]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", infos[:2], infos[2:]), ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    tvm_byoc("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.so")
    listed = [line.split(maxsplit=2) for line in tvm_byoc("inputs", tmp_path / "m.so")[0].splitlines()]
    assert listed[:2] == [["input", "input.1", "float32[n, 3]"], ["input", "0", "float32[n, 3]"]]
    assert listed[2] == ["output", "file", "float32[n, 3]"]
    np.savez(tmp_path / "in.npz", **{"0": np.ones((2, 3), "float32"), "input.1": np.full((2, 3), 4, "float32")})
    tvm_byoc("run", tmp_path / "m.so", "--inputs", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["file"], np.full((2, 3), 5, "float32"))
    _, err = tvm_byoc("run", tmp_path / "m.so", status=2)
    assert "--shape input.1=1,3 --shape 0=1,3" in err
    out, _ = tvm_byoc("run", tmp_path / "m.so", "--shape", "input.1=2,3", "--shape", "0=2,3")
    assert out.startswith("file  float32[2, 3]")


def test_doctor_is_content():
    out, _ = tvm_byoc("doctor", "--json")
    findings = {f["name"]: f for f in json.loads(out)}
    assert findings["matmul + relu"]["status"] == "ok"
    assert findings["native library"]["status"] == findings["oneDNN"]["status"] == "ok"


@pytest.mark.sweep  # processes of two engines, several times
def test_bench_measures(tmp_path):
    onnx.save(onnx_model([node("Relu", ["x"], ["y"])], {"x": ("rows", 3)}), tmp_path / "relu.onnx")
    options = ("--shape", "x=2,3", "--rounds", 2)
    out, _ = tvm_byoc("bench", tmp_path / "relu.onnx", *options)
    assert "tvm-byoc-dnnl" in out and "ONNX Runtime" in out
    (model,) = json.loads(tvm_byoc("bench", tmp_path / "relu.onnx", *options, "--json")[0])["models"]
    assert [e["failure"] for e in model["engines"]] == [None, None]


def test_source_and_a_program_from_the_command_line(squeezenet, tmp_path):
    out, _ = tvm_byoc("compile", squeezenet / "net.onnx", "--format", "source", "-o", tmp_path / "net.so")
    assert out == f"{tmp_path / 'net.so'}\n"
    for library in (tmp_path, squeezenet):
        tvm_byoc("run", library / "net.so", "--inputs", squeezenet / "in.npz", "-o", tmp_path / f"{library.name}.npz")
    source, module = (np.load(tmp_path / f"{folder.name}.npz")["softmaxout_1"] for folder in (tmp_path, squeezenet))
    np.testing.assert_array_equal(source, module)

    out, err = tvm_byoc("emit", squeezenet / "net.onnx", "-o", tmp_path / "program")
    assert out == f"{tmp_path / 'program'}\n" and "dnnl_0.c" in err
    assert {"dnnl_0.c", "main.c", "CMakeLists.txt", "weights.bin"} <= {f.name for f in (tmp_path / "program").iterdir()}


@pytest.mark.parametrize(
    ("command", "option"),
    [("compile", "-o"), ("emit", "-o"), ("explain", "--html"), ("lock", "-o"),
     ("profile", "--trace"), ("tune", "--database"), ("bench", "--picture")],
)  # fmt: skip
def test_outputs_that_are_no_files_are_refused_at_once(squeezenet, tmp_path, command, option):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "pipe", "/dev/null", "/dev/full", tmp_path / "file" / "x", tmp_path / "none" / "x"):
        _, err = tvm_byoc(command, squeezenet / "net.onnx", option, place, status=2)
        assert "cannot write" in err or "is a file" in err or "Not a directory" in err, (place, err)
    assert (tmp_path / "file").read_text() == "x" and Path("/dev/null").is_char_device()


def test_outputs_of_a_run_that_are_no_files(squeezenet, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", "/dev/full"):
        _, err = tvm_byoc("run", squeezenet / "net.so", "-o", place, status=2)
        assert "expected the name of a file" in err


@pytest.mark.parametrize(
    "arguments",
    [("explain", "PIPE"), ("compile", "PIPE", "-o", "x.so"), ("inputs", "PIPE"), ("run", "PIPE"), ("check", "PIPE"),
     ("run", "LIBRARY", "--inputs", "PIPE"), ("check", "MODEL", "--lock", "PIPE"),
     ("compile", "MODEL", "--database", "PIPE", "-o", "x.so"), ("bench", "PIPE")],
    ids=" ".join,
)  # fmt: skip
def test_inputs_that_are_no_files_are_refused_at_once(squeezenet, tmp_path, arguments):
    os.mkfifo(tmp_path / "pipe")
    names = {"PIPE": tmp_path / "pipe", "LIBRARY": squeezenet / "net.so", "MODEL": squeezenet / "net.onnx"}
    names["x.so"] = tmp_path / "x.so"
    _, err = tvm_byoc(*(names.get(word, word) for word in arguments), status=2)
    assert "pipe" in err


def test_times_and_outputs_as_data(squeezenet):
    arguments = ["run", squeezenet / "net.so", "--inputs", squeezenet / "in.npz", "--threads", 1, "--repeat", 3]
    data = json.loads(tvm_byoc(*arguments, "--json")[0])
    assert len(data["milliseconds"]) == 3
    assert [output["shape"] for output in data["outputs"].values()] == [[1, 1000, 1, 1]]
