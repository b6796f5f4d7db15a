"""The machine, measured: layers as graphs, costs that are fitted, and a file that the engine reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.patterns.dnnl import machine
from tvm_byoc_dnnl.tuning.plans import measure_machine

_OF_EACH = {"wide": [1e-9, 0, 0, 0, 0, 1e-3], "narrow": [3e-9, 0, 0, 0, 0, 0]}


def _layers(count: int) -> list[dict[str, Any]]:
    """Each has two candidates, and the model in use expects both to be equally fast."""
    sizes = np.random.default_rng(0).uniform(1e4, 3e6, count)
    return [
        {
            "layer": f"of {size}",
            "candidates": [
                {
                    "family": family,
                    "dtype": "float32",
                    "amounts": [size, 0, 0, 0, 0, 1],
                    "seconds_of_each": [2e-9, 0, 0, 0, 0, 0],
                    "seconds": float(np.dot([size, 0, 0, 0, 0, 1], seconds)),
                }
                for family, seconds in _OF_EACH.items()
            ],
        }
        for size in sizes
    ]


def test_the_fitted_costs_choose_the_best_of_layers_that_they_have_not_seen():
    fitted = machine.fit(_layers(40))
    unseen = _layers(80)[40:]
    assert max(machine.judge(unseen)) > 1.5
    assert max(machine.judge(unseen, fitted)) < 1.02


def test_few_layers_give_a_factor():
    (seconds,) = (s for name, s in machine.fit(_layers(3)).items() if name == "narrow")
    assert seconds == pytest.approx([3e-9, 0, 0, 0, 0, 0])


def test_a_layer_without_a_choice_is_not_judged():
    assert machine.judge([{"layer": "alone", "candidates": []}]) == []


@pytest.mark.native
def test_a_measured_machine_is_a_file_that_the_engine_reads(tmp_path, monkeypatch):
    matmul, convolution = "matmul float32 8,64 64,64", "convolution float32 1,16,12,12 16,16,3,3 1 1,1 1"
    lines = [matmul, convolution, "matmul uint8 8,64 64,48", matmul, convolution, matmul]
    (tmp_path / "layers.txt").write_text("\n".join(lines))
    monkeypatch.setattr(machine, "_LAYERS", tmp_path / "layers.txt")
    monkeypatch.setattr("tvm_byoc_dnnl.tuning.plans.thread_count", lambda: 1)
    facts = _native.engine_info("dnnl")
    file = tmp_path / "rates" / "here.json"
    facts["machine"]["file"] = str(file)
    monkeypatch.setattr(_native, "engine_info", lambda name: facts)
    told: list[str] = []
    (found,) = measure_machine(told.append)
    assert found.startswith(str(file))
    assert "chosen / best" in found
    assert sum("6 layers" in line for line in told) == 6
    document = json.loads(file.read_text())
    assert document["machine"] == facts["machine"]["name"]
    assert list(document["threads"]) == ["1"]
    ask = "from tvm_byoc_dnnl.core import _native; print(_native.engine_info('dnnl')['machine']['rates'])"
    env = os.environ | {"TVM_BYOC_RATES": str(file)}
    done = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == file
