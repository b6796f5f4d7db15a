"""Models that people run: their numbers, how much of them is offloaded, and in how many regions.

All of them are behind the marker `zoo` (``make test-zoo``); what needs no torch and takes a second runs always.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_byoc_dnnl as byoc
from bench.zoo import ZOO, page, zoo_model
from bench.zoo.measure import FORMS, Result, measure
from bench.zoo.steps import steps
from tests.harness import assert_right
from tvm_byoc_dnnl.core.errors import InputError

ROOT = Path(__file__).resolve().parents[2]

ALWAYS = ("file_type",)

# The target: static shapes, so nearly all the work in nearly one piece.
SHARE, REGIONS = 0.99, 3
# (model, form) -> (share of FLOPs, regions), where that is not reached; docs/models.md has the reasons.
SHORT: dict[tuple[str, str], tuple[float, int]] = {}
# (model, form) -> the importer's refusal; docs/models.md quotes it.
NOT_IMPORTED: dict[tuple[str, str], str] = {}

CASES = [(name, form) for form in FORMS for name in ZOO if form == "onnx" or not ZOO[name].is_file]


def check(result: Result) -> None:
    entry = ZOO[result.name]
    key = (result.name, result.form)
    share, regions = SHORT.get(key, (SHARE, REGIONS))
    assert result.error <= entry.tolerance
    assert result.flops_share >= share, result.stays
    assert result.regions <= regions, result.stays


@pytest.mark.parametrize("name", ALWAYS)
def test_a_trained_model(name: str) -> None:
    entry = zoo_model(name)
    if entry.missing():
        pytest.skip(f"not installed: {entry.missing()}")
    check(measure(entry))


@pytest.mark.zoo
@pytest.mark.parametrize(("name", "form"), CASES, ids=[" as ".join(case) for case in CASES])
def test_every_model(name: str, form: str) -> None:
    missing = zoo_model(name).missing()
    if missing:
        pytest.skip(f"not installed: {missing}; `make test-zoo` does that")
    # in a process of its own: the next model begins with empty memory
    command = [sys.executable, "-m", "bench.zoo", name, "--form", form, "--json"]
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = page.from_dict(json.loads(done.stdout.splitlines()[-1]))
    refusal = NOT_IMPORTED.get((name, form), "")
    assert bool(result.refusal) == bool(refusal), result.refusal or f"`{name}` is imported now: take it off the list"
    if refusal:
        assert refusal in result.refusal
    else:
        check(result)


def far_apart(model: onnx.ModelProto, inputs: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Share of integers that differ in the worst step of a quantised model; none may differ by more than one."""
    cut = steps(model, inputs)
    got = byoc.Runner(byoc.compile(cut.model, shapes=shapes))(cut.inputs)
    worst = 0.0
    for (name, want), array in zip(cut.wanted.items(), got, strict=True):
        if np.issubdtype(want.dtype, np.integer):
            distance = abs(array.astype(int) - want)
            assert distance.max() <= 1, name
            worst = max(worst, float((distance > 0).mean()))
        else:
            assert_right(array, want, 1e-5, least=1.0, elementwise=True)
    return worst


@pytest.mark.zoo
def test_each_step_of_a_quantised_model() -> None:
    entry = zoo_model("end_of_turn_int8")
    if entry.missing():
        pytest.skip(f"not installed: {entry.missing()}")
    assert far_apart(entry.model, entry.inputs(), entry.shapes) < 1e-4


def test_each_step_of_a_small_quantised_model() -> None:
    number = lambda name, value, dtype: numpy_helper.from_array(np.array(value, dtype), name)  # noqa: E731
    nodes = []
    for i, op in enumerate(("Relu", "Tanh", "Sigmoid")):
        nodes.append(helper.make_node("QuantizeLinear", ["x" if i == 0 else f"r{i - 1}", "scale", "zero"], [f"q{i}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", "scale", "zero"], [f"d{i}"]))
        nodes.append(helper.make_node(op, [f"d{i}"], [f"r{i}"]))
    constants = [number("scale", 0.03, "float32"), number("zero", 100, "uint8")]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, [3, 37])], [info("r2", 1, [3, 37])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 37), dtype="float32")}
    cut = steps(model, inputs)
    assert list(cut.wanted) == ["r2", "q0", "q1", "q2"]
    assert set(cut.inputs) == {"x", "q0_given", "q1_given", "q2_given"}
    assert [n.input[0] for n in cut.model.graph.node if n.op_type == "DequantizeLinear"] == [*cut.inputs][1:]
    assert far_apart(model, inputs, {}) < 0.02


def test_the_page_says_what_was_measured() -> None:
    results = page.load(ROOT / "docs" / "models.json")
    assert (ROOT / "docs" / "models.md").read_text() == page.render(results), "run `make docs-models`"
    assert {(r.name, r.form) for r in results} == set(CASES), "run `make docs-models` for the models that are missing"


def test_the_page_reaches_what_the_tests_hold() -> None:
    for result in page.load(ROOT / "docs" / "models.json"):
        if result.refusal:
            assert NOT_IMPORTED[result.name, result.form] in result.refusal
        else:
            check(result)


# ---- the zoo's own parts --------------------------------------------------------------------------------


def test_an_unknown_model() -> None:
    with pytest.raises(InputError, match="no zoo model `resnet19`; there are: bert_base"):
        zoo_model("resnet19")


def test_what_is_missing_is_named() -> None:
    entry = replace(ZOO["file_type"], package="no-such-package")
    assert entry.missing() == "no-such-package"


def test_a_file_is_no_program() -> None:
    with pytest.raises(InputError, match="ONNX file of magika"):
        ZOO["file_type"].exported_program()


def test_error_is_a_share_of_the_largest_value() -> None:
    entry = ZOO["file_type"]
    want = np.array([[1.0, -4.0]])
    assert entry.error(want + 0.2, want) == pytest.approx(0.05)
    assert entry.error(want * np.nan, want) == float("inf")
    assert entry.error(want[0], want) == float("inf")


def test_boxes_do_not_hide_probabilities() -> None:
    entry = ZOO["body_parts"]
    want = np.full((1, 6, 3), 300.0)
    want[:, 4:] = 0.5
    got = want.copy()
    got[0, 5, 1] += 0.05
    assert entry.error(got, want) == pytest.approx(0.1)


def test_saving_replaces_a_model_and_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    first = Result("file_type", calls=3, error=1e-6, stays={("equal", "of int32"): 1})
    page.save(file, [first, Result("resnet18", calls=1, error=2e-6)])
    page.save(file, [Result("resnet18", calls=2, error=2e-6)])
    assert [(r.name, r.calls) for r in page.load(file)] == [("resnet18", 2), ("file_type", 3)]
    assert page.load(file)[1] == first


def test_the_page_names_refusals_and_errors_beyond_the_tolerance() -> None:
    text = page.render(
        [
            Result("file_type", calls=4, offloaded_calls=3, flops_share=0.99999, regions=1, error=0.5),
            Result("resnet18", "torch.export", refusal="no such operator"),
        ]
    )
    assert "| `file_type` | file type | `magika` | 5e-01 **too large** | 99.99 % | 3 of 4 | 1 |" in text
    assert "* `resnet18`: no such operator" in text


def test_functions_that_tvm_numbered_are_one_row() -> None:
    stays = {("pad", "no predicate (it calls pad)"): 1, ("pad1", "no predicate (it calls pad1)"): 2}
    text = page.render([Result("file_type", stays=stays)])
    assert "| `pad` | no predicate (it calls pad) | file_type 3 |" in text
