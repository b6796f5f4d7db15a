"""Quantised networks: ``python -m bench.int8 [NAME ...] [--engines ...]``, beside the same networks in float32.

ONNX Runtime's ``quantize_static`` makes them of the networks of `bench.zoo`: uint8 activations, int8 weights, scales
per channel. Limit the instruction set of this package by ``ONEDNN_MAX_CPU_ISA``; the other engines ignore it.
``--in-turns`` measures this package alone: exact and saturating sums, called in turns with float32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import onnx
from onnx.version_converter import convert_version
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tvm_byoc_dnnl import Runner, compile
from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.testing.bench import choose_engines, run
from tvm_byoc_dnnl.testing.bench.engines import ENGINES
from tvm_byoc_dnnl.testing.bench.measure import Settings
from tvm_byoc_dnnl.testing.models import Model, random_inputs

from .zoo import zoo_model

__all__ = ["NETWORKS", "quantized"]

NETWORKS = ("resnet50", "resnet18", "mobilenet_v2", "unet", "vit_tiny")
_DEFAULTS = Settings()
Inputs = Callable[[int], dict[str, np.ndarray]]
#: quantised networks with random weights drift: ONNX Runtime differs from itself by as much, with and without its
#: graph optimisations
_DRIFT = 1.0


class _Inputs(CalibrationDataReader):
    """A few inputs from which the scales are made."""

    def __init__(self, inputs: Inputs, count: int = 4) -> None:
        self._inputs: Iterator[dict[str, np.ndarray]] = map(inputs, range(count))

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._inputs, None)


def quantized(
    model: onnx.ModelProto, form: QuantFormat = QuantFormat.QDQ, inputs: Inputs | None = None
) -> onnx.ModelProto:
    """``model`` with QuantizeLinear and DequantizeLinear around its operators, or with quantised operators.

    The scales are those of a few inputs: of noise, or of ``inputs`` (seed → arrays by name).
    """
    reader = _Inputs(inputs or partial(random_inputs, model))
    with TemporaryDirectory() as folder:
        source, prepared, result = (str(Path(folder, f"{name}.onnx")) for name in ("source", "prepared", "result"))
        # scales per channel need opset 13
        onnx.save(model if model.opset_import[0].version >= 13 else convert_version(model, 13), source)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(prepared, result, reader, quant_format=form, per_channel=True, **types)
        return onnx.load(result)


def _read(name: str, is_quantized: bool = False) -> onnx.ModelProto:
    model = onnx.load(name) if Path(name).is_file() else zoo_model(name).model
    return quantized(model) if is_quantized else model


def _in_turns(names: Iterable[str], threads: int, rounds: int) -> None:
    """Print the milliseconds of each network in float32, exact and saturating: median (least), and their ratios."""
    for name in names:
        model, quantised = _read(name), _read(name, is_quantized=True)
        inputs = list(random_inputs(model, 0).values())
        built = {
            "float32": compile(model),
            "exact": compile(quantised),
            "saturating": compile(quantised, int8="saturating"),
        }
        runners = {key: Runner(ex, threads=threads) for key, ex in built.items()}
        seconds: dict[str, list[float]] = {key: [] for key in runners}
        for turn in range(rounds + 2):
            for key, runner in runners.items():
                runner(*inputs)  # its weights are in the cache again
                start = time.perf_counter()
                runner(*inputs)
                if turn >= 2:
                    seconds[key].append(time.perf_counter() - start)
        for key, own in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(own, seconds["float32"], strict=True))
            times = f"{1e3 * statistics.median(own):7.2f} ms ({1e3 * min(own):.2f})"
            click.echo(f"{name:14} {key:10} {times:20} {ratio:.2f} of float32")


@click.command(context_settings={"show_default": True})
@click.argument("names", nargs=-1)
@click.option("--engines", default="byoc,onnxruntime,openvino", help=f"Of: {', '.join(ENGINES)}.")
@click.option("--threads", default=_DEFAULTS.threads, help="Threads of each engine.")
@click.option("--rounds", default=_DEFAULTS.rounds, help="Turns of each engine; below 20 is a quick look.")
@click.option("--float", "with_float", is_flag=True, help="Measure the networks in float32 as well.")
@click.option("--in-turns", is_flag=True, help="This package alone: float32, exact and saturating in turns.")
@click.option("--json", "as_json", is_flag=True, help="Print every sample instead of the table.")
def main(
    names: tuple[str, ...],
    engines: str,
    threads: int,
    rounds: int,
    with_float: bool,
    in_turns: bool,
    as_json: bool,
) -> None:
    """Compare engines on quantised networks; NAMES are networks of `bench.zoo` or .onnx files in float32."""
    if in_turns:
        _in_turns(names or NETWORKS, threads, rounds)
        return
    try:
        chosen = {name: replace(e, tolerance=_DRIFT) for name, e in choose_engines(engines.split(",")).items()}
        models = []
        for name in names or NETWORKS:
            models.append(Model(f"{Path(name).stem}_int8", partial(_read, name, is_quantized=True)))
            if with_float:
                models.append(Model(Path(name).stem, partial(_read, name)))
    except InputError as error:
        raise click.UsageError(str(error)) from error
    run(models, chosen, Settings(threads=threads, rounds=rounds), as_json=as_json)


if __name__ == "__main__":
    main(prog_name="python -m bench.int8")
