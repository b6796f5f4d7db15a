"""The runtime module around a graph: its functions, its bytes, what it refuses, dynamic shapes and threads."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from tests.harness import assert_right
from tests.unit.graph_reference import GraphBuilder
from tests.unit.test_native_kinds import window
from tvm_byoc_dnnl.core import _native
from tvm_byoc_dnnl.core.errors import ArtifactError, GraphError, InputError, UnsupportedError

pytestmark = pytest.mark.native

MAGIC_BYTES, VERSION_BYTES = 8, 4


def tensor(array: np.ndarray) -> Any:
    return tvm_ffi.from_dlpack(array)


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


def create(g: GraphBuilder) -> Any:
    return _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", g.name, g.json(), g.const_names())


def initialise(module: Any, g: GraphBuilder) -> Any:
    module[f"__init_{g.name}"]([tensor(v) for v in g.values])
    return module


def loader(data: bytes) -> Any:
    return _native.function("ffi.Module.load_from_bytes.dnnl_byoc")(data)


def saved(module: Any) -> bytes:
    return bytes(_native.function("tvm_byoc_dnnl.ModuleBytes")(module))


def small() -> GraphBuilder:
    """x [2, 3] -> relu(x @ w)."""
    g = GraphBuilder()
    x, w = g.input((2, 3)), g.constant(np.arange(12, dtype="float32").reshape(3, 4) - 6)
    relu = {"kind": "eltwise", "alg": "relu", "alpha": 0.0, "beta": 0.0}
    g.outputs = [g.node("matmul", [x, w], (2, 4), post_ops=[relu])]
    return g


def symbolic() -> GraphBuilder:
    """x [n, 6] -> softmax(relu(x @ w).reshape(n * 2, 2)), with a shape argument that says n * 2."""
    g = GraphBuilder()
    x = g.input(("n", 6))
    g.shape_input([["*", "n", 2], 2])
    w = g.constant(np.random.default_rng(0).standard_normal((6, 4)).astype("float32"))
    y = g.node("matmul", [x, w], ("n", 4))
    flat = g.node("reshape", [y], (["*", "n", 2], 2))
    g.outputs = [g.node("softmax", [flat], (["*", "n", 2], 2), alg="accurate", axis=1)]
    return g


def symbolic_reference(g: GraphBuilder, x: np.ndarray) -> np.ndarray:
    y = (x @ g.values[0]).reshape(-1, 2)
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# --- functions


def test_functions_that_tvm_asks_for():
    g = small()
    module = create(g)
    assert module["get_symbol"]() == "dnnl_0"
    assert list(module["get_const_vars"]()) == ["dnnl_0_const_0"]
    assert module["__init_dnnl_0"]([tensor(g.values[0])]) == 0
    assert module.kind == "dnnl_byoc"
    assert json.loads(module.inspect_source()) == g.document()


def test_info():
    info = json.loads(_native.function("tvm_byoc_dnnl.Info")())
    assert info["graph_version"] == 2
    assert tuple(map(int, _native.engine_info("dnnl")["version"].split("."))) >= (3, 2)
    assert info["max_threads"] >= 1


def test_profile_names_every_step_and_computes():
    g = small()
    module = initialise(create(g), g)
    x, y = np.ones((2, 3), "float32"), np.empty((2, 4), "float32")
    steps = json.loads(module["profile"](tensor(x), tensor(y)))["steps"]
    assert [step["kind"] for step in steps] == ["matmul"]
    assert steps[0]["seconds"] > 0
    assert_right(y, np.maximum(x @ g.values[0], 0), 0)


def test_probe_accepts_and_names_implementations():
    report = json.loads(_native.function("tvm_byoc_dnnl.Probe")("dnnl", [small().json()])[0])
    assert report["ok"]
    assert [node["kind"] for node in report["nodes"]] == ["matmul"]
    assert not report["nodes"][0]["impl"].startswith("ref")


@pytest.mark.parametrize(("dtype", "reason"), [("int64", "int64"), ("float64", "float64")], ids=["int64", "float64"])
def test_probe_refuses_what_has_no_implementation(dtype, reason):
    g = GraphBuilder()
    x = g.input((2, 3), dtype)
    g.outputs = [g.node("eltwise", [x], (2, 3), dtype, alg="tanh", alpha=0.0, beta=0.0)]
    report = json.loads(_native.function("tvm_byoc_dnnl.Probe")("dnnl", [g.json()])[0])
    assert not report["ok"]
    assert reason in report["reason"]


def test_probe_refuses_reference_implementations():
    g = GraphBuilder()
    x = g.input((1, 16, 9, 9))
    attrs = {"alg": "max", "kernel": [3, 3]} | window(2, dilation=2)
    g.outputs = [g.node("pooling", [x], (1, 16, 5, 5), **attrs)]
    report = json.loads(_native.function("tvm_byoc_dnnl.Probe")("dnnl", [g.json()])[0])
    assert not report["ok"]
    for part in ("pooling", "float32", "[1, 16, 9, 9]", "reference", "ref:any"):
        assert part in report["reason"]


def test_unsupported_at_initialisation_is_typed():
    g = GraphBuilder()
    x = g.input((2, 3), "float64")
    g.outputs = [g.node("eltwise", [x], (2, 3), "float64", alg="tanh", alpha=0.0, beta=0.0)]
    with pytest.raises(UnsupportedError, match="float64"):
        initialise(create(g), g)


_BUILD_ELSEWHERE = """
import sys
from tvm_byoc_dnnl.core import _native
symbol, graph, *constants = sys.argv[2:]
module = _native.function("tvm_byoc_dnnl.ModuleCreate")("dnnl", symbol, graph, constants)
open(sys.argv[1], "wb").write(_native.function("tvm_byoc_dnnl.ModuleBytes")(module))
"""


def test_what_cannot_run_here_says_where_it_was_built(tmp_path):
    g = GraphBuilder()
    g.outputs = [g.node("eltwise", [g.input((2,), "float64")], (2,), "float64", alg="relu", alpha=0.0, beta=0.0)]
    command = [sys.executable, "-c", _BUILD_ELSEWHERE, tmp_path / "module", g.name, g.json(), *g.const_names()]
    subprocess.run(command, env=os.environ | {"ONEDNN_MAX_CPU_ISA": "SSE41"}, check=True)
    with pytest.raises(UnsupportedError, match=r"This CPU has \w+, .* built on sse41: .* ONEDNN_MAX_CPU_ISA"):
        initialise(loader((tmp_path / "module").read_bytes()), g)


# --- arguments


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        pytest.param(zeros(2, 3), None, "got 1 arguments, expected 2", id="number"),
        pytest.param(
            zeros(2, 3, dtype="float64"), zeros(2, 4), 'argument 0 "t0" has dtype float64, expected float32', id="dtype"
        ),
        pytest.param(zeros(6), zeros(2, 4), 'argument 0 "t0" has rank 1, expected 2', id="rank"),
        pytest.param(zeros(3, 3), zeros(2, 4), r'argument 0 "t0" has shape \[3, 3\], expected \[2, 3\]', id="shape"),
        pytest.param(zeros(2, 3), zeros(4, 2), r'output 0 "t2" has shape \[4, 2\], expected \[2, 4\]', id="output"),
    ],
)
def test_wrong_arguments(x, y, message):
    g = small()
    module = initialise(create(g), g)
    with pytest.raises(InputError, match=message) as error:
        module["dnnl_0"](*(tensor(a) for a in (x, y) if a is not None))
    assert "dnnl_0" in str(error.value)


def test_wrong_strides_and_types():
    g = small()
    module = initialise(create(g), g)
    y = tensor(np.zeros((2, 4), "float32"))
    with pytest.raises(InputError, match=r"strides \[1, 2\]"):
        module["dnnl_0"](tensor(np.zeros((3, 2), "float32").T), y)
    with pytest.raises(InputError, match=r"argument 0 .* is not a tensor but int"):
        module["dnnl_0"](3, y)


def test_views_with_an_offset_are_taken():
    g = small()
    module = initialise(create(g), g)
    base, y = np.random.default_rng(0).standard_normal((5, 3)).astype("float32"), np.empty((2, 4), "float32")
    module["dnnl_0"](tensor(base[1:3]), tensor(y))
    assert_right(y, np.maximum(base[1:3] @ g.values[0], 0), 1e-5, elementwise=True)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ([], "got 0 constants, expected 1"),
        ([np.zeros((3, 4), "float16")], "constant 0 .* has dtype float16, expected float32"),
        ([np.zeros((4, 3), "float32")], r"constant 0 .* has shape \[4, 3\], expected \[3, 4\]"),
    ],
)
def test_wrong_constants(constants, message):
    with pytest.raises(InputError, match=message):
        create(small())["__init_dnnl_0"]([tensor(c) for c in constants])


def test_call_before_initialisation():
    module = create(small())
    arguments = [tensor(np.zeros(shape, "float32")) for shape in ((2, 3), (2, 4))]
    with pytest.raises(RuntimeError, match="__init_dnnl_0"):
        module["dnnl_0"](*arguments)


# --- bytes


def test_round_trip():
    g = small()
    data = saved(create(g))
    module = initialise(loader(data), g)
    x, y = np.ones((2, 3), "float32"), np.empty((2, 4), "float32")
    module["dnnl_0"](tensor(x), tensor(y))
    assert_right(y, np.maximum(x @ g.values[0], 0), 0)
    assert saved(module) == data


def test_truncated_anywhere():
    data = saved(create(small()))
    for length in range(len(data)):
        with pytest.raises(ArtifactError):
            loader(data[:length])


def test_flipped_bit_anywhere():
    data = saved(create(small()))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(ArtifactError):
            loader(bytes(damaged))


def test_surplus_bytes_and_no_bytes():
    for data in (saved(create(small())) + b"x", b"", b"\0" * 100):
        with pytest.raises(ArtifactError):
            loader(data)


def test_unknown_format_version_is_named():
    data = bytearray(saved(create(small())))
    data[MAGIC_BYTES : MAGIC_BYTES + VERSION_BYTES] = (7).to_bytes(VERSION_BYTES, "little")
    with pytest.raises(ArtifactError, match=r"version 7 \(written by tvm-byoc-dnnl .*this library reads version 3"):
        loader(bytes(data))


def test_module_and_graph_must_agree():
    g = small()
    module_create = functools.partial(_native.function("tvm_byoc_dnnl.ModuleCreate"), "dnnl")
    with pytest.raises(GraphError, match="other"):
        module_create("other", g.json(), g.const_names())
    with pytest.raises(GraphError, match="constants"):
        module_create(g.name, g.json(), [])


# --- malformed graphs: (what is done to a good document, what the message says)


def _set(path: str, value: Any) -> Any:
    """A change of one place: 'nodes.0.attrs.axis' = value; KeyError on a wrong path is a bug of the test."""
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]

    def change(document: dict) -> None:
        for parent in parents:
            document = document[parent]
        document[last] = value

    return change


MALFORMED = {
    "name": (_set("name", "a b"), "not an identifier"),
    "tensors_type": (_set("tensors", {}), "expected an array"),
    "dtype": (_set("tensors.0.dtype", "float8"), 'unknown dtype "float8"'),
    "negative_dim": (_set("tensors.0.shape", [-1, 3]), "negative"),
    "huge": (_set("tensors.0.shape", [2**31, 2**31, 2**31]), "larger than 2"),
    "dim_type": (_set("tensors.0.shape", [1.5]), "expected a number, a symbol or an expression"),
    "dim_operator": (_set("tensors.0.shape", [["^", 1, 2]]), "unknown operator"),
    "unbound_symbol": (_set("tensors.2.shape", ["n", 4]), '"n" is not a plain dim of any input'),
    "input_id": (_set("inputs.0.tensor", 9), "out of range"),
    "input_field": (_set("inputs.0", {"tensor": 0, "shape": []}), 'either "tensor" or "shape"'),
    "unknown_field": (_set("extra", 1), 'unknown field "extra"'),
    "unknown_kind": (_set("nodes.0.kind", "conv"), 'unknown kind "conv"'),
    "unknown_attr": (_set("nodes.0.attrs", {"axis": 1}), 'unknown field "axis"'),
    "cycle": (_set("nodes.0.inputs", [2, 1]), "used before it is defined"),
    "defined_twice": (_set("nodes.0.outputs", [0]), "defined a second time"),
    "too_few_inputs": (_set("nodes.0.inputs", [0]), "got 1 inputs"),
    "too_many_inputs": (_set("nodes.0.inputs", [0, 1, 1, 1]), "got 4 inputs"),
    "no_outputs": (_set("outputs", []), "at least one"),
    "output_id": (_set("outputs", [-1]), "out of range"),
    "k_differs": (_set("tensors.0.shape", [2, 5]), "K is 5 in the source and 3"),
    "wrong_output": (_set("tensors.2.shape", [2, 5]), r"the shape of the output is \[2, 5\], expected \[2, 4\]"),
    "post_op_kind": (_set("nodes.0.post_ops", [{"kind": "sum"}]), 'unknown kind "sum"'),
    "post_op_alg": (_set("nodes.0.post_ops.0.alg", "relu6"), 'unknown alg "relu6"'),
    "post_op_number": (_set("nodes.0.post_ops.0.alpha", "big"), "expected a number"),
    "post_op_input": (_set("nodes.0.post_ops", [{"kind": "binary", "alg": "add", "input": 2}]), "input 2 of 2"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_graph(case):
    change, message = MALFORMED[case]
    document = copy.deepcopy(small().document())
    change(document)
    with pytest.raises(GraphError, match=message):
        _native.function("tvm_byoc_dnnl.Probe")("dnnl", [json.dumps(document)])[0]


def test_every_missing_field_is_named():
    def paths(value: Any, here: tuple) -> Any:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict):
                yield (*here, key)
            if isinstance(item, (dict, list)):
                yield from paths(item, (*here, key))

    good = small().document()
    optional = {"attrs", "post_ops", "source"}
    for path in paths(good, ()):
        document = copy.deepcopy(good)
        place = document
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        if path[-1] in optional:
            continue
        with pytest.raises(GraphError, match=path[-1] if path[-1] != "tensor" else "tensor|shape"):
            _native.function("tvm_byoc_dnnl.Probe")("dnnl", [json.dumps(document)])[0]


@pytest.mark.parametrize(("field", "value"), [("version", 3), ("version", 0), ("format", "other.graph")])
def test_another_graph_format_is_an_artifact_error(field, value):
    document = small().document() | {field: value}
    with pytest.raises(ArtifactError, match=f'{value}.*expected "tvm_byoc_dnnl.graph" version 1 to 2'):
        _native.function("tvm_byoc_dnnl.Probe")("dnnl", [json.dumps(document)])[0]


@pytest.mark.parametrize("text", ["", "{", "[]", "nul", '{"a":1,"a":2}', "[" * 100000, '"\\ud800"', "1e999", "{} x"])
def test_what_is_not_json(text):
    with pytest.raises(GraphError):
        _native.function("tvm_byoc_dnnl.Probe")("dnnl", [text])[0]


# --- dynamic shapes


def run_symbolic(module: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.random.default_rng(n).standard_normal((n, 6)).astype("float32"), np.empty((n * 2, 2), "float32")
    module["dnnl_0"](tensor(x), tvm_ffi.Shape((n * 2, 2)), tensor(y))
    return x, y


def test_dynamic_shapes_beyond_the_cache():
    g = symbolic()
    module = initialise(create(g), g)
    for n in (*range(25), *range(24, -1, -5)):  # more than the cache holds, and back
        x, y = run_symbolic(module, n)
        assert_right(y, symbolic_reference(g, x) if n else y, 1e-4, least=0.01, elementwise=True)


def test_dynamic_describe():
    g = symbolic()
    module = initialise(create(g), g)
    plan = json.loads(module["describe"](tvm_ffi.Shape((5, 6)), tvm_ffi.Shape((10, 2))))
    assert [step["kind"] for step in plan["steps"]] == ["matmul", "softmax"]


@pytest.mark.parametrize(
    ("shape", "said", "message"),
    [
        ((3, 7), (6, 2), r"argument 0 has shape \[3, 7\], expected \[3, 6\] with n = 3"),
        ((3, 6), (5, 2), r"argument 1 has shape \[5, 2\], expected \[6, 2\] with n = 3"),
        ((3, 6), (6,), "argument 1 has rank 1, expected 2"),
    ],
)
def test_dynamic_arguments_that_disagree(shape, said, message):
    g = symbolic()
    module = initialise(create(g), g)
    with pytest.raises(InputError, match=message):
        module["dnnl_0"](tensor(np.zeros(shape, "float32")), tvm_ffi.Shape(said), tensor(np.zeros((6, 2), "float32")))


def test_symbols_that_do_not_broadcast_are_an_input_error():
    g = GraphBuilder()
    x, y = g.input(("n",)), g.input(("m",))
    g.outputs = [g.node("binary", [x, y], ("n",), alg="add")]
    module = initialise(create(g), g)
    arguments = [tensor(np.zeros(n, "float32")) for n in (3, 4, 3)]
    with pytest.raises(InputError, match="n = 3, m = 4"):
        module["dnnl_0"](*arguments)


# --- threads


@pytest.mark.parametrize("dynamic", [False, True])
def test_threads_share_a_module(dynamic):
    g = symbolic() if dynamic else small()
    module = initialise(create(g), g)
    failures: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for i in range(60):
                if dynamic:
                    x, y = run_symbolic(module, 1 + (seed + i) % 20)
                    assert_right(y, symbolic_reference(g, x), 1e-4, least=0.01, elementwise=True)
                    continue
                x, y = rng.standard_normal((2, 3)).astype("float32"), np.empty((2, 4), "float32")
                module["dnnl_0"](tensor(x), tensor(y))
                assert_right(y, np.maximum(x @ g.values[0], 0), 1e-4, least=0.1, elementwise=True)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
