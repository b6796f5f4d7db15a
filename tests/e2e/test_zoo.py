"""Models that people run: their numbers, how much of them is offloaded, and in how many regions.

All of them are behind the marker `zoo` (``make test-zoo``); what needs no torch and takes a second runs always.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tvm_byoc_dnnl.errors import InputError
from tvm_byoc_dnnl.testing.zoo import ZOO, page, zoo_model
from tvm_byoc_dnnl.testing.zoo.measure import FORMS, Result, measure

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
@pytest.mark.parametrize(("name", "form"), CASES, ids="-".join)
def test_every_model(name: str, form: str) -> None:
    missing = zoo_model(name).missing()
    if missing:
        pytest.skip(f"not installed: {missing}; `make test-zoo` does that")
    # in a process of its own: the next model begins with empty memory
    command = [sys.executable, "-m", "tvm_byoc_dnnl.testing.zoo", name, "--form", form, "--json"]
    done = subprocess.run(command, text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = page.from_dict(json.loads(done.stdout.splitlines()[-1]))
    refusal = NOT_IMPORTED.get((name, form), "")
    assert bool(result.refusal) == bool(refusal), result.refusal or f"`{name}` is imported now: take it off the list"
    if refusal:
        assert refusal in result.refusal
    else:
        check(result)


def test_the_page_says_what_was_measured() -> None:
    results = page.load(ROOT / "docs" / "models.json")
    assert (ROOT / "docs" / "models.md").read_text() == page.render(results), "run `make docs-models`"
    assert {(r.name, r.form) for r in results} <= set(CASES)


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
