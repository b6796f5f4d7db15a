"""Language models and their products: ``python -m bench.language generate``, ``speech``, ``products`` and ``error``.

``generate`` and ``speech`` are whole models, beside the peers that are installed; the first is what runs without a
command. ``products`` are the matrix products of a layer as ``MatMulNBits``, beside ONNX Runtime; the two take turns.
``error`` is that of sources rounded to 8 bits, in one product and in a decoder with random weights, beside ONNX
Runtime's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, helper

import tvm_byoc_dnnl as byoc
from bench.generation import generate, speech
from bench.weights import in_turns, session_of
from tvm_byoc_dnnl.core._native import engine_info

#: model → K and N of the products of a layer: queries, keys and values; attention; gate and up; down
MODELS = {
    "SmolLM2-135M": ((576, 960), (576, 576), (576, 3072), (1536, 576)),
    "Qwen2.5-0.5B": ((896, 1152), (896, 896), (896, 9728), (4864, 896)),
    "Llama-3.2-1B": ((2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048)),
}
LEVELS = {4: "int8", 1: "float32"}


def weights_of(rng: np.random.Generator, name: str, k: int, n: int, block: int) -> list[Any]:
    """Random weights of 4 bits whose product has results about as large as its source, as initializers."""
    blocks = -(-k // block)
    numbers = rng.integers(0, 256, (n, blocks, block // 2), dtype="uint8")
    scales = (rng.random((n, blocks), "float32") + np.float32(0.5)) / np.float32(4.6 * np.sqrt(k))
    return [
        helper.make_tensor(f"{name}.q", TensorProto.UINT8, numbers.shape, numbers.tobytes(), raw=True),
        helper.make_tensor(f"{name}.s", TensorProto.FLOAT, scales.shape, scales.tobytes(), raw=True),
    ]


def product(name: str, x: str, k: int, n: int, block: int, level: int) -> Any:
    attrs = {"K": k, "N": n, "bits": 4, "block_size": block, "accuracy_level": level}
    return helper.make_node("MatMulNBits", [x, f"{name}.q", f"{name}.s"], [name], name, domain="com.microsoft", **attrs)


def model_of(nodes: list[Any], constants: list[Any], k: int, n: int) -> onnx.ModelProto:
    """A model from ``x`` [rows, k] to the result ``y`` [rows, n] of its nodes."""
    value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    graph = helper.make_graph(nodes, "g", [value("x", shape=["rows", k])], [value("y", shape=["rows", n])], constants)
    imports = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Language models on this CPU."""
    click.echo(f"oneDNN's instruction set here: {engine_info('dnnl')['isa']}")
    if context.invoked_subcommand is None:
        context.invoke(generate)


main.add_command(generate)
main.add_command(speech)


