"""3×3 convolutions, directly and as the cost chooses: ``python -m bench.convolutions [--rounds 20]``.

Each shape is compiled with ``fast_convolution`` off and on. The two take turns; a step's time is the median over all
rounds, of the convolution alone. Limit the instruction set by ``ONEDNN_MAX_CPU_ISA`` to measure another one.
"""

from __future__ import annotations

import statistics

import click
import numpy as np
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax

import tvm_byoc_dnnl as byoc
from tvm_byoc_dnnl._native import engine_info

#: channels, height and width, outputs: ResNet, VGG, UNet, DenseNet, Inception and SqueezeNet
SHAPES = [
    (64, 56, 64),
    (128, 28, 128),
    (256, 14, 256),
    (512, 7, 512),
    (64, 224, 64),
    (128, 112, 128),
    (256, 56, 256),
    (512, 28, 512),
    (512, 14, 512),
    (128, 56, 32),
    (128, 14, 32),
    (32, 128, 32),
    (64, 28, 192),
    (96, 14, 208),
    (160, 14, 160),
    (192, 13, 384),
    (384, 13, 256),
    (16, 55, 64),
    (3, 224, 64),
]


def convolution(channels: int, size: int, outputs: int) -> tvm.IRModule:
    """relu(conv(x)) with random weights from a fixed seed."""
    weights = np.random.default_rng(0).standard_normal((outputs, channels, 3, 3)).astype("float32")
    x = relax.Var("x", relax.TensorType((1, channels, size, size), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(weights), padding=1))
            out = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(out)
    return builder.get()


def step(ex: tvm.relax.VMExecutable) -> tuple[str, float]:
    """Implementation and milliseconds of the convolution."""
    found = next(s for s in byoc.profile(ex, repeat=5).steps if s.kind == "convolution")
    return found.implementation, found.seconds * 1e3


@click.command(help=__doc__)
@click.option("--rounds", default=20, show_default=True, help="How often each of the two is measured.")
def main(rounds: int) -> None:
    """Print one row for each shape."""
    table = Table("C, H = W, outputs", "direct, ms", "chosen, ms", "direct ÷ chosen", "chosen implementation")
    ratios = []
    for shape in SHAPES:
        mod = convolution(*shape)
        direct = byoc.compile(mod, options={"dnnl": {"fast_convolution": False}})
        chosen = byoc.compile(mod)
        times: dict[str, list[float]] = {"direct": [], "chosen": []}
        name = ""
        for _ in range(rounds):
            times["direct"].append(step(direct)[1])
            name, spent = step(chosen)
            times["chosen"].append(spent)
        a, b = (statistics.median(times[k]) for k in ("direct", "chosen"))
        ratios.append(a / b)
        table.add_row(", ".join(map(str, shape)), f"{a:.3f}", f"{b:.3f}", f"{a / b:.2f}", name)
    console = Console(width=120)
    console.print(f"oneDNN's instruction set: {engine_info('dnnl')['isa']}")
    console.print(table)
    console.print(f"geometric mean of the ratios {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


if __name__ == "__main__":
    main()
