"""Compressed weights: ``python -m bench.weights bandwidth`` and ``python -m bench.weights decoder [--weights int8]``.

``bandwidth`` multiplies one to sixteen rows with weights that are larger than the caches, and prints how many gigabytes
a second are read, beside those of a plain read of this machine. ``decoder`` is one token of a GPT-2 of 125 million
parameters, with random weights and a cache of 128 tokens, beside ONNX Runtime in float32; the two take turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl.core._native import engine_info
from tvm_byoc_dnnl.prepare.compression import compressed
from tvm_byoc_dnnl.report.measured import roof

DEPTH, COLUMNS = 4096, 32768
LAYERS, WIDTH, HEADS, WORDS, PAST = 12, 768, 12, 50257, 128


@click.group()
def main() -> None:
    """Products with compressed weights on this CPU."""
    click.echo(f"oneDNN's instruction set here: {engine_info('dnnl')['isa']}")


def best_of(seconds: float, run: Callable[[], Any]) -> tuple[float, float]:
    """The least and the median time of a call."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times), statistics.median(times)


def session_of(model: onnx.ModelProto | str, threads: int) -> Any:
    """The same model, or the file of it, in ONNX Runtime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    source = model if isinstance(model, str) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])


def in_turns(runs: Mapping[str, Callable[[], Any]], seconds: float, turns: int) -> dict[str, float]:
    """The median of the times of each call, in turns which take so many seconds together."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            times[name].append(best_of(seconds / turns, run)[1])
    return {name: statistics.median(values) for name, values in times.items()}


