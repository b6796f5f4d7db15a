"""examples/te_cascade.py does what it says: TVM's result, without the whole intermediate image."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.harness import assert_right

EXAMPLE = Path(__file__).parents[2] / "examples" / "te_cascade.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("te_cascade", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cascade(example):
    mod = example.two_convolutions()
    replaced, func, graph = example.cascaded(mod)
    x = np.random.default_rng(1).uniform(-1, 1, (1, example.CHANNELS, example.SIZE, example.SIZE)).astype("float32")
    assert_right(example.run(replaced, x), example.run(mod, x))

    image = example.CHANNELS * (example.SIZE - 2) ** 2
    band = example.CHANNELS * (example.BAND + 2) * (example.SIZE - 2)
    assert example.largest_buffer(graph.to_primfunc()) >= image
    assert example.largest_buffer(func) == band < image / 5


def test_the_example_prints_its_result(example, capsys):
    example.main()
    out = capsys.readouterr().out
    assert "anchor relax.nn.conv2d" in out
    assert "as a cascade" in out
