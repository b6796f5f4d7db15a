"""`compile(cache_dir=...)`: of a changed model, a vendor's compiler gets the changed regions only."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from tvm import relax

import tvm_byoc_dnnl as byoc

pytestmark = pytest.mark.native
X = np.array([-2.0, 0.5, 3.0], "float32")
EVERY = byoc.RegionPolicy()
SOURCE = """
import json
import numpy as np
import tvm_byoc_dnnl as b

NAME = "vendor_of_cached"

def codegen(functions, options, names):
    with open(options["log"], "a") as log:
        print(len(functions), file=log)
    return [made(f) for f in functions]

def made(region):
    composites = {v: f for v, f in b.bindings_of(region) if not hasattr(f, "op")}
    (call,) = [value for _, value in b.bindings_of(region) if hasattr(value, "op")]
    (inner,) = [value for _, value in b.bindings_of(composites[call.op])]
    (constant,) = [a for a in (*call.args, *inner.args) if b.is_constant(a)]
    data = json.dumps(float(b.constant_numpy(constant))).encode()
    return b.blob_module(NAME, str(region.attrs["global_symbol"]), data, "")

def load(data):
    def run(x, y):
        np.copyto(np.from_dlpack(y), np.from_dlpack(x) + np.float32(json.loads(data)))
    return run

def register():
    b.register_annotate_compiler(NAME, ["relax.add"])
    b.register_codegen(NAME, codegen, options={"log": ""})
    b.register_blob_runner(NAME, lambda words: True, load)
"""


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A function: the result of a model with these constants, and the regions that were compiled for it."""
    (tmp_path / "vendor_of_cached.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("vendor_of_cached").register()
    log, folder = tmp_path / "log", tmp_path / "cache"

    def get(*constants, **other):
        log.write_text("")
        x = relax.Var("x", relax.TensorType(X.shape, "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                value = x
                for constant in constants:  # the sine is TVM's, so each sum is a region
                    value = builder.emit(relax.op.add(relax.op.sin(value), relax.const(constant, "float32")))
                result = builder.emit_output(value)
            builder.emit_func_output(result)
        options = {"vendor_of_cached": {"log": str(log)}}
        ex = byoc.compile(builder.get(), "vendor_of_cached", policy=EVERY, options=options, cache_dir=folder, **other)
        return byoc.Runner(ex)(X), sum(map(int, log.read_text().split()))

    yield get
    byoc.unregister_compiler("vendor_of_cached")


def expected(*constants):
    value = X
    for constant in constants:
        value = np.sin(value) + np.float32(constant)
    return value


def check(compiled, constants, count):
    got, compilations = compiled(*constants)
    np.testing.assert_allclose(got, expected(*constants), rtol=1e-5)
    assert compilations == count


def test_a_changed_model_compiles_its_changed_regions(compiled):
    check(compiled, (1.0, 2.0, 3.0), 3)
    check(compiled, (1.0, 2.0, 3.0), 0)  # the whole model is kept
    check(compiled, (1.0, 5.0, 3.0), 1)
    check(compiled, (3.0, 2.0), 0)  # other names and another order
    check(compiled, (7.0, 7.0), 1)  # equal ones


@pytest.mark.parametrize("damage", [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b"", "another"])
def test_a_damaged_region_is_compiled_again(compiled, damage, tmp_path, caplog):
    check(compiled, (1.0, 2.0), 2)
    files = sorted((tmp_path / "cache").glob("*.region"))
    assert len(files) == 2
    contents = [file.read_bytes() for file in files]
    for file, content, other in zip(files, contents, reversed(contents)):
        file.unlink()
        file.write_bytes(other if damage == "another" else damage(content))
    check(compiled, (2.0, 1.0), 2)
    warnings = [r.getMessage() for r in caplog.records if "the cached region" in r.getMessage()]
    assert len(warnings) == 2 and all("made again" in w for w in warnings)
    check(compiled, (1.0, 2.0, 1.0), 0)
