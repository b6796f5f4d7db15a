"""The models that people run: as source they give the bits that they give as modules."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.zoo import ZOO, zoo_model

ROOT = Path(__file__).resolve().parents[2]

ALWAYS = ("file_type",)

_COMPARE = """
import json, sys
from dataclasses import asdict
import tvm_byoc_dnnl as byoc
from tests.e2e.source_outputs import compare_outputs
from bench.zoo import zoo_model
entry = zoo_model(sys.argv[1])
mod = byoc.partition(byoc.to_relax(entry.model, shapes=entry.shapes or None))
print(json.dumps(asdict(compare_outputs(mod, list(entry.inputs().values())))))
"""


def check(name: str) -> None:
    # in a process of its own: the next model begins with empty memory
    done = subprocess.run([sys.executable, "-c", _COMPARE, name], text=True, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert not result["differing"]
    assert result["regions"] > 0
    assert result["sources"] + len(result["refusals"]) == result["regions"]
    # static shapes: nothing but a layout that no call can make again may be in the way
    assert all("works in a layout" in refusal for refusal in result["refusals"]), result["refusals"]


@pytest.mark.parametrize("name", ALWAYS)
def test_a_trained_model(name: str) -> None:
    if zoo_model(name).missing():
        pytest.skip(f"not installed: {zoo_model(name).missing()}")
    check(name)


@pytest.mark.zoo
@pytest.mark.parametrize("name", ZOO)
def test_every_model(name: str) -> None:
    if zoo_model(name).missing():
        pytest.skip(f"not installed: {zoo_model(name).missing()}; `make test-zoo` does that")
    check(name)
