"""A vendor with the highest priority that costs more than it brings: `tune` finds it by measurement, without a hint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import tvm
from onnx.utils import Extractor

import tvm_byoc_dnnl as byoc
from tests.c_kernel import c_kernel, c_module
from tvm_byoc_dnnl.testing.models import light_model

pytestmark = [pytest.mark.native, pytest.mark.slow]


def _relu(functions: Any, options: Any, constant_names: Any) -> list[tvm.runtime.Module]:
    symbols = [str(f.attrs["global_symbol"]) for f in functions]
    return [c_module(s, c_kernel(s, "a[1][i] = a[0][i] > 0 ? a[0][i] : 0;")) for s in symbols]


@pytest.fixture
def acme() -> Iterator[str]:
    """It takes every relu, in regions of one call, and computes it with one thread."""
    byoc.register_annotate_compiler("acme", ["relax.nn.relu"])
    byoc.register_codegen("acme", _relu)
    yield "acme"
    byoc.unregister_compiler("acme")


@pytest.mark.sweep  # it measures for half a minute
def test_the_compiler_that_cuts_a_network_into_pieces_is_found(acme: str, tmp_path: Path) -> None:
    network = onnx.shape_inference.infer_shapes(light_model("squeezenet"))
    model = Extractor(network).extract_model(["data_0"], ["r16"])  # its first two modules
    default = byoc.explain(model, [acme, "dnnl"])
    assert {call.compiler for call in default.calls if call.op == "relax.nn.relu"} == {acme}
    found = byoc.tune(model, [acme, "dnnl"], budget=30, database=tmp_path / "times.jsonl")
    assert found.seconds is not None and found.default_seconds is not None
    assert found.seconds < 0.8 * found.default_seconds
    assert acme not in found.values()
