"""``python -m tvm_byoc_dnnl.testing NAMESPACE``: the conformance kit on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from ..core.errors import InputError
from ..core.files import write_text
from ..runtime.comparison import as_tolerances
from ..vendors.namespaces import compilers
from .conformance import run_conformance


def _tolerances(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, float]:
    try:
        return as_tolerances(dict(value.partition("=")[::2] for value in values))
    except InputError as error:
        raise click.BadParameter(str(error)) from error


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("namespace")
@click.option("--only", multiple=True, metavar="NAME", help="Operators or patterns, as in 'nn.*'. May be repeated.")
@click.option("--share", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Share of the cases that run; 0.1 is a quick look.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed by which --share chooses the cases.")
@click.option("--tolerance", "tolerances", multiple=True, callback=_tolerances, metavar="DTYPE=NUMBER",
              help="Largest error: a share of the largest value, or steps: 'int8=1 step'. Repeatable.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the data instead of the text.")
@click.option("--badge", "badge_file", metavar="FILE", help="Write a picture of the result (SVG), to publish it.")
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True,
              metavar="SECONDS", help="Time that one case may take; one that takes longer fails.")  # fmt: skip
@click.option("--in-process", is_flag=True, help="Run the backend in this process, for a debugger: a crash ends it.")
@click.option("--all", "every_case", is_flag=True, help="List every case with its reason, not only the failures.")
def main(
    namespace: str,
    only: Sequence[str],
    share: float,
    seed: int,
    tolerances: dict[str, float],
    as_json: bool,
    badge_file: str | None,
    time_limit: float,
    in_process: bool,
    every_case: bool,
) -> None:
    """Check that the backend NAMESPACE computes what it accepts, correctly, and says why it refuses the rest.

    \b
      python -m tvm_byoc_dnnl.testing my_npu
      python -m tvm_byoc_dnnl.testing my_npu --only 'nn.*' --all
      python -m tvm_byoc_dnnl.testing my_npu --share 0.1
      python -m tvm_byoc_dnnl.testing my_npu --json --badge conformance.svg > conformance.json

    The backend runs in a process of its own: a case that crashes or hangs fails by name, and the others go on.

    The exit status is 1 if a case failed, or if the backend accepted no case.
    """
    if namespace not in compilers():
        raise click.BadParameter(f"{namespace!r} is not registered; registered: {', '.join(compilers())}")
    say = lambda text: click.echo(text, err=True)  # noqa: E731
    report = run_conformance(
        namespace,
        only=only,
        share=share,
        seed=seed,
        tolerances=tolerances,
        progress=say,
        time_limit=time_limit,
        isolated=not in_process,
    )
    if badge_file is not None:
        write_text(badge_file, report.to_badge())
    click.echo(json.dumps(report.to_dict(), indent=1) if as_json else report.to_text(every_case))
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main(prog_name="python -m tvm_byoc_dnnl.testing")
