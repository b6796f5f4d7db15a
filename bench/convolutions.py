"""Every candidate of a convolution, and whether the cost model chooses well: ``make bench-convolutions``.

The layers are those of 3×3 with stride 1 of ResNet, VGG, UNet, DenseNet, GoogLeNet, SqueezeNet and AlexNet; with
``--rare`` those on which libraries fall off: large and long kernels, groups of 2 to 16 channels, several outputs of
each channel, holes, long rows, images of few pixels and of many, batches. The candidates of a layer take turns; a time
is the median over all rounds, of the convolution alone: what changes layouts before and behind it is in the model only.
``ONEDNN_MAX_CPU_ISA`` limits the instruction set. ``--save`` puts the measurements into ``bench/convolutions.csv``;
``--fit`` measures nothing, but fits the costs of ``codegen_src/dnnl/machines.json`` to that table.
"""

from __future__ import annotations

import csv
import subprocess
from collections import defaultdict
from pathlib import Path

import click
import numpy as np

TABLE = Path(__file__).with_name("convolutions.csv")
COLUMNS = "isa layer candidate products vectors weights bytes model seconds".split()
MANY_WEIGHTS = 16 << 20  #: bytes, as in machines.json

#: channels, height and width, outputs of a convolution 3×3 of one image; behind them, what differs: groups, height and
#: width of the kernel, stride, dilation, images, width of the image
LAYERS = """
64,56,64 128,28,128 256,14,256 512,7,512
64,224,64 64,112,128 128,112,128 128,56,256 256,56,256 256,28,512 512,28,512 512,14,512
32,128,32 32,64,64 64,64,64 64,32,128 128,32,128 64,128,32 128,64,64 256,32,128
128,56,32 128,28,32 128,14,32 128,7,32
64,56,192 96,28,128 128,28,192 16,28,32 32,28,96 96,14,208 16,14,48 112,14,224 24,14,64 128,14,256 144,14,288
32,14,64 160,14,320 32,14,128 160,7,320 192,7,384 48,7,128
16,55,64 32,27,128 48,13,192 64,13,256
256,13,384 384,13,384 384,13,256
3,224,64
""".split()

RARE = """
64,28,64,1,9,9 32,112,32,1,9,9 64,28,64,1,11,11 3,224,64,1,11,11,4 96,28,96,96,9,9 96,28,96,96,11,11 96,28,96,96,31,31
128,28,128,64 128,56,128,64 128,28,128,64,1,1 128,28,128,64,5,5 128,56,128,64,3,3,2 96,28,96,32 128,56,128,32
256,28,256,32 144,28,144,12 160,28,160,16 192,28,192,16 240,28,240,16 256,28,256,16
256,28,64,32 64,28,32,16 128,28,192,16
32,56,64,32 32,56,128,32 32,28,96,32 32,28,512,32
64,28,64,1,3,3,1,2 64,28,64,1,3,3,1,6 96,28,96,96,3,3,1,2 128,28,128,64,3,3,1,2 64,28,64,1,3,3,3
64,1,64,1,1,3,1,1,1,16000 16,1,16,16,1,31,1,1,1,16000 80,1,384,1,1,3,1,1,1,3000 64,1,64,32,1,9,1,1,1,16000
64,28,64,1,1,7 64,28,64,1,7,1 96,28,96,96,1,7 96,28,96,96,7,1 128,28,128,64,1,7
64,1,64,1,3,3,1,1,1,5 128,1,128,64,3,3,1,1,1,5 96,1,96,96,3,3,1,1,1,5 3,2000,16 8,2000,8,4 16,2000,16,16
64,28,64,1,3,3,1,1,8 128,28,128,64,3,3,1,1,8 96,28,96,96,3,3,1,1,32
""".split()

Row = dict[str, str]


def amounts(row: Row) -> list[float]:
    """The work of a candidate, one number for each rate of its family."""
    weights = float(row["weights"])
    return [float(row["products"]), float(row["vectors"]), weights, weights if weights > MANY_WEIGHTS else 0.0]


