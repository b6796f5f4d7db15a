"""Measure torch.compile and add the figures to docs/performance.md: ``python -m bench.torch_compile [NETWORK ...]``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bench.performance import keep, load, machine, without_samples
from bench.performance.page import write
from bench.zoo import ZOO, zoo_model
from bench.zoo.built import NETS
from tvm_byoc_dnnl.testing.bench import run
from tvm_byoc_dnnl.testing.bench.measure import Comparison, Settings
from tvm_byoc_dnnl.testing.models import Model

from . import TORCH_ENGINES

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"


def _measure(name: str, settings: Settings) -> Comparison:
    network = zoo_model(name)
    model = Model(name, lambda: network.model)
    (comparison,) = run([model], TORCH_ENGINES, settings, inputs_of=lambda _model: network.inputs())
    return comparison


@click.command(context_settings={"show_default": True})
@click.argument("networks", nargs=-1, type=click.Choice([n for n in NETS if n in ZOO]))
@click.option("--rounds", default=6, help="Turns of each engine.")
@click.option("--threads", default=Settings().threads, help="Threads of each engine.")
@click.option("--page", default=_PAGE, type=click.Path(path_type=Path), help="The page; the results are beside it.")
def main(networks: tuple[str, ...], rounds: int, threads: int, page: Path) -> None:
    """Measure NETWORKS, or all that bench/zoo builds with PyTorch. Results of other networks and CPUs stay."""
    settings = Settings(threads=threads, rounds=rounds)
    file = page.with_suffix(".json")
    failed = False
    for name in networks or [n for n in NETS if n in ZOO]:
        comparison = _measure(name, settings)
        result = without_samples([comparison], settings)
        keep(file, machine(result), result["models"], "torch")
        write(page, load(file))
        failed |= bool(comparison.failures)
    sys.exit(failed)


if __name__ == "__main__":
    main(prog_name="python -m bench.torch_compile")
