"""`compile(cache_dir=...)`: the same model is not compiled again, and all that changes a result makes another model."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl import cache

pytestmark = pytest.mark.native
X = np.random.default_rng(0).standard_normal((2, 8), "float32")
W = np.random.default_rng(1).standard_normal((8, 8), "float32")


def model(weight=W):
    return onnx_model([node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])], {"x": X.shape}, {"w": weight})


def entries(folder):
    return sorted(file.name for file in folder.glob("*.so"))


def test_the_second_time_it_is_loaded(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tvm_byoc_dnnl")
    folder, path = tmp_path / "cache", tmp_path / "m.onnx"
    onnx.save(model(), path)
    first = byoc.compile(path, cache_dir=folder)
    (name,) = entries(folder)
    written = (folder / name).stat()
    os.utime(folder / name, (0, 0))
    second = byoc.compile(str(path), cache_dir=str(folder), threads=1)
    assert entries(folder) == [name]
    assert (folder / name).stat().st_ino == written.st_ino  # the same file
    assert time.time() - (folder / name).stat().st_mtime < 3600  # says when it was used
    messages = [r.getMessage() for r in caplog.records if "compiled model" in r.getMessage()]
    assert [m.split()[0] for m in messages] == ["stored", "found"]
    assert f"({written.st_size / 1e6:.1f} MB); the cache has 1, of {written.st_size / 1e6:.1f} MB" in messages[1]
    assert second.threads == byoc.Runner(second).threads == 1
    second.export_library(tmp_path / "copy.so")
    for run in (byoc.Runner(first), byoc.Runner(second), byoc.load(tmp_path / "copy.so")):
        assert_right(run(X), np.maximum(X @ W, 0), 1e-5)
    assert "2 of 2 calls" in byoc.explain(second).to_text()
    with pytest.raises(byoc.ExportError, match="comes from a cache"):
        second.export_library(tmp_path / "m.tar")


def test_the_name_changes_with_all_that_changes_the_result(tmp_path, monkeypatch):
    relax_model = byoc.to_relax(model())
    database = tmp_path / "times.jsonl"
    database.write_text("{}")

    def key(m=None, compiler="dnnl", **arguments):
        return cache.key_of(model() if m is None else m, compiler, arguments)

    plain = key()
    assert key() == plain == key(onnx.load_from_string(model().SerializeToString()))
    assert key(relax_model) == key(byoc.to_relax(model()))
    others = [
        key(model(W + 1)),
        key(relax_model),
        key(byoc.to_relax(model(W + 1))),
        key(compiler=["dnnl", "ccompiler"]),
        key(strict=True),
    ]
    others += [key(policy=byoc.RegionPolicy(min_flops=9)), key(options={"dnnl": {"winograd_tile": 4}})]
    others.append(key(database=database))
    database.write_text("{} ")
    others.append(key(database=database))
    monkeypatch.setattr(cache, "__version__", "9")
    others.append(key())
    monkeypatch.undo()
    real = cache._native.engine_info
    monkeypatch.setattr(cache._native, "engine_info", lambda name: {**real(name), "isa": "another"})
    others.append(key())
    assert len({plain, *others}) == len(others) + 1


def test_weights_in_files_beside_the_model_count(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="weights", size_threshold=0)
    keys = {cache.key_of(path, "dnnl", {})}
    data = bytearray((tmp_path / "weights").read_bytes())
    data[5] ^= 1
    (tmp_path / "weights").write_bytes(data)
    assert len(keys | {cache.key_of(path, "dnnl", {})}) == 2
    (tmp_path / "weights").unlink()
    with pytest.raises(byoc.InputError, match=r"cannot read .*weights"):
        cache.key_of(path, "dnnl", {})


def test_a_damaged_entry_is_compiled_again(tmp_path, caplog):
    byoc.compile(model(), cache_dir=tmp_path)
    (name,) = entries(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for damaged in (whole[:1000], b"", whole[:3000] + bytes([whole[3000] ^ 255]) + whole[3001:]):
        (tmp_path / name).unlink()  # the file is mapped; a changed one would change the model that runs
        (tmp_path / name).write_bytes(damaged)
        caplog.clear()
        assert_right(byoc.Runner(byoc.compile(model(), cache_dir=tmp_path))(X), np.maximum(X @ W, 0), 1e-5)
        assert [r.levelname for r in caplog.records if "compiled again" in r.getMessage()] == ["WARNING"]
        byoc.load(tmp_path / name)


def test_a_folder_that_cannot_be_used(tmp_path, caplog, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(byoc.InputError, match=r"cache_dir is .*, which is no folder"):
        byoc.compile(model(), cache_dir=tmp_path / "file")

    def full(*args, **kwargs):
        raise byoc.ExportError("no space")

    monkeypatch.setattr(cache.ByocExecutable, "export_library", full)
    assert_right(byoc.Runner(byoc.compile(model(), cache_dir=tmp_path))(X), np.maximum(X @ W, 0), 1e-5)
    assert "is not kept in" in caplog.text


TWO = """
import sys
import tvm_byoc_dnnl as byoc
print(byoc.Runner(byoc.compile(sys.argv[1], cache_dir=sys.argv[2])).inputs[0].name)
"""


@pytest.mark.slow
def test_two_processes_at_once(tmp_path):
    path, folder = tmp_path / "m.onnx", tmp_path / "cache"
    onnx.save(model(), path)
    commands = [[sys.executable, "-c", TWO, str(path), str(folder)]] * 2
    both = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
    for process in both:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert output.split() == ["x"]
    assert len(entries(folder)) == 1
    assert len(list(folder.iterdir())) == 1  # nothing else is left


def test_a_backend_that_is_in_no_file_cannot_be_cached(tmp_path):
    exec("import tvm_byoc_dnnl as b; b.register_annotate_compiler('typed_in', ['relax.abs'])", {"__name__": "nowhere"})
    try:
        with pytest.raises(byoc.InputError, match="backend of 'nowhere' is in no file"):
            byoc.compile(model(), ["typed_in", "dnnl"], cache_dir=tmp_path)
    finally:
        byoc.unregister_compiler("typed_in")