@main.command()
@click.option("--threads", default=2, show_default=True)
@click.option("--rows", "all_rows", default="1,4,16", show_default=True)
def bandwidth(threads: int, all_rows: str) -> None:
    """Gigabytes of weights a second."""
    machine = 1e9 * roof(threads).gbytes
    click.echo(f"a plain read: {machine / 1e9:.1f} GB/s")
    values = np.random.default_rng(0).standard_normal((DEPTH, COLUMNS), "float32")
    for weights, bits in (("int8", 8), ("int4", 4)):
        x = relax.Var("x", relax.TensorType((tvm.tirx.Var("rows", "int64"), DEPTH), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                out = builder.emit_output(relax.op.matmul(x, relax.const(values)))
            builder.emit_func_output(out)
        runner = byoc.Runner(byoc.compile(builder.get(), weights=weights))
        size = values.size * bits // 8 + compressed(values[:, :64], bits).scales.size * COLUMNS // 64 * 4
        for rows in map(int, all_rows.split(",")):
            data = np.ones((rows, DEPTH), "float32")
            (tensor,) = runner.tensors([data])
            best, median = best_of(2, partial(runner.run_tvm, tensor))
            click.echo(
                f"{weights}, {rows:>2} rows: {median * 1e3:6.2f} ms, {size / best / 1e9:5.1f} GB/s, "
                f"{100 * size / best / machine:3.0f} % of a plain read"
            )


def decoder() -> onnx.ModelProto:
    """One token: embedding, 12 layers with a cache of keys and values, the product with all words."""
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    constants: list[Any] = []
    inputs = [helper.make_tensor_value_info("token", TensorProto.INT64, [1, 1])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1, WORDS])]

    def constant(name: str, value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def random(name: str, *shape: int) -> str:
        return constant(name, rng.standard_normal(shape, "float32") * np.float32(0.02))

    def add(op: str, inputs: list[str], name: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name=name, **attrs))
        return name

    def linear(x: str, name: str, k: int, n: int) -> str:
        return add("Add", [add("MatMul", [x, random(f"{name}.w", k, n)], f"{name}.p"), random(f"{name}.b", n)], name)

    def norm(x: str, name: str) -> str:
        scale = constant(f"{name}.s", np.ones(WIDTH, "float32"))
        return add("LayerNormalization", [x, scale, random(f"{name}.b", WIDTH)], name, axis=-1)

    heads = constant("heads", np.array([1, 1, HEADS, WIDTH // HEADS], "int64"))
    flat = constant("flat", np.array([1, 1, WIDTH], "int64"))
    scale = constant("scale", np.float32(1 / np.sqrt(WIDTH // HEADS)))
    x = add("Gather", [random("words", WORDS, WIDTH), "token"], "embedded")
    x = add("Add", [x, random("position", 1, 1, WIDTH)], "x")
    for i in range(LAYERS):
        names = [f"{i}.{part}" for part in "qkv"]
        nodes.append(helper.make_node("Split", [linear(norm(x, f"{i}.n1"), f"{i}.qkv", WIDTH, 3 * WIDTH)], names,
                                      name=f"{i}.split", axis=-1, num_outputs=3))  # fmt: skip
        q, *new = (add("Transpose", [add("Reshape", [n, heads], f"{n}.h")], f"{n}.t", perm=[0, 2, 1, 3]) for n in names)
        shape, longer = ([1, HEADS, length, WIDTH // HEADS] for length in (PAST, PAST + 1))
        full = []
        for part, one in zip("kv", new, strict=True):
            inputs.append(helper.make_tensor_value_info(f"past.{i}.{part}", TensorProto.FLOAT, shape))
            outputs.append(helper.make_tensor_value_info(f"now.{i}.{part}", TensorProto.FLOAT, longer))
            full.append(add("Concat", [f"past.{i}.{part}", one], f"now.{i}.{part}", axis=2))
        scores = add("MatMul", [q, add("Transpose", [full[0]], f"{i}.kt", perm=[0, 1, 3, 2])], f"{i}.scores")
        shares = add("Softmax", [add("Mul", [scores, scale], f"{i}.scaled")], f"{i}.shares", axis=-1)
        mixed = add("Transpose", [add("MatMul", [shares, full[1]], f"{i}.mix")], f"{i}.mixed", perm=[0, 2, 1, 3])
        x = add("Add", [x, linear(add("Reshape", [mixed, flat], f"{i}.flat"), f"{i}.out", WIDTH, WIDTH)], f"{i}.x1")
        inner = add("Gelu", [linear(norm(x, f"{i}.n2"), f"{i}.up", WIDTH, 4 * WIDTH)], f"{i}.gelu", approximate="tanh")
        x = add("Add", [x, linear(inner, f"{i}.down", 4 * WIDTH, WIDTH)], f"{i}.x2")
    add("MatMul", [norm(x, "last"), random("head", WIDTH, WORDS)], "logits")
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@main.command(name="decoder")
@click.option("--weights", type=click.Choice(["int8", "int4", "float32"]), default="int8", show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Of each engine.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the models, which are made only once.")
def measure_decoder(weights: str, threads: int, seconds: float, keep: Path | None) -> None:
    """One token, beside ONNX Runtime in float32."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model, library = folder / "decoder.onnx", folder / f"decoder_{weights}.so"
        if not model.is_file():
            onnx.save(decoder(), model)
        if not library.is_file():
            chosen = None if weights == "float32" else weights
            byoc.compile(str(model), weights=chosen).export_library(str(library))
        session = session_of(str(model), threads)
        runner = byoc.load(library)
        rng = np.random.default_rng(1)
        feeds = {
            i.name: np.array([[7]]) if i.name == "token" else rng.standard_normal(i.shape).astype("float32")
            for i in session.get_inputs()
        }
        want = session.run(["logits"], feeds)[0].reshape(-1)
        got = np.asarray(runner.named(feeds)["logits"]).reshape(-1)
        click.echo(f"cosine of the logits {got @ want / np.linalg.norm(got) / np.linalg.norm(want):.5f}")
        tensors = runner.tensors((), feeds)
        runs = {"ONNX Runtime": lambda: session.run(None, feeds), "byoc": lambda: runner.run_tvm(*tensors)}
        medians = in_turns(runs, seconds, 2)
        for name, value in medians.items():
            click.echo(f"{name}: {value * 1e3:.2f} ms a token")
        click.echo(
            f"{weights}: {medians['ONNX Runtime'] / medians['byoc']:.2f} times as fast as ONNX Runtime in float32"
        )


if __name__ == "__main__":
    main(prog_name="python -m bench.weights")
