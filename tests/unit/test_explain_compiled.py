"""explain of a compiled model: the same account as that of the model, read from the executable."""

import json
import os
import zlib

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.harness import no_code
from tests.unit.importing import module, onnx_model
from tvm_byoc_dnnl.cli import main
from tvm_byoc_dnnl.partitioning.account import account_of
from tvm_byoc_dnnl.pipeline import metadata
from tvm_byoc_dnnl.pipeline.metadata import REPORT_FUNCTION

#: fields that only the library knows, on the machine that asks it
OF_THE_LIBRARY = ("primitive", "implementation", "step")


def host_and_dnnl(count=1):
    """An ONNX model in which TVM keeps the sums along an axis."""
    nodes, last = [], "x"
    for i in range(count):
        sums = "y" if i + 1 == count else f"s{i}"
        nodes += [
            helper.make_node("Conv", [last, "w"], [f"c{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"),
            helper.make_node("CumSum", [f"r{i}", "axis"], [sums], name=f"sums{i}"),
        ]
        last = sums
    constants = {"w": np.ones((4, 4, 3, 3), "float32"), "axis": np.array(1)}
    return onnx_model(nodes, {"x": (1, 4, 8, 8)}, constants)


def account(report):
    """The calls of a report, without the fields that the library alone knows."""
    calls = [{k: v for k, v in c.items() if k not in OF_THE_LIBRARY} for c in report.to_dict()["calls"]]
    for call in calls:
        call["near_misses"] = [m for m in call["near_misses"] if not m["pattern"].endswith(".fusion")]
    regions = [{**r, "reorders": None} for r in report.to_dict()["regions"]]
    return calls, regions, report.compilers, {**report.to_dict()["totals"], "reorders": None}, report.symbols


def saved_bytes(ex):
    """The account of its calls that an executable has saved."""
    return relax.VirtualMachine(ex, tvm.cpu())[REPORT_FUNCTION]().numpy().tobytes()


@pytest.fixture
def refusing():
    """A vendor whose codegen raises."""

    def codegen(functions, options, constants):
        raise RuntimeError("no silicon")

    byoc.register_annotate_compiler("refusing", ["relax.nn.relu"])
    byoc.register_codegen("refusing", codegen)
    yield "refusing"
    byoc.unregister_compiler("refusing")


@pytest.mark.native
def test_the_account_of_an_executable_is_that_of_its_model():
    model = host_and_dnnl()
    expected = byoc.explain(model)
    report = byoc.explain(byoc.compile(model))
    assert account(report) == account(expected)
    assert report.totals.regions == 1
    (host,) = report.host_calls()
    assert (host.op, host.onnx_node) == ("relax.cumsum", "sums0")
    assert host.reasons == expected.host_calls()[0].reasons != []
    assert report.versions.items() <= expected.versions.items()
    assert "sums0" in report.to_text()
    assert report.unasked == []


def test_what_the_codegen_refused(refusing):
    mod = module(lambda b, x: b.emit(relax.op.nn.relu(x)), (2, 3))
    report = byoc.explain(byoc.compile(mod, refusing))
    assert account(report) == account(byoc.explain(mod, refusing))
    assert report.compilers == [refusing]
    assert "no silicon" in report.calls[0].reasons[0]


def test_the_codegen_of_a_region_may_be_one_that_only_tvm_knows():
    byoc.register_annotate_compiler("stranger", ["relax.nn.relu"])
    byoc.register_codegen("stranger", no_code)
    try:
        mod = byoc.partition(module(lambda b, x: b.emit(relax.op.nn.relu(x)), (2, 3)), "stranger")
    finally:
        byoc.unregister_compiler("stranger")
    calls = account_of(mod, ["stranger"], with_primitives=False).calls
    assert [(c.compiler, c.region) for c in calls] == [("stranger", "stranger_0")]


def test_a_report_says_what_the_build_was_told_and_marks_what_it_asks_itself():
    asked = []

    def predicate(_attrs, _args):
        asked.append("exp")
        return byoc.Reject("no silicon")

    byoc.register_annotate_compiler("stranger", ["relax.exp"], predicate)
    byoc.register_annotate_compiler("stranger", ["relax.nn.relu"])
    byoc.register_codegen("stranger", no_code)
    try:
        mod = byoc.partition(module(lambda b, x: b.emit(relax.op.nn.relu(b.emit(relax.op.exp(x)))), (2, 3)), "stranger")
        assert asked == ["exp"]
        for forgets, reason in ((False, "no silicon"), (True, "no silicon (asked by the report)")):
            report = byoc.explain(mod.without_attr("byoc_log") if forgets else mod, "stranger")
            assert report.host_calls()[0].reasons == [f"stranger: {reason}"]
            assert len(asked) == 1 + forgets
    finally:
        byoc.unregister_compiler("stranger")


def test_who_was_asked_is_known_where_nobody_took_anything():
    mod = module(lambda b, x: b.emit(relax.op.cumsum(x, axis=1)), (2, 3))
    report = byoc.explain(byoc.compile(mod))
    assert account(report) == account(byoc.explain(mod))
    assert report.compilers == ["dnnl"]
    assert report.calls[0].reasons


@pytest.mark.native
def test_regions_of_two_vendors_of_which_the_second_fails(refusing):
    """The regions of the first vendor are in the account, although the second one failed later."""
    mod = module(lambda b, x: b.emit(relax.op.nn.relu(b.emit(relax.op.matmul(x, x)))), (3, 3))
    report = byoc.explain(byoc.compile(mod, [refusing, "dnnl"]))
    assert account(report) == account(byoc.explain(mod, [refusing, "dnnl"]))
    assert [c.compiler for c in report.calls] == ["dnnl", "dnnl"]


@pytest.mark.native
def test_a_library_says_it_too(tmp_path, capsys):
    model, path = host_and_dnnl(), tmp_path / "model.so"
    byoc.compile(model).export_library(path)
    expected = account(byoc.explain(model))
    runner = byoc.load(path)
    (entry,) = (each for each in os.scandir(tmp_path) if each.name == "model.so")  # a path of another class
    for loaded in (path, str(path), entry, runner, runner.module):
        assert account(byoc.explain(loaded)) == expected
    assert byoc.explain(path).model == "model.so"
    with pytest.raises(SystemExit, match="0"):
        main(["explain", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["totals"]["calls"] == len(expected[0])
    for command, options in (
        ("explain", ["--exclude", "relax.nn.relu"]),
        ("explain", ["--format", "source", "--compiler", "dnnl"]),
        ("profile", ["--shape", "x=1,4,8,8"]),
        ("profile", ["--max-regions", "0"]),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([command, str(path), *options])
        error = capsys.readouterr().err
        assert "model.so is compiled already, so --" in error and error.count("\n") == 1
        assert all(option in error for option in options if option.startswith("--"))


def test_a_module_without_an_account_is_refused_by_name():
    mod = module(lambda b, x: b.emit(relax.op.nn.relu(x)), (2, 3))
    with pytest.raises(byoc.ArtifactError, match="does not say what runs where"):
        byoc.explain(tvm.compile(mod, "llvm"))


def test_what_is_compiled_has_its_shapes():
    ex = byoc.compile(module(lambda b, x: b.emit(relax.op.nn.relu(x)), (2, 3)))
    with pytest.raises(byoc.InputError, match="leave it out"):
        byoc.explain(ex, shapes={"x": (1, 2)})


@pytest.fixture
def written(monkeypatch):
    """The modules of which an account is written."""
    modules, write = [], metadata.account_of
    monkeypatch.setattr(
        metadata, "account_of", lambda mod, *args, **kw: (modules.append(mod), write(mod, *args, **kw))[1]
    )
    return modules


@pytest.mark.native
def test_the_account_is_written_once(written, tmp_path):
    ex = byoc.compile(host_and_dnnl())
    assert len(written) == 1
    ex.export_library(tmp_path / "model.so")
    assert saved_bytes(ex) == saved_bytes(byoc.load(tmp_path / "model.so").module)
    ex.mod.export_library(str(tmp_path / "tvm.so"))
    assert account(byoc.explain(tmp_path / "tvm.so")) == account(byoc.explain(ex))
    assert len(written) == 1


@pytest.mark.native
def test_a_model_whose_account_fails_is_exported_without_it(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(metadata, "account_of", None)
    ex = byoc.compile(host_and_dnnl())
    ex.export_library(tmp_path / "model.so")
    assert "will not say what runs where" in caplog.text
    for model in (ex, tmp_path / "model.so"):
        with pytest.raises(byoc.ArtifactError, match="does not say what runs where"):
            byoc.explain(model)
    assert byoc.load(tmp_path / "model.so")(np.ones((1, 4, 8, 8), "float32")) is not None


@pytest.mark.native
def test_the_account_is_small():
    ex = byoc.compile(host_and_dnnl(100))
    data = saved_bytes(ex)
    calls = len(byoc.explain(ex).calls)
    assert calls >= 300
    assert len(data) < 20 * calls < len(zlib.decompress(data))
