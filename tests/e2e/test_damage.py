"""A bit flipped anywhere in an exported library: an error when it is loaded, or the right numbers; never wrong ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.weights_models import TOKENS, weighty_model
from tvm_byoc_dnnl import library_file
from tvm_byoc_dnnl._compat import constant_numpy, is_constant

pytestmark = pytest.mark.native

_WIDTH, _FLIPS = 128, 250


@pytest.fixture(scope="module", params=["module", "source"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of either output."""
    path = tmp_path_factory.mktemp("damage") / f"{request.param}.so"
    byoc.compile(weighty_model(_WIDTH, 2, seed=3)[0], output=request.param).export_library(path)
    return path


def inputs() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((TOKENS, _WIDTH), dtype="float32")


def test_no_flipped_bit_gives_wrong_numbers(exported: Path, tmp_path: Path) -> None:
    x = inputs()
    want = byoc.load(exported)(x)
    whole = exported.read_bytes()
    rng = np.random.default_rng(7)
    places = [*rng.integers(0, len(whole), _FLIPS), *range(len(whole) - 200, len(whole), 20)]
    refused = 0
    for number, place in enumerate(places):
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(8))
        path = tmp_path / f"{number}.so"
        path.write_bytes(data)
        try:
            got = byoc.load(path)(x)
        except byoc.ArtifactError:
            refused += 1
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"byte {place}")
        path.unlink()
    assert refused >= 0.9 * len(places)


def test_damaged_weights_are_noticed_by_tvm_alone(exported: Path, tmp_path: Path) -> None:
    """Without `byoc.load`: what checks them is in the library."""
    mod, _ = weighty_model(_WIDTH, 2, seed=3)
    data = bytearray(exported.read_bytes())
    found: list[np.ndarray] = []
    relax.analysis.post_order_visit(mod["main"], lambda e: found.append(constant_numpy(e)) if is_constant(e) else None)
    weight = next(c for c in found if c.shape[0] == _WIDTH and c.ndim == 2)  # of a product
    place = data.find(weight.tobytes()[:64])
    assert place > 0
    data[place + 100] ^= 1
    path = tmp_path / "m.so"
    path.write_bytes(data)
    with pytest.raises(byoc.ArtifactError, match=r"weights are damaged: constant .* another checksum"):
        relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())


def test_plain_weights_are_not_read_to_check_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    byoc.compile(weighty_model(512, 4)[0]).export_library(path)
    record = library_file._record(library_file._mapped(path.open("rb")))
    assert record is not None
    ((start, end),) = record["skip"]
    assert end - start > 0.9 * path.stat().st_size


def test_a_library_without_a_record_loads(exported: Path, tmp_path: Path) -> None:
    """Tools that write a library anew leave out what is behind its end."""
    path = tmp_path / "m.so"
    path.write_bytes(exported.read_bytes()[:-1])
    np.testing.assert_array_equal(byoc.load(path)(inputs()), byoc.load(exported)(inputs()))
