"""Trained models of an open batch or picture, compiled once for all sizes, against ONNX Runtime: ``make test-zoo``."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tvm_byoc_dnnl as byoc
from bench.zoo import ZOO, zoo_model
from tvm_byoc_dnnl.core.errors import UnsupportedError
from tvm_byoc_dnnl.runtime.comparison import gap
from tvm_byoc_dnnl.testing.models import ort_run

#: why a model cannot be compiled for every batch
REFUSED = {
    "echo_quality": "Squeeze",  # without axes: the number of dims would depend on the batch
    "packet_loss_quality": "Squeeze",
}


def open_inputs(model: onnx.ModelProto) -> set[str]:
    """Inputs whose first dim is open."""
    dims = {i.name: i.type.tensor_type.shape.dim for i in model.graph.input}
    return {name for name, of_input in dims.items() if of_input and of_input[0].dim_value <= 0}


def batch_of(array: np.ndarray, size: int) -> np.ndarray:
    """Samples that differ."""
    if array.dtype.kind != "f":
        return np.concatenate([array] * size)
    return np.concatenate([array * (1 - 0.07 * i) for i in range(size)]).astype(array.dtype)


@pytest.mark.zoo
@pytest.mark.parametrize("name", [name for name in ZOO if ZOO[name].is_file])
def test_one_model_serves_every_batch(name: str) -> None:
    entry = zoo_model(name)
    if entry.missing():
        pytest.skip(f"not installed: {entry.missing()}; `make test-zoo` does that")
    model, feeds = entry.model, entry.inputs()
    opened = open_inputs(model) & set(feeds)
    if not opened:
        pytest.skip("its batch is fixed")
    shapes = {n: ["N" if n in opened else a.shape[0], *a.shape[1:]] for n, a in feeds.items()}
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[name]):
            byoc.compile(model, shapes=shapes)
        return
    runner = byoc.Runner(byoc.compile(model, shapes=shapes))
    for size in (1, 2, 5):
        given = {n: batch_of(a, size) if n in opened else a for n, a in feeds.items()}
        got = runner(given)
        results = got if isinstance(got, list) else [got]
        assert gap(results, ort_run(model, given)) <= entry.tolerance


@pytest.mark.zoo
def test_a_detector_of_every_picture_is_one_region() -> None:
    """It has a cell for each 8×8, 16×16 and 32×32 pixels, and computes the coordinates of all."""
    entry = zoo_model("body_parts")
    if entry.missing():
        pytest.skip(f"not installed: {entry.missing()}; `make test-zoo` does that")
    shapes = {"images": [1, 3, "H", "W"]}
    assert len(byoc.explain(entry.model, shapes=shapes).regions) == 1
    runner = byoc.Runner(byoc.compile(entry.model, shapes=shapes))
    for height, width in ((320, 320), (64, 96), (32, 32)):
        x = np.random.default_rng(height).random((1, 3, height, width), "float32")
        assert gap([runner(x)], ort_run(entry.model, {"images": x})) <= entry.tolerance
