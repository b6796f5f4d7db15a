"""`compile(cache_dir=...)`: the same model is not compiled again, and all that changes a result makes another model."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
import tvm

import tvm_byoc_dnnl as byoc
from tests.harness import assert_right
from tests.unit.importing import node, onnx_model
from tvm_byoc_dnnl.api import cache
from tvm_byoc_dnnl.core import entries as core_entries

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
    monkeypatch.setattr(core_entries, "own_version", lambda: "9")
    others.append(key())
    monkeypatch.undo()
    real = cache._native.engine_info
    monkeypatch.setattr(cache._native, "engine_info", lambda name: {**real(name), "isa": "another"})
    others.append(key())
    assert len({plain, *others}) == len(others) + 1


#: another value of each argument of `compile` that is a part of the key; the others are no part of it, for this reason
ANOTHER = {
    "model": lambda: model(W + 1),
    "compiler": lambda: ["dnnl", "ccompiler"],
    "shapes": lambda: {"x": [2, 8]},
    "precision": lambda: "bfloat16",
    "weights": lambda: "int8",
    "int8": lambda: "saturating",
    "target": lambda: {"kind": "llvm", "opt-level": 1},
    "policy": lambda: byoc.RegionPolicy(min_flops=3),
    "exclude": lambda: ["relax.nn.relu"],
    "force": lambda: ["relax.nn.relu"],
    "place": lambda: {"relax.matmul": "tvm"},
    "options": lambda: {"dnnl": {"winograd_tile": 4}},
    "strict": lambda: True,
    "prepare": lambda: False,
    "output": lambda: "source",
    "activations": lambda: "int8",
    "fallback": lambda: True,
}
NOT_IN_THE_KEY = {
    "database": "its content is, see above",
    "threads": "a number of the runner",
    "cache_dir": "the place itself",
}


def test_every_argument_of_compile_is_a_part_of_the_key(tmp_path, monkeypatch):
    keys = {}

    class Stop(Exception):
        pass

    def stop(self, key, build):
        keys[name] = key
        raise Stop

    monkeypatch.setattr(cache.ModelCache, "get", stop)
    parameters = inspect.signature(byoc.compile).parameters.keys() - NOT_IN_THE_KEY.keys()
    assert parameters == ANOTHER.keys(), "say in one of the two tables what becomes of a new argument"
    for name in ["nothing", *ANOTHER]:
        arguments = {"model": model(), **({} if name == "nothing" else {name: ANOTHER[name]()})}
        with pytest.raises(Stop):
            byoc.compile(**arguments, cache_dir=tmp_path)
    assert len(set(keys.values())) == len(keys) == len(ANOTHER) + 1


def test_the_surroundings_of_a_call_are_a_part_of_the_key(monkeypatch):
    keys = []

    def note():
        keys.append(cache.key_of(model(), "dnnl", {}))

    note()
    with tvm.transform.PassContext(opt_level=1):
        note()
    with tvm.transform.PassContext(disabled_pass=["FuseOps"]):
        note()
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
        note()
    with tvm.target.Target({"kind": "llvm", "opt-level": 2}):
        note()
    for variable, value in (("CXX", "another++"), ("CC", "another"), ("ONEDNN_MAX_CPU_ISA", "AVX2")):
        monkeypatch.setenv(variable, value)
        note()
    for module, name, value in (
        (core_entries, "version_of", lambda _distribution: "9"),
        (core_entries, "own_files", lambda: ("changed",)),
        (cache.codegen, "llvm_get_system_cpu", lambda: "another"),
        (sys, "version", "another"),
    ):
        monkeypatch.setattr(module, name, value)
        note()
    assert len(set(keys)) == len(keys)


def test_what_a_backend_registered_is_a_part_of_the_key(tmp_path, monkeypatch):
    """Its source, other files of its package, and the values that its functions hold."""
    package = tmp_path / "vendor_of_keys"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import tvm_byoc_dnnl as b\n"
        "def register(limit):\n"
        "    b.register_annotate_compiler('vendor_of_keys', 'relax.abs', lambda attrs, args: limit > 3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    vendor = importlib.import_module("vendor_of_keys")
    keys = []

    def note(limit):
        vendor.register(limit)
        try:
            keys.append(cache.key_of(model(), ["vendor_of_keys"], {}))
        finally:
            byoc.unregister_compiler("vendor_of_keys")

    note(4)
    note(5)
    (package / "table.json").write_text("{}")
    note(4)
    (package / "__init__.py").write_text((package / "__init__.py").read_text() + "\n")
    note(4)
    assert len(set(keys)) == 4
    note(4)
    assert keys[-1] == keys[-2]


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
    os.mkfifo(tmp_path / "weights")
    with pytest.raises(byoc.InputError, match=r"cannot read .*weights: it is a pipe"):
        byoc.compile(path, cache_dir=tmp_path / "cache")
    for location in ("/dev/zero", "../outside", str(tmp_path / "weights")):
        proto = onnx.load(path, load_external_data=False)
        proto.graph.initializer[0].external_data[0].value = location
        onnx.save(proto, tmp_path / "other.onnx")
        for folder in (None, tmp_path / "cache"):
            with pytest.raises(byoc.InputError, match=r"cannot read"):
                byoc.compile(tmp_path / "other.onnx", cache_dir=folder)


def test_a_damaged_entry_is_compiled_again(tmp_path, caplog):
    byoc.compile(model(), cache_dir=tmp_path)
    (name,) = entries(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for damaged in (whole[:1000], b"", whole[:3000] + bytes([whole[3000] ^ 255]) + whole[3001:]):
        (tmp_path / name).unlink()  # the file is mapped; a changed one would change the model that runs
        (tmp_path / name).write_bytes(damaged)
        caplog.clear()
        assert_right(byoc.Runner(byoc.compile(model(), cache_dir=tmp_path))(X), np.maximum(X @ W, 0), 1e-5)
        assert [r.levelname for r in caplog.records if "made again" in r.getMessage()] == ["WARNING"]
        byoc.load(tmp_path / name)


def right(executable, weight=W):
    assert_right(byoc.Runner(executable)(X), np.maximum(X @ weight, 0), 1e-5)


def test_an_entry_with_another_model_or_weight_is_compiled_again(tmp_path, caplog):
    """The file is whole; it, or a weight in it, is not what its name says."""
    byoc.compile(model(), cache_dir=tmp_path)
    (name,) = entries(tmp_path)
    byoc.compile(model(W + 1), cache_dir=tmp_path)
    (other,) = set(entries(tmp_path)) - {name}
    byoc.compile(model(W + 2)).export_library(tmp_path / "elsewhere")
    whole = (tmp_path / name).read_bytes()
    place = whole.find(W.tobytes())
    assert place > 0
    flipped = whole[: place + 9] + bytes([whole[place + 9] ^ 64]) + whole[place + 10 :]
    for content in ((tmp_path / other).read_bytes(), (tmp_path / "elsewhere").read_bytes(), flipped):
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(content)
        caplog.clear()
        right(byoc.compile(model(), cache_dir=tmp_path))
        assert "made again" in caplog.text
        caplog.clear()
        right(byoc.compile(model(), cache_dir=tmp_path))
        assert "made again" not in caplog.text


def occupied(path, outside, how):
    """Put something else at the place of an entry."""
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.symlink_to({"link": outside, "dangling": outside.with_name("absent"), "device": "/dev/zero"}[how])


@pytest.mark.parametrize("how", ["link", "dangling", "device", "pipe", "folder"])
def test_nothing_outside_of_the_folder_is_opened_or_replaced(tmp_path, how):
    folder, outside = tmp_path / "cache", tmp_path / "precious"
    outside.write_text("precious")
    byoc.compile(model(), cache_dir=folder)
    (name,) = entries(folder)
    (folder / name).unlink()
    occupied(folder / name, outside, how)
    right(byoc.compile(model(), cache_dir=folder))
    assert outside.read_text() == "precious" and sorted(p.name for p in tmp_path.iterdir()) == ["cache", "precious"]
    assert (folder / name).is_dir() if how == "folder" else not (folder / name).is_symlink()
    if how != "folder":
        byoc.load(folder / name)


def test_an_entry_that_is_a_link_to_a_right_one_is_not_used(tmp_path, caplog):
    folder = tmp_path / "cache"
    byoc.compile(model(), cache_dir=folder)
    (name,) = entries(folder)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    right(byoc.compile(model(), cache_dir=folder))
    assert "made again" in caplog.text and not (folder / name).is_symlink()


def owned_by(monkeypatch, user):
    """All files belong to another user than this process is of."""
    monkeypatch.setattr(core_entries, "_stranger", lambda about, real=core_entries._stranger: real(_Owned(about, user)))


class _Owned:
    def __init__(self, about, user):
        self.st_uid, self.st_mode = user, about.st_mode


def test_a_folder_or_entry_of_others_is_not_used(tmp_path, caplog, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    for _ in range(2):
        right(byoc.compile(model(), cache_dir=folder))
    assert [r.getMessage() for r in caplog.records if "every user may write to it" in r.getMessage()] != []
    assert len([r for r in caplog.records if "is not used as a cache" in r.getMessage()]) == 1
    assert not list(folder.iterdir())
    folder.chmod(0o700)
    byoc.compile(model(), cache_dir=folder)
    (name,) = entries(folder)
    assert (folder / name).stat().st_mode & 0o022 == 0
    (folder / name).chmod(0o666)
    caplog.clear()
    right(byoc.compile(model(), cache_dir=folder))
    assert "every user may write to it" in caplog.text and "made again" in caplog.text
    owned_by(monkeypatch, os.geteuid() + 12345)
    caplog.clear()
    right(byoc.compile(model(), cache_dir=folder))
    assert "belongs to another user" in caplog.text


def test_a_folder_that_cannot_be_used(tmp_path, caplog, monkeypatch):
    (tmp_path / "file").write_text("")
    for wrong, says in ((tmp_path / "file", "which is no folder"), (3, "expected the path of a folder")):
        with pytest.raises(byoc.InputError, match=f"cache_dir is .*{says}"):
            byoc.compile(model(), cache_dir=wrong)

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