@main.command()
@click.argument("models", nargs=-1, type=click.Choice(list(MODELS)))
@click.option("--rows", "all_rows", default="1,8,16,128,512", show_default=True)
@click.option("--levels", default="4,1", show_default=True, help="Values of accuracy_level.")
@click.option("--block", default=32, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--seconds", default=0.4, show_default=True, help="Of each engine and product, in three turns.")
def products(models: tuple[str, ...], all_rows: str, levels: str, block: int, threads: int, seconds: float) -> None:
    """Each product of a layer beside ONNX Runtime."""
    for name in models or MODELS:
        for k, n in MODELS[name]:
            for level in map(int, levels.split(",")):
                constants = weights_of(np.random.default_rng(0), "y", k, n, block)
                model = model_of([product("y", "x", k, n, block, level)], constants, k, n)
                session, runner = session_of(model, threads), byoc.Runner(byoc.compile(model, threads=threads))
                for rows in map(int, all_rows.split(",")):
                    x = np.random.default_rng(1).standard_normal((rows, k), "float32")
                    (tensor,) = runner.tensors([x])
                    runs = {
                        "ONNX Runtime": partial(session.run, None, {"x": x}),
                        "byoc": partial(runner.run_tvm, tensor),
                    }
                    theirs, ours = in_turns(runs, seconds, 3).values()
                    size = k * n // 2 + -(-k // block) * n * 4
                    ratio = f"ONNX Runtime {theirs * 1e6:9.1f} us, {theirs / ours:5.2f} times as long"
                    click.echo(
                        f"{name:12} {k:5} x {n:5}, {LEVELS.get(level, str(level)):7} sources, {rows:4} rows: "
                        f"{ours * 1e6:9.1f} us, {2e-9 * rows * k * n / ours:7.1f} GOP/s, "
                        f"{size / ours / 1e9:5.1f} GB/s; {ratio}"
                    )


SOURCES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.random(shape) - 0.5,
    "Student's t, 3 degrees of freedom": lambda rng, shape: rng.standard_t(3, shape),
    "normal, one number in each row 50 times as large": lambda rng, shape: (
        np.where(np.arange(shape[1]) == 7, 50, 1) * rng.standard_normal(shape)
    ),
}


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The root of the mean square of the difference, as a part of that of ``want``."""
    return float(np.sqrt(((got.astype("float64") - want) ** 2).mean() / (want.astype("float64") ** 2).mean()))


def decoder(level: int, width: int, layers: int, words: int) -> onnx.ModelProto:
    """Norm, gate and up, down, and the sum, as often as there are layers; then the product with all words."""
    rng, nodes, constants = np.random.default_rng(0), [], []
    constants.append(helper.make_tensor("gamma", TensorProto.FLOAT, [width], np.ones(width, "float32")))

    def add(op: str, inputs: list[str], name: str) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name))
        return name

    def linear(name: str, x: str, k: int, n: int) -> str:
        constants.extend(weights_of(rng, name, k, n, 32))
        nodes.append(product(name, x, k, n, 32, level))
        return name

    x = "x"
    for i in range(layers):
        norm = add("RMSNormalization", [x, "gamma"], f"{i}.norm")
        gate, up = (linear(f"{i}.{part}", norm, width, 4 * width) for part in ("gate", "up"))
        silu = add("Mul", [gate, add("Sigmoid", [gate], f"{i}.sigmoid")], f"{i}.silu")
        inner = add("Mul", [silu, up], f"{i}.inner")
        x = add("Add", [x, linear(f"{i}.down", inner, 4 * width, width)], f"{i}.sum")
    linear("y", add("RMSNormalization", [x, "gamma"], "norm"), width, words)
    return model_of(nodes, constants, width, words)


@main.command()
@click.option("--blocks", default="16,32,128,256", show_default=True)
@click.option("--tokens", default=256, show_default=True)
def error(blocks: str, tokens: int) -> None:
    """The error of sources of 8 bits."""
    k, n, rows = 2048, 512, 64
    sizes = [int(b) for b in blocks.split(",")]
    for name, make in SOURCES.items():
        x = make(np.random.default_rng(1), (rows, k)).astype("float32")
        errors = []
        for block in sizes:
            constants = weights_of(np.random.default_rng(0), "y", k, n, block)
            model = model_of([product("y", "x", k, n, block, 1)], constants, k, n)
            exact, rounded = (
                np.asarray(byoc.Runner(byoc.compile(model, activations=a))(x)) for a in ("float32", "int8")
            )
            errors.append(f"{relative(rounded, exact):.1e}")
        click.echo(f"{name} | {' | '.join(errors)}")
    width, words = 512, 4096
    found = dict(_decoded(width, words, tokens))
    want = found["byoc, float32"]
    for name, (logits, chosen) in found.items():
        same = (chosen == want[1]).mean()
        click.echo(f"decoder, {name}: error of the logits {relative(logits, want[0]):.1e}, {same:.1%} of tokens equal")


def _decoded(width: int, words: int, tokens: int) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Name of a run → logits and the most likely words of random tokens."""
    x = np.random.default_rng(2).standard_normal((tokens, width)).astype("float32")
    for level, dtype in LEVELS.items():
        model = decoder(level, width, 12, words)
        runs = {
            "byoc": lambda model=model: np.asarray(byoc.Runner(byoc.compile(model))(x)),
            "ONNX Runtime": lambda model=model: session_of(model, 2).run(None, {"x": x})[0],
        }
        for engine, run in runs.items():
            logits = run()
            yield f"{engine}, {dtype}", (logits, logits.argmax(-1))


if __name__ == "__main__":
    main(prog_name="python -m bench.language")