def fit(rows: list[Row]) -> np.ndarray:
    """The rates, none negative, whose relative errors have the least squares."""
    work = np.array([amounts(row) for row in rows]) / np.array([[float(row["seconds"])] for row in rows])
    used = [i for i in range(work.shape[1]) if work[:, i].any()]
    while True:
        rates = np.zeros(work.shape[1])
        rates[used] = np.linalg.lstsq(work[:, used], np.ones(len(rows)), rcond=None)[0]
        if (rates >= 0).all():
            return rates
        used.remove(int(rates.argmin()))


def family(row: Row) -> str:
    """The name under which machines.json has the rates."""
    prefixes = {"winograd_4x4_bf16x": "split_winograd", "winograd": "winograd", "bf16x": "split"}
    prefixes |= {name: name for name in ("depthwise", "direct", "groups", "product", "x64:gemm", "ref")}
    return next((name for prefix, name in prefixes.items() if row["candidate"].startswith(prefix)), "convolution")


def judge(rows: list[Row], cost: dict[int, float]) -> str:
    """How often the cheapest by this cost (by position in ``rows``) is much slower than the fastest."""
    layers: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        layers[row["layer"]].append(i)
    slower = []
    for layer, candidates in layers.items():
        seconds = {i: float(rows[i]["seconds"]) for i in candidates}
        chosen = min(candidates, key=cost.__getitem__)
        if seconds[chosen] > 1.05 * min(seconds.values()):
            best = min(candidates, key=seconds.__getitem__)
            pair = f"{rows[chosen]['candidate']}, not {rows[best]['candidate']}"
            slower.append((seconds[chosen] / seconds[best], f"{layer}: {pair}"))
    text = "".join(f"\n  {ratio:.2f} {what}" for ratio, what in sorted(slower, reverse=True))
    far = sum(ratio > 1.2 for ratio, _ in slower)
    return f"more than 5 % slower than the best for {len(slower)} of {len(layers)} layers, 20 % for {far}{text}"


def measure(program: str, rounds: int, layers: list[str]) -> list[Row]:
    """The program's lines."""
    done = subprocess.run([program, str(rounds), *layers], check=True, capture_output=True, text=True)
    return list(csv.DictReader(done.stdout.splitlines(), COLUMNS))


def read() -> list[Row]:
    """The committed table."""
    with TABLE.open() as file:
        return list(csv.DictReader(file))


@click.command(help=__doc__)
@click.option("--program", default="build/dev/tests/cpp/candidates", show_default=True, help="The built measurement.")
@click.option("--rounds", default=15, show_default=True, help="How often each candidate is measured.")
@click.option("--save", is_flag=True, help="Replace the table's rows of these layers and this instruction set.")
@click.option("--rare", is_flag=True, help="Measure the layers on which libraries fall off.")
@click.option("--fit", "fitting", is_flag=True, help="Fit the rates to the table.")
def main(program: str, rounds: int, save: bool, rare: bool, fitting: bool) -> None:
    """Measure, or fit; then say how good the choice is."""
    layers = RARE if rare else LAYERS
    rows = read() if fitting else measure(program, rounds, layers)
    for isa in sorted({row["isa"] for row in rows}):
        of_isa = [row for row in rows if row["isa"] == isa]
        print(f"{isa}, built-in rates: " + judge(of_isa, {i: float(row["model"]) for i, row in enumerate(of_isa)}))
        ratios: dict[str, dict[str, float]] = defaultdict(dict)
        for row in of_isa:
            ratios[row["layer"]][family(row)] = float(row["seconds"])
        times = np.array([[r["convolution"], min(r.values())] for r in ratios.values() if "convolution" in r])
        print(f"  direct ÷ best: geometric mean {np.exp(np.log(times[:, 0] / times[:, 1]).mean()):.2f}")
        if not fitting:
            continue
        cost: dict[int, float] = {}
        for name in sorted({family(row) for row in of_isa}):
            positions = [i for i, row in enumerate(of_isa) if family(row) == name]
            rates = fit([of_isa[i] for i in positions])
            cost |= {i: float(np.dot(rates, amounts(of_isa[i]))) for i in positions}
            print(f"  {name}: products, vectors, weights, far weights = " + ", ".join(f"{r:.3g}" for r in rates))
        print("  fitted rates: " + judge(of_isa, cost))
    if save:
        old = read() if TABLE.exists() else []
        kept = [row for row in old if row["isa"] != rows[0]["isa"] or row["layer"] not in layers]
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(kept + rows, key=lambda row: row["isa"]))


if __name__ == "__main__":
    main()
