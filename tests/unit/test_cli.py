"""The command line: help that teaches, results on stdout, errors in one line with status 2."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl import cli
from tvm_byoc_dnnl.report.doctor import FAILURE, Finding

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tvm_byoc(capsys):
    """Run a command: its exit status, standard output and standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            cli.main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


@pytest.fixture
def model(tmp_path):
    """conv, relu, cumsum: the last one stays with TVM."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3), dtype="float32")
    nodes = [
        helper.make_node("Conv", ["data", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("CumSum", ["r", "axis"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array(1), "axis")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


SHAPE = "data=1,3,8,8"


# ---------------------------------------------------------------- help and mistakes
def test_help_teaches(tvm_byoc):
    status, out, err = tvm_byoc("--help")
    assert status == 0 and err == ""
    for command in cli.cli.commands:
        assert command in out
        status, text, _ = tvm_byoc(command, "--help")
        assert status == 0 and "Usage: tvm-byoc" in text
    assert tvm_byoc()[1] == out  # no arguments: the same page
    assert tvm_byoc("--version")[1] == f"tvm-byoc-dnnl {byoc.__version__}\n"


def test_every_command_with_a_model_has_an_example(tvm_byoc):
    for command in ("bench", "compile", "explain", "lock", "ops", "run"):
        assert f"tvm-byoc {command} " in tvm_byoc(command, "--help")[1].split("Options:")[0].split("\n", 1)[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["compile"], "Missing argument 'MODEL'. (tvm-byoc compile --help)"),
        (["explain", "absent.onnx"], "File 'absent.onnx' does not exist"),
        (["explain", "MODEL", "--compiler", "nobody"], "unknown compiler 'nobody'; registered: "),
        (["explain", "MODEL", "--shape", "data"], "got 'data'; expected NAME=DIM,DIM"),
        (["explain", "MODEL", "--shape", "data=1,x!"], "got 'data=1,x!'; expected NAME=DIM,DIM"),
        (["explain", "MODEL", "--shape", "data=0,3,8,8"], "got 'data=0,3,8,8'; expected NAME=DIM,DIM"),
        (["explain", "MODEL", "--shape", "date=1,3,8,8"], "date"),
        (["explain", "JUNK"], "cannot read"),
        (["explain", "MODEL", "--html", "absent/x.html"], "no folder"),
        (["compile", "MODEL", "-o", "absent/x.so"], "no folder"),
        (["run", "MODEL", "--inputs", "JUNK"], "it is no NumPy file; expected a file of numpy.savez"),
        (["check", "MODEL"], "write it with `tvm-byoc lock"),
        (["check", "MODEL", "--lock", "JUNK"], "this is no lock file"),
        (["bench", "MODEL", "--peers", "nobody"], "no engine `nobody`; there are: "),
        (["bench", "absent"], "no model `absent`"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input_is_one_line_and_status_2(tvm_byoc, model, tmp_path, arguments, message):
    junk = tmp_path / "junk.bin"
    junk.write_bytes(b"these are not the bytes that you want")
    names = {"MODEL": str(model), "JUNK": str(junk)}
    status, out, err = tvm_byoc(*(names.get(a, a) for a in arguments))
    assert status == 2 and out == ""
    assert message in err
    assert err.startswith("tvm-byoc: ") and err.count("\n") == 1


def test_an_unexpected_error_is_one_line_too(tvm_byoc, model, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("something\nwith lines")

    monkeypatch.setattr("tvm_byoc_dnnl.report.explain", fail)
    status, out, err = tvm_byoc("explain", model)
    assert (status, out) == (1, "")
    assert err == "tvm-byoc: RuntimeError: something; --verbose shows where\n"
    monkeypatch.setenv("TVM_BYOC_DEBUG", "1")
    with pytest.raises(RuntimeError):
        cli.main(["explain", str(model)])


# ---------------------------------------------------------------- explain
def test_explain(tvm_byoc, model, tmp_path):
    status, out, err = tvm_byoc("explain", model, "--shape", SHAPE)
    assert (status, err) == (0, "")
    assert out.startswith("net.onnx: 2 of 3 calls")
    assert "'dnnl' does not take relax.cumsum" in out and "float32[1, 4, 6, 6]" not in out
    assert "float32[1, 4, 6, 6]" in tvm_byoc("explain", model, "--shape", SHAPE, "--all")[1]


def test_explain_as_data_and_page(tvm_byoc, model, tmp_path):
    status, out, _ = tvm_byoc("explain", model, "--shape", SHAPE, "--json")
    assert status == 0
    document = json.loads(out)
    assert document["totals"]["calls"] == 3 and document["model"] == "net.onnx"
    page = tmp_path / "net.html"
    status, out, err = tvm_byoc("explain", model, "--shape", SHAPE, "--html", page, "--json")
    assert status == 0 and f"wrote {page}" in err
    assert json.loads(out) == document
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_explain_with_open_dims(tvm_byoc, model):
    assert "Symbolic dims count as 1 here: n" in tvm_byoc("explain", model)[1].replace("\n    ", " ")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--exclude", "relax.nn.c*"], "excluded by 'relax.nn.c*'"),
        (["--exclude", "dnnl.softmax", "--exclude", "relax.nn.conv2d"], "excluded by 'relax.nn.conv2d'"),
        (["--max-regions", "0"], "the module may have 0 region(s)"),
    ],
)
def test_what_the_user_keeps_from_a_compiler(tvm_byoc, model, options, reason):
    _, out, _ = tvm_byoc("explain", model, "--shape", SHAPE, "--json", *options)
    calls = {c["op"]: c for c in json.loads(out)["calls"]}
    conv = calls["relax.nn.conv2d"]
    assert conv["compiler"] is None and any(reason in r for r in conv["reasons"])
    assert calls["relax.nn.relu"]["compiler"] is None  # alone beside TVM's calls: dnnl's own policy still holds
    assert tvm_byoc("lock", model, "--shape", SHAPE, *options)[0] == 0
    assert tvm_byoc("check", model, "--exact")[0] == 0  # the policy is in the file


def test_force_offloads_what_is_not_worth_it(tvm_byoc, model):
    options = ["--exclude", "relax.nn.conv2d", "--force", "relax.nn.relu"]
    _, out, _ = tvm_byoc("explain", model, "--shape", SHAPE, "--json", *options)
    assert [c["compiler"] for c in json.loads(out)["calls"]] == [None, "dnnl", None]


# ---------------------------------------------------------------- diff
def test_a_difference_of_two_reports(tvm_byoc, model, tmp_path):
    explained = ["explain", model, "--shape", SHAPE, "--json"]
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(tvm_byoc(*explained)[1])
    after.write_text(tvm_byoc(*explained, "--exclude", "relax.nn.conv2d")[1])
    status, out, _ = tvm_byoc("diff", before, after)
    assert status == 1
    assert "excluded by 'relax.nn.conv2d'" in out
    status, out, _ = tvm_byoc("diff", before, after, "--json")
    assert status == 1
    assert json.loads(out)["lost_calls"] > 0
    assert tvm_byoc("diff", before, before)[:2] == (0, "every call runs where it did\n")
    after.write_text("[]")
    assert tvm_byoc("diff", before, after)[0] == 2


# ---------------------------------------------------------------- lock and check
def test_lock_then_check(tvm_byoc, model):
    status, out, err = tvm_byoc("lock", model, "--shape", SHAPE)
    path = model.with_name("net.onnx.lock")
    assert (status, out) == (0, f"{path}\n") and err.startswith("2 of 3 calls offloaded")
    status, out, err = tvm_byoc("check", model)  # the shape is in the file
    assert (status, out) == (0, "") and "runs where net.onnx.lock says" in err


def test_the_lock_keeps_precision(tvm_byoc, model):
    assert tvm_byoc("lock", model, "--shape", SHAPE, "--precision", "auto", "--int8", "saturating")[0] == 0
    path = model.with_name("net.onnx.lock")
    assert "\nint8 saturating\nprecision auto\n" in path.read_text()
    assert tvm_byoc("check", model, "--exact")[0] == 0
    path.write_text(path.read_text().replace("int8 saturating", "int8 quick"))
    status, _, err = tvm_byoc("check", model)
    assert status != 0 and "damaged: 'int8 quick'" in err


def test_check_fails_when_a_call_left(tvm_byoc, model):
    tvm_byoc("lock", model, "--shape", SHAPE)
    path = model.with_name("net.onnx.lock")
    path.write_text(path.read_text().replace("tvm ", "dnnl"))  # as if cumsum had been offloaded
    status, out, err = tvm_byoc("check", model)
    assert status == 1
    assert "+ tvm         1  relax.cumsum  float32[1, 4, 6, 6]" in out
    assert "why: dnnl: 'dnnl' does not take relax.cumsum" in out
    assert "if the change is wanted: tvm-byoc lock" in err


def test_check_accepts_what_got_better_unless_exact(tvm_byoc, model):
    tvm_byoc("lock", model, "--shape", SHAPE)
    path = model.with_name("net.onnx.lock")
    path.write_text(path.read_text().replace("dnnl  1  relax.nn.relu", "tvm   1  relax.nn.relu"))
    status, out, err = tvm_byoc("check", model)
    assert status == 0 and "Other changes:" in out and "or better" in err
    assert tvm_byoc("check", model, "--exact")[0] == 1


# ---------------------------------------------------------------- ops
def test_ops_lists_what_a_compiler_may_take(tvm_byoc):
    status, out, err = tvm_byoc("ops")
    assert (status, err) == (0, "")
    conv = next(line for line in out.splitlines() if line.startswith("relax.nn.conv2d "))
    assert conv.split()[:3] == ["relax.nn.conv2d", "lowering", "f32"] and "Convolution" in conv
    rows = {row["name"]: row for row in json.loads(tvm_byoc("ops", "--json")[1])}
    assert rows["relax.nn.conv2d"]["how"] == "lowering"
    assert set(byoc.supported_ops("dnnl")) <= rows.keys()
    assert tvm_byoc("ops", "nobody")[0] == 2


def test_a_word_behind_json_is_the_next_argument(tvm_byoc, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert json.loads(tvm_byoc("ops", "--json", "dnnl")[1]) and not (tmp_path / "dnnl").exists()
    assert json.loads(tvm_byoc("inputs", "--json", model)[1])["outputs"]
    assert tvm_byoc("inputs", model, "--json", "-")[0] == 2
    options = [o for command in cli.cli.commands.values() for o in command.params if "--json" in o.opts]
    assert len(options) > 9 and all(o.is_flag for o in options)


# ---------------------------------------------------------------- doctor
def test_doctor_shows_findings_and_their_cures(tvm_byoc, monkeypatch):
    findings = [Finding("Packages", "tool", "1.0"), Finding("Library", "lib", "missing", FAILURE, "install it")]
    monkeypatch.setattr("tvm_byoc_dnnl.report.doctor.examine", lambda: findings)
    status, out, err = tvm_byoc("doctor")
    assert status == 1 and err == ""
    assert out.splitlines()[0] == "Packages" and "→ install it" in out
    status, out, _ = tvm_byoc("doctor", "--json")
    assert status == 1 and json.loads(out)[1]["fix"] == "install it"


def test_doctor_on_this_machine(tvm_byoc):
    status, out, _ = tvm_byoc("doctor", "--json")
    findings = {f["name"]: f for f in json.loads(out)}
    assert {"python", "apache-tvm", "processor", "cores", "native library", "dnnl"} <= findings.keys()
    assert status == int(any(f["status"] == FAILURE for f in findings.values()))
    assert all(f["fix"] for f in findings.values() if f["status"] != "ok")


# ---------------------------------------------------------------- as a program
def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "tvm_byoc_dnnl", "--help"], text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.startswith("Usage: tvm-byoc")


def test_a_reader_that_leaves_early_is_no_error(model):
    command = f"{sys.executable} -m tvm_byoc_dnnl explain {model} --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], text=True, capture_output=True, cwd=ROOT)
    assert done.stdout.startswith("{") and done.stderr == ""


# ---------------------------------------------------------------- its page
def test_the_page_names_every_command_and_only_options_that_exist():
    page = (ROOT / "docs" / "command_line.md").read_text()
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    assert {word for title in sections for word in title.split()} >= set(cli.cli.commands)
    known = {o for c in cli.cli.commands.values() for p in c.params for o in p.opts if o.startswith("--")}
    known.add("--help")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z]+)*", page))
    assert named == known


# ---------------------------------------------------------------- output
def test_an_unknown_format_is_refused(tvm_byoc, model, tmp_path):
    status, _, err = tvm_byoc("compile", model, "--shape", SHAPE, "-o", tmp_path / "m.so", "--format", "text")
    assert status == 2 and "'module', 'source'" in err


@pytest.mark.native
def test_emit_says_what_is_in_the_way(tvm_byoc, model, tmp_path):
    status, _, err = tvm_byoc("emit", model, "--shape", SHAPE, "-o", tmp_path / "program")
    assert status == 2 and "cumsum" in err
    status, _, err = tvm_byoc("emit", model, "-o", tmp_path / "none" / "program")
    assert status == 2 and "make it first" in err


@pytest.mark.native
def test_explain_says_which_regions_cannot_be_source(tvm_byoc, model):
    status, out, _ = tvm_byoc("explain", model, "--format", "source")
    assert status == 0 and "Stay modules: 1 region" in out and "shapes depend on" in out
    _, out, _ = tvm_byoc("explain", model, "--shape", SHAPE, "--format", "source")
    assert "Stay modules" not in out
    _, out, _ = tvm_byoc("explain", model)
    assert "Stay modules" not in out


# ---------------------------------------------------------------- inputs, shapes and values
def of_two_inputs(path, *nodes):
    """A signal of open length, and numbers that decide a shape."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [
            helper.make_tensor_value_info("x:0", TensorProto.FLOAT, ["batch", "?"]),
            helper.make_tensor_value_info("to", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("out.1", TensorProto.FLOAT, None)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def resampler(tmp_path):
    nodes = helper.make_node("Relu", ["x:0"], ["a"]), helper.make_node("Reshape", ["a", "to"], ["out.1"])
    return of_two_inputs(tmp_path / "resampler.onnx", *nodes)


@pytest.fixture
def divider(tmp_path):
    """A model whose numbers must be known."""
    return of_two_inputs(tmp_path / "divider.onnx", helper.make_node("CumSum", ["x:0", "to"], ["out.1"]))


def test_inputs_are_listed_with_what_decides(tvm_byoc, resampler):
    status, out, err = tvm_byoc("inputs", resampler)
    assert status == 0
    assert out.splitlines() == [
        "input   x:0    float32[batch, ?]",
        "input   to     int64[2]  decides what is compiled",
        "output  out.1  float32[…]",
        "opset   ai.onnx 17",
        "nodes   Relu 1, Reshape 1",
        "weights 0.0 MB in 0 tensors",
    ]
    assert err == f"to fix them: tvm-byoc explain {resampler} --shape x:0=1,128 --value to=NUMBERS\n"
    found = json.loads(tvm_byoc("inputs", resampler, "--json")[1])
    assert found["inputs"][1] == {"name": "to", "dtype": "int64", "shape": [2], "decides": True}
    assert found["outputs"][0]["name"] == "out.1" and found["nodes"] == {"Relu": 1, "Reshape": 1}


def test_a_model_that_cannot_be_imported_says_what_to_give(tvm_byoc, divider):
    status, out, err = tvm_byoc("explain", divider)
    assert (status, out) == (2, "")
    assert err.startswith("tvm-byoc: no Relax equivalent: CumSum (node `out.1`) needs its axis when it is compiled")
    assert err.count("\n") == 1
    assert "Its inputs are x:0 float32[batch, ?]; to int64[2]" in err
    assert "--shape x:0=1,128" in err and "--value to=NUMBERS" in err


def test_a_value_decides_and_a_name_leaves_a_dim_open(tvm_byoc, resampler):
    options = ("--shape", "x:0=N,8", "--value", "to=-1,4")
    status, out, _ = tvm_byoc("explain", resampler, *options, "--json")
    report = json.loads(out)
    assert status == 0 and report["symbols"] == ["N"] and report["model"] == "resampler.onnx"
    assert {c["op"] for c in report["calls"]} == {"relax.reshape", "relax.nn.relu"}
    assert tvm_byoc("lock", resampler, *options)[0] == 0
    assert tvm_byoc("check", resampler)[0] == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--shape", "x:0=1,2,3"], "`shapes` gives (1, 2, 3) for `x:0`, which is (batch, ?)"),
        (["--shape", "x:0=1,N:0"], "expected NAME=DIM,DIM,…"),
        (["--shape", "x:0=1,0"], "expected NAME=DIM,DIM,…"),
        (["--shape", "y=1,2"], "`shapes` names `y`, which is no input of the model; its inputs are `x:0` (batch, ?)"),
        (["--value", "to=4"], "the value of 'to' has 1 numbers, expected to int64[2]"),
        (["--value", "to=a"], "expected NAME=NUMBER,NUMBER,…"),
        (["--value", "y=1"], "no input 'y' to give a value; the model's inputs are x:0, to"),
    ],
    ids=["rank", "hint", "zero", "unknown", "count", "word", "unknown value"],
)
def test_shapes_and_values_that_do_not_fit(tvm_byoc, resampler, option, message):
    status, out, err = tvm_byoc("explain", resampler, *option)
    assert (status, out) == (2, "") and message in err and err.count("\n") == 1


def test_verbose_shows_where(model, divider):
    with pytest.raises(byoc.UnsupportedError):
        cli.main(["explain", str(divider), "--verbose"])
