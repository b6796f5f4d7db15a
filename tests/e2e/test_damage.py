"""A bit flipped anywhere in an exported library: an error when it is loaded, or the right numbers; never wrong ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_byoc_dnnl as byoc
from tests.weights_models import TOKENS, weighty_model
from tvm_byoc_dnnl.ir.relax_utils import constant_numpy
from tvm_byoc_dnnl.ir.tvm_compat import is_constant
from tvm_byoc_dnnl.vendor import object_module

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
    """Without `byoc.load`: what checks them is in the library; source has them in its code, of which all is checked."""
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
    with pytest.raises(byoc.ArtifactError, match=r"is damaged, its checksum is another|weights are damaged: "):
        relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())


def test_a_cut_library_is_refused_by_every_loader(exported: Path, tmp_path: Path) -> None:
    """Mapped, its missing pages would end the process."""
    path, linked = tmp_path / "m.so", tmp_path / "linked.so"
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", linked], input=b"int f(void) { return 1; }", check=True)
    for whole in (exported.read_bytes(), linked.read_bytes()):
        for size in (0, 1, 64, 1000, 5000, len(whole) // 2):
            path.write_bytes(whole[:size])
            for load in (byoc.load, tvm.runtime.load_module, lambda p: object_module(exported, Path(p), ["f"])):
                with pytest.raises(byoc.ArtifactError, match=r"cut off|no ELF file|headers are damaged|is empty"):
                    load(str(path))


def test_plain_weights_are_not_read_to_check_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.so"
    byoc.compile(weighty_model(512, 4)[0]).export_library(path)
    whole = path.read_bytes()
    ((start, end),) = json.loads(whole[whole.rindex(b'{"bytes"') : whole.rindex(b"}") + 1])["skip"]
    assert end - start > 0.9 * path.stat().st_size


def test_a_library_that_was_written_anew_is_refused(exported: Path, tmp_path: Path) -> None:
    """Tools that write a library anew leave out what is behind its end; what else they did cannot be seen."""
    path = tmp_path / "m.so"
    subprocess.run(["strip", "-o", path, exported], check=True)
    with pytest.raises(byoc.ArtifactError, match=r"record at its end is missing .*strip, patchelf"):
        byoc.load(path)
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())  # unchecked
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(inputs())).numpy(), byoc.load(exported)(inputs()))


def test_a_library_of_tvm_alone_loads(tmp_path: Path) -> None:
    """Nobody has sealed it."""
    path = tmp_path / "m.so"
    mod = byoc.partition(weighty_model(_WIDTH, 2, seed=3)[0])
    tvm.compile(mod, target="llvm", relax_pipeline="byoc").export_library(str(path))
    want = byoc.Runner(byoc.compile(weighty_model(_WIDTH, 2, seed=3)[0]))(inputs())
    np.testing.assert_array_equal(byoc.load(path)(inputs()), want)


def damages(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Damages of every kind in every region of a file."""
    rng = np.random.default_rng(11)
    size = len(whole)
    regions = {"head": 0, "names": 1024, "middle": size // 2, "sections": size - 2500, "record": size - 150}
    for name, start in regions.items():
        for length in (1, 7, 64, 500, 4096):
            for shift in (0, int(rng.integers(900))):
                begin = min(start + shift, size - 1)
                end = min(begin + length, size)
                noise = rng.bytes(end - begin)
                yield f"{name}: zeros {begin}:{end}", whole[:begin] + bytes(end - begin) + whole[end:]
                yield f"{name}: noise {begin}:{end}", whole[:begin] + noise + whole[end:]
                yield f"{name}: cut out {begin}:{end}", whole[:begin] + whole[end:]
                yield f"{name}: twice {begin}:{end}", whole[:end] + whole[begin:]
                yield (
                    f"{name}: zeros, and the end",
                    (whole[:begin] + bytes(end - begin) + whole[end:])[:-24] + bytes(24),
                )
    for length in (1, 24, 100, 512, 4096, 16384, size - 64):
        yield f"end: {length} zeros", whole[: max(0, size - length)] + bytes(min(length, size))
        yield f"end: {length} cut off", whole[: max(0, size - length)]
        yield f"end: {length} more", whole + rng.bytes(length)
    for begin, other in ((0, 4096), (4096, 8192), (1000, size - 3000)):
        a, b = whole[begin : begin + 2000], whole[other : other + 2000]
        swapped = bytearray(whole)
        swapped[begin : begin + 2000], swapped[other : other + 2000] = b, a
        yield f"swapped {begin} {other}", bytes(swapped)


LOADER = """
import sys
import numpy as np
import tvm_byoc_dnnl as byoc
x, want = np.load(sys.argv[1]), np.load(sys.argv[2])
for path in sys.argv[3:]:
    print(path, end=" ", flush=True)
    try:
        print("right" if np.array_equal(byoc.load(path)(x), want) else "WRONG")
    except byoc.ArtifactError:
        print("refused")
"""


def test_damages_of_every_kind_are_errors(exported: Path, tmp_path: Path) -> None:
    """In a process of their own, which must live to the end."""
    np.save(tmp_path / "x.npy", inputs())
    np.save(tmp_path / "y.npy", byoc.load(exported)(inputs()))
    files = {}
    for number, (name, data) in enumerate(damages(exported.read_bytes())):
        path = tmp_path / f"{number}.so"
        path.write_bytes(data)
        files[str(path)] = name
    assert len(files) > 250
    command = [sys.executable, "-c", LOADER, tmp_path / "x.npy", tmp_path / "y.npy", *files]
    done = subprocess.run(command, capture_output=True, text=True)
    said = dict(line.split() for line in done.stdout.splitlines() if len(line.split()) == 2)
    assert done.returncode == 0, f"{files[list(files)[len(said)]]}: {done.stderr[-500:]}"
    assert said.keys() == files.keys()
    wrong = [name for path, name in files.items() if said[path] == "WRONG"]
    assert not wrong
    assert sum(word == "refused" for word in said.values()) > 0.9 * len(files)
