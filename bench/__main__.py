"""Measure models on engines: ``python -m bench [MODEL ...] [--engines ...] [--json]``."""

from __future__ import annotations

import sys

import click

from tvm_byoc_dnnl.core.errors import InputError
from tvm_byoc_dnnl.testing.bench import choose_engines, run
from tvm_byoc_dnnl.testing.bench.engines import ENGINES
from tvm_byoc_dnnl.testing.bench.measure import Settings
from tvm_byoc_dnnl.testing.models import LIGHT_MODELS, find_model

_DEFAULTS = Settings()


@click.command(context_settings={"show_default": True})
@click.argument("models", nargs=-1)
@click.option("--engines", default="byoc,onnxruntime,openvino,tvm", help=f"Of: {', '.join(ENGINES)}.")
@click.option("--baseline", default=None, help="Divide by this engine's time, which comes first.  [default: the first]")
@click.option("--threads", default=_DEFAULTS.threads, help="Threads of each engine.")
@click.option("--rounds", default=_DEFAULTS.rounds, help="Turns of each engine; below 20 is a quick look.")
@click.option("--json", "as_json", is_flag=True, help="Print every sample instead of the table.")
def main(
    models: tuple[str, ...],
    engines: str,
    baseline: str | None,
    threads: int,
    rounds: int,
    as_json: bool,
) -> None:
    """Compare engines on MODELS.

    A model is an .onnx file or the name of a network inside the onnx package; without any, all of those.
    """
    try:
        chosen = choose_engines(engines.split(","))
        found = [find_model(name) for name in models or LIGHT_MODELS]
        if baseline is not None and baseline not in chosen:
            raise InputError(f"--baseline {baseline}: not among the engines measured, {', '.join(chosen)}")
        if baseline is not None:
            chosen = {baseline: chosen[baseline], **chosen}
    except InputError as error:
        raise click.UsageError(str(error)) from error
    comparisons = run(found, chosen, Settings(threads=threads, rounds=rounds), as_json)
    sys.exit(any(c.failures for c in comparisons))


if __name__ == "__main__":
    main(prog_name="python -m bench")
